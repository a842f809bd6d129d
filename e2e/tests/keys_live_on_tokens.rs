//! Keys on a PKCS#11 token sign like keys in files. A token failure affects only new clients, and becket recovers automatically.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;
use std::thread;

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Client, Finished, Key, Place, REQUEST, Shape, Signal, SoftToken,
    Trust, eventually, finish, nobody, open_to_all,
};
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

use crate::upgrades_lose_nothing::{TWO_WORKERS, upgrade};

mod hostile;

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// Place with a token and keys.
struct Site {
    place: Place,
    token: SoftToken,
}

impl Site {
    /// Creates a key on the token and a chain `NAME.crt` for `NAME.example.org`, for each `NAME`; the key's URI contains `object=NAME`.
    #[track_caller]
    fn with(keys: &[(&str, Key)]) -> Option<Self> {
        let place = Place::new();
        let token = SoftToken::new(&place)?;
        for (name, kind) in keys {
            let names = [format!("{name}.example.org")];
            let bundle = place.authority.issue(&[&names[0]], *kind);
            let (_, key) = bundle.write_pair(place.folder(), name);
            token.import(name, &key);
            fs::remove_file(key).unwrap();
        }
        Some(Self { place, token })
    }

    /// Returns an entry of `certificates`.
    fn pair(&self, name: &str) -> String {
        let uri = self.token.uri(name);
        format!("{{ chain = \"{name}.crt\", key = \"{uri}\" }}")
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
        Becket::start_as(&self.place, shape, |command| self.token.shows_to(command))
    }

    /// Runs `becket check` with `becket.toml`.
    fn check(&self) -> Finished {
        let mut command = Becket::command(&self.place, &["check", "--config", "becket.toml"]);
        self.token.shows_to(&mut command);
        finish(command, "")
    }

    fn trust(&self, version: &'static SupportedProtocolVersion) -> Trust {
        Trust::only(&self.place, version)
    }
}

/// Returns the PID of the newest token agent.
fn agent(becket: &Becket) -> Option<u32> {
    becket.children_named("becket-token").pop()
}

