//! SIGHUP loads new certificates, listeners and backends without losing clients. An invalid configuration
//! changes nothing and is reported.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use becket_e2e::{
    Backend, Becket, Client, Key, Place, REQUEST, Shape, Tool, Trust, becket_program, eventually,
    finish, fresh_address, until,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Returns the certificate that a new client receives.
fn shown(at: SocketAddr, trust: &Trust) -> Vec<u8> {
    // Disable resumption, because a session keeps the certificate of its full handshake.
    let fresh = trust.changed(|config| config.resumption = rustls::client::Resumption::disabled());
    let client = Client::connect(at, &fresh).unwrap();
    client.tls.peer_certificates().unwrap()[0].to_vec()
}

fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .unwrap()
        .to_vec()
}

/// Clients that connect one after another until they are stopped.
struct Visitors {
    over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Visitors {
    fn start(visit: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        let (over, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let visit = Arc::new(visit);
        let threads = (0..3).map(|_| {
            let (over, served, visit) = (Arc::clone(&over), Arc::clone(&served), visit.clone());
            thread::spawn(move || {
                let mut failures = Vec::new();
                while !over.load(SeqCst) {
                    match visit() {
                        Ok(()) => drop(served.fetch_add(1, SeqCst)),
                        Err(failure) => failures.push(failure),
                    }
                }
                failures
            })
        });
        let threads = threads.collect();
        Self {
            over,
            served,
            threads,
        }
    }

    /// Waits until several more clients have been served.
    #[track_caller]
    fn more(&self) {
        let before = self.served.load(SeqCst);
        eventually("visitors are served", || {
            self.served.load(SeqCst) > before + 5
        });
    }

    /// Stops the clients and returns their errors.
    fn end(self) -> Vec<String> {
        self.over.store(true, SeqCst);
        let failures = self
            .threads
            .into_iter()
            .map(|thread| thread.join().unwrap());
        failures.flatten().collect()
    }
}

/// Runs `becket reload` and returns its exit code and output.
fn ask_to_reload(place: &Place, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(becket_program());
    command
        .arg("reload")
        .args(arguments)
        .current_dir(place.folder());
    let asked = finish(command, "");
    (asked.code, asked.all())
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_reload_command_prints_the_result() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let admin = becket.admin.to_string();
    let socket = ["--socket", "admin.sock"];
    for place_flag in [["--config", "becket.toml"], socket] {
        assert_eq!(ask_to_reload(&place, &place_flag), (0, "reloaded\n".into()));
    }
    let (code, said) = ask_to_reload(&place, &["--admin", &admin]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("accepted: admin.socket"), "{said}");
    place.write("site.pem", "none");
    let (code, said) = ask_to_reload(&place, &socket);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("nothing changed") && said.contains("site.pem"),
        "{said}"
    );
    // Without options the command uses the configuration path of the packages, which does not exist here.
    assert_eq!(ask_to_reload(&place, &[]).0, 1);
    let status = becket.status();
    assert_eq!(
        status["reloads"].to_string(),
        r#"{"done":2,"refused":1,"running":false}"#
    );
    drop(becket);
    assert_eq!(ask_to_reload(&place, &socket).0, 1);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn curl_is_not_affected_by_reloads() {
    let Some(curl) = Tool::find("curl") else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let becket = Becket::start(&place, &shape);
    let connect = format!("::{}", becket.web);
    let ca = place.text("ca.pem");
    let visitors = Visitors::start(move || {
        let fixed = [
            "-sS",
            "--noproxy",
            "*",
            "--cacert",
            &ca,
            "--connect-to",
            &connect,
        ];
        let run = curl.run([&fixed[..], &["https://www.example.org/"]].concat(), "");
        (run.stdout == "well met")
            .then_some(())
            .ok_or_else(|| run.all())
    });
    for round in 0..5 {
        visitors.more();
        // Change a setting each time.
        let text = shape
            .clone()
            .timeouts(&format!("idle = \"{}s\"", 100 + round))
            .text();
        place.write("becket.toml", &text);
        assert!(becket.reload(), "{}", becket.log());
    }
    visitors.more();
    assert_eq!(visitors.end(), [""; 0]);
}

#[test]
fn new_clients_receive_the_new_certificate_and_old_connections_continue() {
    let place = Place::new();
    let backend = Backend::echo();
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let trust = Trust::new(&place);
    let mut old = Client::connect(becket.web, &trust).unwrap();
    old.write_all(b"x").unwrap();
    old.read_exact(&mut [0]).unwrap();
    let before = shown(becket.web, &trust);
    let renewed = place.issue("site.pem", &["www.example.org"], Key::Ecdsa);
    assert_eq!(
        shown(becket.web, &trust),
        before,
        "loaded before the reload"
    );
    assert!(becket.reload());
    eventually("every worker uses the new certificate", || {
        (0..8).all(|_| shown(becket.web, &trust) == der(&renewed.certificate))
    });
    old.write_all(b"y").unwrap();
    old.read_exact(&mut [0]).unwrap();
    old.close_notify().unwrap();
    assert_eq!(old.read(&mut [0]).unwrap(), 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn only_certificates_are_reloaded_with_command_line_options() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let (web, admin) = (fresh_address(), fresh_address());
    let addresses = [web, backend.address, admin].map(|address| address.to_string());
    let flags = [
        "run",
        "--frontend",
        &addresses[0],
        "--backend",
        &addresses[1],
        "--admin",
        &addresses[2],
        "--workers",
        "2",
        "site.pem",
    ];
    let command = Becket::command(&place, &flags);
    let becket = Becket::spawn(command, place.folder(), web, admin);
    becket.ready();
    let trust = Trust::new(&place);
    let before = shown(web, &trust);
    let renewed = place.issue("site.pem", &["www.example.org"], Key::Ecdsa);
    assert_ne!(before, der(&renewed.certificate));
    assert!(becket.reload(), "{}", becket.log());
    eventually("the new certificate is served", || {
        shown(web, &trust) == der(&renewed.certificate)
    });
    assert!(Client::connect(web, &trust).unwrap().ask(REQUEST).is_ok());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn an_invalid_configuration_changes_nothing_and_all_errors_are_reported() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let becket = Becket::start(&place, &shape);
    let ok = || becket.metrics().sum("becket_reload_ok", &[]) as u64;
    let trust = Trust::new(&place);
    let new = fresh_address();
    let broken = [
        "this is no TOML [".to_owned(),
        shape
            .text()
            .replace("site.pem", "gone.pem")
            .replace("backend = \"app\"", "backend = \"ape\""),
        shape.clone().section("[[colour]]").text(),
        // One port is in use and one is free: neither is bound.
        shape
            .clone()
            .section(&format!(
                "[[listener]]\nname = \"two\"\nbind = [\"{new}\", \"{}\"]\n\
                 certificates = [\"site.pem\"]\nbackend = \"app\"",
                backend.address
            ))
            .text(),
    ];
    for text in broken {
        place.write("becket.toml", &text);
        assert!(!becket.reload(), "reloaded:\n{text}");
        assert_eq!(ok(), 0);
        assert!(
            Client::connect(becket.web, &trust)
                .unwrap()
                .ask(REQUEST)
                .is_ok()
        );
        assert!(std::net::TcpStream::connect(new).is_err());
    }
    for word in [
        "gone.pem",
        "listener[web].backend",
        "colour",
        "listener[two].bind",
        &backend.address.to_string(),
    ] {
        becket.says(word);
    }
    place.write("becket.toml", &shape.text());
    assert!(becket.reload());
    assert_eq!(ok(), 1);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn backends_and_routes_change_for_new_clients() {
    let place = Place::new();
    let (one, two) = (Backend::echo(), Backend::http("two"));
    let shape = Shape::new(one.address);
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let mut old = Client::connect(becket.web, &trust).unwrap();
    old.write_all(b"x").unwrap();
    old.read_exact(&mut [0]).unwrap();
    let from_to = (one.address.to_string(), two.address.to_string());
    place.write("becket.toml", &shape.text().replace(&from_to.0, &from_to.1));
    assert!(becket.reload());
    let new = || Client::connect(becket.web, &trust)?.ask(REQUEST);
    eventually("the new server answers", || {
        new().unwrap().ends_with(b"two")
    });
    old.write_all(b"y").unwrap();
    old.read_exact(&mut [0]).unwrap();
    let status = becket.status();
    assert_eq!(
        status["backends"][0]["servers"][0]["addresses"][0],
        from_to.1
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn listeners_can_be_added_and_removed_without_a_reset_of_accepted_clients() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let with = fresh_address();
    let shape = Shape::new(backend.address).listener("defer-accept = \"0s\"");
    let second = format!(
        "[[listener]]\nname = \"second\"\nbind = [\"{with}\"]\ncertificates = [\"site.pem\"]\n\
         backend = \"app\"\ndefer-accept = \"0s\""
    );
    let both = shape.clone().section(&second).text();
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    // The kernel may refuse a connection, but an accepted client must be served.
    let theirs = trust.clone();
    let visitors = Visitors::start(move || {
        match Client::connect(with, &theirs).and_then(|mut client| client.ask(REQUEST)) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                thread::yield_now();
                Ok(())
            }
            Err(error) => Err(format!("{error:?}")),
        }
    });
    for _ in 0..3 {
        place.write("becket.toml", &both);
        assert!(becket.reload(), "{}", becket.log());
        eventually("the second listener serves", || {
            Client::connect(with, &trust).is_ok_and(|mut client| client.ask(REQUEST).is_ok())
        });
        visitors.more();
        place.write("becket.toml", &shape.text());
        assert!(becket.reload(), "{}", becket.log());
        until("the second listener is closed", || {
            let refused = std::net::TcpStream::connect(with).err()?;
            (refused.kind() == io::ErrorKind::ConnectionRefused).then_some(())
        });
        assert!(
            Client::connect(becket.web, &trust)
                .unwrap()
                .ask(REQUEST)
                .is_ok()
        );
    }
    assert_eq!(visitors.end(), [""; 0]);
}
