//! Keys on a PKCS#11 token sign like any other, whatever becomes of the token costs new clients only, and it comes back by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, Finished, Key, Place, REQUEST, Shape, Signal, Tool, Trust, eventually,
    finish,
};
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
const PIN: &str = "271828";

/// A token in software, in a folder of a place, and what Debian calls its module.
pub(crate) struct SoftToken {
    place: Place,
    tool: Tool,
    module: PathBuf,
}

impl SoftToken {
    /// A token with a key and a chain for each of these: `NAME.crt`, for `NAME.example.org`, and `object=NAME`.
    #[track_caller]
    pub(crate) fn with(keys: &[(&str, Key)]) -> Option<Self> {
        let tool = Tool::find("softhsm2-util")?;
        let folders = ["/usr/lib/softhsm", "/usr/lib64/pkcs11", "/usr/lib/pkcs11"];
        let modules = folders.map(|folder| Path::new(folder).join("libsofthsm2.so"));
        let module = modules.into_iter().find(|module| module.exists());
        let token = Self {
            place: Place::new(),
            tool,
            module: module.expect("the module of softhsm2-util"),
        };
        let place = &token.place;
        fs::create_dir(place.path("tokens")).unwrap();
        let folder = place.path("tokens");
        place.write(
            "softhsm2.conf",
            &format!("directories.tokendir = {}\n", folder.display()),
        );
        place.write("pin", &format!("{PIN}\n"));
        token.manage(&["--init-token", "--free", "--so-pin", "3141592"]);
        for (number, (name, kind)) in keys.iter().enumerate() {
            let bundle = place
                .authority
                .issue(&[&format!("{name}.example.org")], *kind);
            place.write(&format!("{name}.crt"), &bundle.certificate);
            place.write("key", &bundle.key);
            let (path, id) = (place.path("key"), format!("{:02x}", number + 1));
            let path = path.to_str().unwrap();
            token.manage(&[
                "--import", path, "--token", "web", "--id", &id, "--label", name,
            ]);
            fs::remove_file(place.path("key")).unwrap();
        }
        Some(token)
    }

    fn manage(&self, arguments: &[&str]) {
        let mut command = self.tool.command(arguments);
        let label = if arguments[0] == "--init-token" {
            &["--label", "web"][..]
        } else {
            &[]
        };
        command.args(label).args(["--pin", PIN]);
        let done = finish(self.furnished(command), "");
        assert_eq!(done.code, 0, "{}", done.all());
    }

    fn furnished(&self, mut command: Command) -> Command {
        command.env("SOFTHSM2_CONF", self.place.path("softhsm2.conf"));
        command
    }

    fn uri(&self, name: &str) -> String {
        let (module, pin) = (self.module.display(), self.place.path("pin"));
        let pin = pin.display();
        format!("pkcs11:token=web;object={name}?module-path={module}&pin-source={pin}")
    }

    /// An entry of `certificates`.
    pub(crate) fn pair(&self, name: &str) -> String {
        format!("{{ chain = \"{name}.crt\", key = \"{}\" }}", self.uri(name))
    }

    fn shape(&self, backend: &Backend, names: &[&str]) -> Shape {
        let pairs = names.iter().map(|name| self.pair(name));
        let pairs: Vec<_> = ["\"site.pem\"".to_owned()]
            .into_iter()
            .chain(pairs)
            .collect();
        Shape::new(backend.address).certificates(&format!("[{}]", pairs.join(", ")))
    }

    #[track_caller]
    fn start(&self, shape: &Shape) -> Becket {
        Becket::start_as(&self.place, shape, |command| {
            command.env("SOFTHSM2_CONF", self.place.path("softhsm2.conf"));
        })
    }

    fn check(&self, shape: &Shape) -> Finished {
        self.place.write("becket.toml", &shape.text());
        let command = Becket::command(&self.place, &["check", "--config", "becket.toml"]);
        finish(self.furnished(command), "")
    }

    fn pull(&self) {
        fs::rename(self.place.path("tokens"), self.place.path("pulled")).unwrap();
    }

    fn plug(&self) {
        fs::rename(self.place.path("pulled"), self.place.path("tokens")).unwrap();
    }

    fn trust(&self, version: &'static SupportedProtocolVersion) -> Trust {
        Trust::only(&self.place, version)
    }
}

/// The process that speaks with the token.
fn agent(becket: &Becket) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", becket.pid())).ok()?;
    let children =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    let mut pids = children.iter().flat_map(|list| list.split_whitespace());
    let pid = pids.find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "becket-token\n")
    });
    pid?.parse().ok()
}