fn signal(pid: u32, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    // The process may have exited in the meantime.
    let is_there = fs::exists(format!("/proc/{pid}")).unwrap();
    assert!(sent.unwrap().success() || !is_there);
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
        ("ed", Key::Ed25519),
    ];
    let Some(site) = Site::with(&kinds) else {
        return;
    };
    let backend = Backend::http("well met");
    let becket = site.start(&site.shape(&backend, &["rsa", "ec", "long", "ed"]));
    let mut full = 0;
    for version in VERSIONS {
        for (name, _) in kinds {
            let name = format!("{name}.example.org");
            for trust in [site.trust(version), site.trust(version).without_tickets()] {
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
    // Only the agent has loaded the module.
    let maps = |pid| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    for pid in [becket.pid(), becket.child()] {
        assert!(!maps(pid).contains("libsofthsm2"));
    }
    assert!(becket.status()["tokens"][0]["available"].as_bool().unwrap());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn an_unplugged_token_affects_only_new_clients_and_recovers() {
    let Some(site) = Site::with(&[("rsa", Key::Rsa)]) else {
        return;
    };
    let backend = Backend::http("well met");
    let becket = site.start(&site.shape(&backend, &["rsa"]));
    let known = site.trust(&TLS13);
    assert_eq!(visit(&becket, &known, "rsa.example.org"), "full");
    site.token.pull();
    for version in VERSIONS {
        let error = Client::connect_as(becket.web, &site.trust(version), "rsa.example.org");
        let error = error.unwrap_err().to_string();
        assert!(error.contains("InternalError"), "{error}");
        assert_eq!(becket.next_reason(), "token");
    }
    assert_eq!(visit(&becket, &known, "rsa.example.org"), "psk");
    eventually("the loss is reported", || {
        number(&becket, "available") == 0.0
    });
    let problem = becket.status()["tokens"][0]["fault"].clone();
    assert!(problem.is_string(), "{problem}");
    assert!(number(&becket, "failures_total") >= 1.0);
    site.token.plug();
    eventually("the token works again", || {
        gets_in(&becket, &site.trust(&TLS12), "rsa.example.org")
    });
    assert_eq!(number(&becket, "available"), 1.0);
    let lines = [
        "\"PKCS#11 token not available\"",
        "\"PKCS#11 token available\"",
    ];
    lines.iter().for_each(|line| becket.says(line));
    let log = becket.log();
    for line in lines {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
    assert!(!log.contains(SoftToken::PIN));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn an_agent_that_dies_or_hangs_is_replaced_and_other_keys_still_work() {
    let Some(site) = Site::with(&[("rsa", Key::Rsa)]) else {
        return;
    };
    let backend = Backend::http("well met");
    let shape = site.shape(&backend, &["rsa"]);
    let shape = shape.process("workers = 2\nsandbox = \"off\"");
    let becket = site.start(&shape.timeouts("pkcs11 = \"3s\""));
    let status = fs::read_to_string(format!("/proc/{}/status", agent(&becket).unwrap()));
    // The agent has its own sandbox, independent of the setting for the worker process.
    assert!(status.unwrap().contains("Seccomp:\t2\n"));
    let trust = || site.trust(&TLS13).without_tickets();
    for how in ["-KILL", "-STOP"] {
        eventually("becket serves", || {
            gets_in(&becket, &trust(), "rsa.example.org")
        });
        // SoftHSM loses a token if it is killed during a login, so wait until no agent is being replaced.
        eventually("no signature is in progress", || {
            number(&becket, "in_flight") == 0.0 && number(&becket, "available") == 1.0
        });
        let starts = number(&becket, "starts_total");
        signal(agent(&becket).expect("it runs"), how);
        // Connect more clients than may wait for the agent at once.
        let (web, more) = (becket.web, 40);
        let refused: Vec<_> = (0..more)
            .map(|_| {
                let trust = trust();
                thread::spawn(move || Client::connect_as(web, &trust, "rsa.example.org").is_err())
            })
            .collect();
        // The key of this name is in a file. On a slow machine several attempts may be needed.
        eventually("a client of a key in a file is served", || {
            gets_in(&becket, &Trust::new(&site.place), "www.example.org")
        });
        for client in refused {
            client.join().unwrap();
        }
        eventually("another agent starts", || {
            number(&becket, "starts_total") > starts
        });
    }
    eventually("becket serves", || {
        gets_in(&becket, &trust(), "rsa.example.org")
    });
    becket.idle();
    assert_eq!(number(&becket, "in_flight"), 0.0);
    assert_eq!(becket.metrics().closed("internal"), 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_sandboxed_process_gets_agents_after_failures_reloads_and_upgrades() {
    let Some(site) = Site::with(&[("rsa", Key::Rsa), ("ec", Key::Ecdsa)]) else {
        return;
    };
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).process(TWO_WORKERS);
    let becket = site.start(&shape);
    let serves = |name| gets_in(&becket, &site.trust(&TLS13).without_tickets(), name);
    let reload = |keys: &[&str]| {
        let pairs = keys.iter().map(|key| site.pair(key));
        let pairs: Vec<_> = ["\"site.pem\"".to_owned()]
            .into_iter()
            .chain(pairs)
            .collect();
        let shape = shape
            .clone()
            .certificates(&format!("[{}]", pairs.join(", ")));
        site.place.write("becket.toml", &shape.text());
        assert!(becket.reload(), "{}", becket.log());
    };
    // Add the first token, and then another key of it.
    reload(&["rsa"]);
    assert!(serves("rsa.example.org"));
    reload(&["rsa", "ec"]);
    assert!(serves("ec.example.org"));
    let threads = fs::read_dir(format!("/proc/{}/task", becket.child())).unwrap();
    let mut threads = threads.flatten().map(|thread| thread.path().join("status"));
    let is_filtered = |status: &str| status.contains("Seccomp:\t2\n");
    // Threads of the previous configuration may have exited.
    assert!(
        threads
            .all(|status| fs::read_to_string(status).map_or(true, |status| is_filtered(&status)))
    );

    signal(agent(&becket).expect("an agent"), "-KILL");
    eventually("becket serves again", || serves("rsa.example.org"));
    upgrade(&becket);
    eventually("the new process serves", || serves("rsa.example.org"));
    // The new supervisor program starts this agent.
    let starts = number(&becket, "starts_total");
    signal(agent(&becket).expect("an agent"), "-KILL");
    eventually("another agent starts", || {
        number(&becket, "starts_total") > starts && serves("rsa.example.org")
    });
    assert_eq!(becket.status()["refused_calls"], serde_json::json!({}));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_reload_loads_another_key_and_is_not_delayed_by_an_unplugged_token() {
    let Some(site) = Site::with(&[("rsa", Key::Rsa), ("ec", Key::Ecdsa)]) else {
        return;
    };
    let backend = Backend::http("well met");
    let shape = site.shape(&backend, &["rsa"]);
    let mut becket = site.start(&shape);
    let before = agent(&becket);
    let other = shape.certificates(&format!("[{}]", site.pair("ec")));
    site.place.write("becket.toml", &other.text());
    assert!(becket.reload(), "{}", becket.log());
    assert_eq!(
        visit(&becket, &site.trust(&TLS13), "ec.example.org"),
        "full"
    );
    assert_ne!(agent(&becket), before);
    // With an unplugged token, a reload with the same keys succeeds.
    site.token.pull();
    assert!(!gets_in(
        &becket,
        &site.trust(&TLS12).without_tickets(),
        "ec.example.org"
    ));
    assert!(becket.reload(), "{}", becket.log());
    site.token.plug();
    eventually("the token works again", || {
        gets_in(&becket, &site.trust(&TLS12), "ec.example.org")
    });
    becket.idle();
    becket.signal(Signal::TERM);
    assert_eq!(becket.ended(), Some(0));
}

/// Starts becket as root with another user for the worker process.
#[test]
#[ignore = "slow: .ci/run test"]
fn the_process_user_opens_the_token_and_root_reads_the_pin() {
    let Some(user) = nobody() else { return };
    let Some(site) = Site::with(&[("ec", Key::Ecdsa)]) else {
        return;
    };
    let place = &site.place;
    open_to_all(place);
    for name in ["site.pem", "pin"] {
        fs::set_permissions(place.path(name), Permissions::from_mode(0o600)).unwrap();
    }
    let mut files = vec![site.token.files()];
    while let Some(path) = files.pop() {
        chown(&path, Some(user), None).unwrap();
        let below = fs::read_dir(&path).into_iter().flatten().flatten();
        files.extend(below.map(|entry| entry.path()));
    }
    let backend = Backend::http("well met");
    let shape = site.shape(&backend, &["ec"]).process(AS_NOBODY);
    place.write("becket.toml", &shape.text());
    let mut command = Becket::command(place, &["run", "--config", "becket.toml"]);
    site.token.shows_to(&mut command);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    let serves = || {
        eventually("the token signs", || {
            let trust = site.trust(&TLS13).without_tickets();
            gets_in(&becket, &trust, "ec.example.org")
        });
    };
    serves();
    let first = agent(&becket).expect("an agent");
    let status = fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    for line in [
        format!("Uid:\t{user}\t{user}\t{user}\t{user}\n"),
        "CapEff:\t0000000000000000\n".to_owned(),
        "NoNewPrivs:\t1\n".to_owned(),
        "Seccomp:\t2\n".to_owned(),
    ] {
        assert!(status.contains(&line), "{line}{status}");
    }
    let owner = fs::metadata(format!("/proc/{first}/maps")).unwrap().uid();
    assert_eq!(owner, 0, "its user cannot attach a debugger");
    assert!(becket.children_named("exe").is_empty());
    // The next agent receives the PIN from the same file, which it cannot open itself.
    signal(first, "-KILL");
    eventually("another agent starts", || {
        agent(&becket).is_some_and(|next| next != first)
    });
    serves();
    assert!(becket.reload(), "{}", place.read("becket.log"));
    serves();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn check_signs_with_the_token_and_reports_errors() {
    let kinds = [
        ("rsa", Key::Rsa),
        ("ec", Key::Ecdsa),
        ("foreign", Key::Ecdsa),
    ];
    let Some(site) = Site::with(&kinds) else {
        return;
    };
    let backend = Backend::http("well met");
    let shape = site.shape(&backend, &["rsa", "ec"]);
    site.place.write("becket.toml", &shape.text());
    let good = site.check();
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
            "libsofthsm3.so: No such file or directory",
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
        ("/pin\"", "/none\"", "pin-source: No such file or directory"),
        (
            "&pin-source=",
            "&pin-value=1234&pin-source=",
            "pin-value is not supported",
        ),
    ] {
        site.place.write("becket.toml", &text.replace(from, to));
        let found = site.check().all();
        assert!(found.contains(fault), "{to}: {found}");
        assert!(!found.contains("pin-value=1234"), "{found}");
    }
    // One login attempt regardless of the number of keys, because three may lock a token.
    site.place.write("pin", "161803");
    site.place.write("becket.toml", &text);
    let wrong = site.check();
    assert_eq!(wrong.code, 2);
    assert_eq!(
        wrong.all().matches("PinIncorrect").count(),
        2,
        "{}",
        wrong.all()
    );
    assert!(!wrong.all().contains("161803"));
}