fn signal(pid: u32, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

#[track_caller]
fn visit(becket: &Becket, trust: &Trust, name: &str) -> String {
    let mut client = Client::connect_as(becket.web, trust, name).expect("a handshake");
    client.ask(REQUEST).expect("an answer");
    drop(client);
    let line = becket.next_access();
    line["handshake"].as_str().expect("a kind").to_owned()
}

fn gets_in(becket: &Becket, trust: &Trust, name: &str) -> bool {
    Client::connect_as(becket.web, trust, name).is_ok()
}

fn number(becket: &Becket, name: &str) -> f64 {
    becket
        .metrics()
        .sum(&format!("becket_token_{name}"), &["token=\"web\""])
}

#[test]
fn keys_of_every_kind_sign_and_sessions_resume() {
    let kinds = [
        ("rsa", Key::Rsa),
        ("ec", Key::Ecdsa),
        ("long", Key::LongEcdsa),
    ];
    let Some(token) = SoftToken::with(&kinds) else {
        return;
    };
    let backend = Backend::http("well met");
    let becket = token.start(&token.shape(&backend, &["rsa", "ec", "long"]));
    let mut full = 0;
    for version in VERSIONS {
        for (name, _) in kinds {
            let name = format!("{name}.example.org");
            for trust in [token.trust(version), token.trust(version).without_tickets()] {
                assert_eq!(visit(&becket, &trust, &name), "full");
                full += 1;
                full += u64::from(visit(&becket, &trust, &name) == "full");
            }
        }
    }
    assert_eq!(number(&becket, "signatures_total"), full as f64);
    assert_eq!(number(&becket, "failures_total"), 0.0);
    assert_eq!(
        (
            number(&becket, "available"),
            number(&becket, "starts_total")
        ),
        (1.0, 1.0)
    );
    let metrics = becket.metrics();
    assert_eq!(metrics.sum("becket_signatures_in_flight", &[]), 0.0);
    // Nobody but the agent has loaded the module.
    let maps = |pid| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(!maps(becket.pid()).contains("libsofthsm2"));
    assert!(becket.status()["tokens"][0]["available"].as_bool().unwrap());
}

#[test]
fn a_token_that_is_pulled_costs_new_clients_only_and_comes_back() {
    let Some(token) = SoftToken::with(&[("rsa", Key::Rsa)]) else {
        return;
    };
    let backend = Backend::http("well met");
    let becket = token.start(&token.shape(&backend, &["rsa"]));
    let known = token.trust(&TLS13);
    assert_eq!(visit(&becket, &known, "rsa.example.org"), "full");
    token.pull();
    for version in VERSIONS {
        let error = Client::connect_as(becket.web, &token.trust(version), "rsa.example.org");
        let error = error.unwrap_err().to_string();
        assert!(error.contains("InternalError"), "{error}");
        assert_eq!(becket.next_reason(), "token");
    }
    assert_eq!(visit(&becket, &known, "rsa.example.org"), "psk");
    eventually("it is known", || number(&becket, "available") == 0.0);
    let problem = becket.status()["tokens"][0]["fault"].clone();
    assert!(problem.is_string(), "{problem}");
    assert!(number(&becket, "failures_total") >= 1.0);
    token.plug();
    eventually("the token is back", || {
        gets_in(&becket, &token.trust(&TLS12), "rsa.example.org")
    });
    assert_eq!(number(&becket, "available"), 1.0);
    let log = becket.log();
    for line in ["\"token not available\"", "\"token available\""] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
    assert!(!log.contains(PIN));
}

#[test]
fn an_agent_that_dies_or_hangs_is_replaced_and_stops_nobody_else() {
    let Some(token) = SoftToken::with(&[("rsa", Key::Rsa)]) else {
        return;
    };
    let backend = Backend::http("well met");
    let becket = token.start(&token.shape(&backend, &["rsa"]).timeouts("token = \"1s\""));
    let trust = || token.trust(&TLS13).without_tickets();
    for how in ["-KILL", "-STOP"] {
        eventually("it serves", || {
            gets_in(&becket, &trust(), "rsa.example.org")
        });
        let starts = number(&becket, "starts_total");
        signal(agent(&becket).expect("an agent"), how);
        // Many at once: more than may be under way.
        let (web, more) = (becket.web, 40);
        let refused: Vec<_> = (0..more)
            .map(|_| {
                let trust = trust();
                thread::spawn(move || Client::connect_as(web, &trust, "rsa.example.org").is_err())
            })
            .collect();
        // The key of this name is in a file.
        assert!(gets_in(
            &becket,
            &Trust::new(&token.place),
            "www.example.org"
        ));
        for client in refused {
            client.join().unwrap();
        }
        eventually("another agent", || number(&becket, "starts_total") > starts);
    }
    eventually("it serves", || {
        gets_in(&becket, &trust(), "rsa.example.org")
    });
    becket.idle();
    assert_eq!(number(&becket, "in_flight"), 0.0);
    assert_eq!(becket.metrics().closed("internal"), 0);
}

#[test]
fn many_clients_at_once_are_served() {
    let Some(token) = SoftToken::with(&[("ec", Key::Ecdsa)]) else {
        return;
    };
    let backend = Backend::http("well met");
    let becket = token.start(&token.shape(&backend, &["ec"]));
    let web = becket.web;
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let trust = token.trust(VERSIONS[number % 2]).without_tickets();
            thread::spawn(move || {
                (0..25)
                    .filter(|_| {
                        let client = Client::connect_as(web, &trust, "ec.example.org");
                        client.is_ok_and(|mut client| client.ask(REQUEST).is_ok())
                    })
                    .count()
            })
        })
        .collect();
    let served: usize = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .sum();
    assert_eq!(served, 100);
    assert_eq!(number(&becket, "failures_total"), 0.0);
}

#[test]
fn a_reload_takes_another_key_of_the_same_agent_and_a_drain_waits() {
    let Some(token) = SoftToken::with(&[("rsa", Key::Rsa), ("ec", Key::Ecdsa)]) else {
        return;
    };
    let backend = Backend::http("well met");
    let shape = token.shape(&backend, &["rsa"]);
    let mut becket = token.start(&shape);
    let before = agent(&becket).expect("an agent");
    let other = shape.certificates(&format!("[{}]", token.pair("ec")));
    token.place.write("becket.toml", &other.text());
    assert!(becket.reload(), "{}", becket.log());
    assert_eq!(
        visit(&becket, &token.trust(&TLS13), "ec.example.org"),
        "full"
    );
    assert_eq!(agent(&becket), Some(before));
    // A token that is away refuses no reload that names what it had before.
    token.pull();
    assert!(!gets_in(
        &becket,
        &token.trust(&TLS12).without_tickets(),
        "ec.example.org"
    ));
    assert!(becket.reload(), "{}", becket.log());
    token.plug();
    eventually("the token is back", || {
        gets_in(&becket, &token.trust(&TLS12), "ec.example.org")
    });
    becket.idle();
    becket.signal(Signal::TERM);
    eventually("becket ends", || becket.ended() == Some(0));
}

#[test]
fn check_signs_with_the_token_and_says_what_is_wrong() {
    let kinds = [
        ("rsa", Key::Rsa),
        ("ec", Key::Ecdsa),
        ("foreign", Key::Ecdsa),
    ];
    let Some(token) = SoftToken::with(&kinds) else {
        return;
    };
    let backend = Backend::http("well met");
    let shape = token.shape(&backend, &["rsa", "ec"]);
    let good = token.check(&shape);
    assert_eq!(good.code, 0, "{}", good.all());
    assert!(
        good.all()
            .contains("handshake rsa.example.org: TLSv1.2 RSA"),
        "{}",
        good.all()
    );
    let text = shape.text();
    for (from, to, fault) in [
        (
            "libsofthsm2.so",
            "libsofthsm3.so",
            "cannot open shared object file",
        ),
        ("token=web", "token=other", "no such token"),
        (
            "object=rsa",
            "object=nobody",
            "the token has no such private key",
        ),
        (
            "object=ec",
            "object=foreign",
            "the key on the token belongs to another certificate",
        ),
        ("/pin\"", "/none\"", "pin-source: no such file or directory"),
        (
            "&pin-source=",
            "&pin-value=1234&pin-source=",
            "pin-value is not taken",
        ),
    ] {
        token.place.write("becket.toml", &text.replace(from, to));
        let command = Becket::command(&token.place, &["check", "--config", "becket.toml"]);
        let found = finish(token.furnished(command), "").all();
        assert!(found.contains(fault), "{to}: {found}");
        assert!(!found.contains("pin-value=1234"), "{found}");
    }
    // One attempt, whatever the number of keys: three may lock a token.
    token.place.write("pin", "161803");
    let wrong = token.check(&shape);
    assert_eq!(wrong.code, 2);
    assert_eq!(
        wrong.all().matches("PinIncorrect").count(),
        2,
        "{}",
        wrong.all()
    );
    assert!(!wrong.all().contains("161803"));
}
