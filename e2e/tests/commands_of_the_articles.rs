//! Command lines and settings of stud and stunnel from the articles on TLS terminators. Becket starts with each of them, or rejects it
//! with a message that gives the reason. Only addresses and files are replaced.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use becket_e2e::{
    Backend, Bundle, Finished, Kept, Key, OpenSsl, Place, becket_program, eventually, finish,
    fresh_address, fresh_host,
};

/// Command line or configuration file from an article.
struct Row {
    /// Article and section.
    source: &'static str,
    /// Command line with the addresses of the article.
    command: &'static str,
    /// Configuration file named in the command line, unless it is a PEM file.
    config: &'static str,
    /// PEM file that replaces the file of the article.
    pem: &'static str,
    outcome: Outcome,
}

#[derive(Clone, Copy)]
enum Outcome {
    /// Becket starts with this message and serves.
    Serves(&'static str),
    /// Becket exits with this message.
    Refused(&'static str),
}

const FRONT: [&str; 2] = ["172.31.200.15,443", "10.0.3.20,443"];
const BACK: [&str; 2] = ["127.0.0.1,80", "10.0.0.3,80"];

/// Command of round one. Its PEM file contains a certificate, its key and DHE parameters.
const ROUND_ONE: &str = "stud -n 2 -f 172.31.200.15,443 -b 127.0.0.1,80 -c ALL \
    -B 1000 -C 20000 --write-proxy PEM";

const ROWS: [Row; 5] = [
    Row {
        source: "Bernat, TLS termination: stunnel, nginx & stud (2011), conclusion; a key of 2048 bits",
        command: ROUND_ONE,
        config: "",
        pem: "site.pem",
        outcome: Outcome::Serves("suites without forward secrecy or an AEAD are not supported"),
    },
    Row {
        source: "the same, with the key of 1024 bits that the article has",
        command: ROUND_ONE,
        config: "",
        pem: "small.pem",
        outcome: Outcome::Refused("RSA of at least 2048 bits"),
    },
    Row {
        source: "HAProxy Technologies, Scaling out SSL, Let's try Stud shared cache",
        command: "stud -n 2 -C 10000 -U 10.0.3.20,8888 -P 10.0.0.17 -f 10.0.3.20,443 -b 10.0.0.3,80 PEM",
        config: "",
        pem: "site.pem",
        outcome: Outcome::Serves("none is sent to stud"),
    },
    Row {
        source: "Bernat, round 2 (2011), Intel Accelerator Engine: an engine in stunnel.conf, of which the text has no listing",
        command: "stunnel stunnel.conf",
        config: "foreground = yes\nengine = aesni\ncert = PEM\n[https]\naccept = ACCEPT\nconnect = CONNECT\n",
        pem: "site.pem",
        outcome: Outcome::Serves("engine: not needed: engines are not supported"),
    },
    Row {
        source: "the same for stud",
        command: "stud --config stud.conf",
        config: "frontend = FRONT\nbackend = BACK\npem-file = PEM\nssl-engine = aesni\n",
        pem: "site.pem",
        outcome: Outcome::Serves("engine: not needed: engines are not supported"),
    },
];

/// Returns the command of an article, run in the folder of a test.
fn command(place: &Place, words: &str) -> Command {
    let mut command = Command::new(becket_program());
    command
        .args(words.split_whitespace())
        .current_dir(place.folder());
    command
}

fn comma(at: SocketAddr) -> String {
    format!("{},{}", at.ip(), at.port())
}

fn place() -> Place {
    let place = Place::new();
    let site = place.issue("site.pem", &["www.example.org"], Key::Rsa);
    let dhe = "-----BEGIN DH PARAMETERS-----\nMAYCAQsCAQI=\n-----END DH PARAMETERS-----\n";
    place.write("site.pem", &(site.pem() + dhe));
    place
}

/// Creates a certificate with a 1024-bit RSA key.
fn small(openssl: &OpenSsl, place: &Place) {
    let [key, certificate] = ["small.key", "small.crt"].map(|name| place.text(name));
    let kind = [
        "req",
        "-x509",
        "-newkey",
        "rsa:1024",
        "-nodes",
        "-subj",
        "/CN=small",
    ];
    let files = ["-keyout", &key, "-out", &certificate];
    let run = openssl.0.run([&kind[..], &files].concat(), "");
    assert_eq!(run.code, 0, "{}", run.all());
    place.write(
        "small.pem",
        &(place.read("small.crt") + &place.read("small.key")),
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn each_command_starts_and_serves_or_is_rejected_with_the_reason() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = place();
    small(&openssl, &place);
    let backend = Backend::http("well met");
    for row in &ROWS {
        let (front, peer) = (fresh_address(), fresh_address());
        let replace = |text: &str| {
            let mut text =
                text.replace("10.0.3.20,8888", &format!("{},{}", front.ip(), peer.port()));
            for of in FRONT.iter().chain(&["FRONT"]) {
                text = text.replace(of, &comma(front));
            }
            for of in BACK.iter().chain(&["BACK"]) {
                text = text.replace(of, &comma(backend.address));
            }
            text.replace("10.0.0.17", &peer.ip().to_string())
                .replace("PEM", row.pem)
                .replace("ACCEPT", &front.to_string())
                .replace("CONNECT", &backend.address.to_string())
        };
        if let Some(file) = row.command.split(' ').find(|word| word.ends_with(".conf")) {
            place.write(file, &replace(row.config));
        }
        let mut command = command(&place, &replace(row.command));
        match row.outcome {
            Outcome::Refused(line) => {
                let run = finish(command, "");
                assert_eq!(run.code, 1, "{}: {}", row.source, run.all());
                let said = run.stderr.lines().filter(|said| said.contains(line));
                assert_eq!(said.count(), 1, "{}: {}", row.source, run.all());
            }
            Outcome::Serves(remark) => {
                let log = File::create(place.path("log")).unwrap();
                let _running = Kept(command.stderr(log).spawn().unwrap());
                eventually(row.source, || TcpStream::connect(front).is_ok());
                let run = openssl.ask(&place, front, &[]);
                assert!(
                    run.stdout.contains("well met"),
                    "{}: {}",
                    row.source,
                    run.all()
                );
                let log = place.read("log");
                assert!(log.contains(remark), "{}: {log}", row.source);
            }
        }
    }
}

/// Two hosts with the command of the article, each with the other as its peer. They share only the private key.
struct Farm {
    place: Place,
    hosts: [SocketAddr; 2],
    _backend: Backend,
    _running: [Kept; 2],
}

impl Farm {
    fn start(pems: [String; 2]) -> Self {
        let place = Place::new();
        let backend = Backend::http("well met");
        let (front, cache) = (fresh_address().port(), fresh_address().port());
        let ips = [fresh_host(), fresh_host()];
        let [first, second] = [0, 1].map(|host| {
            let (own, peer) = (ips[host], ips[1 - host]);
            place.write(&format!("{host}.pem"), &pems[host]);
            let line = format!(
                "stud -n 2 -C 10000 -U {own},{cache} -P {peer} -f {own},{front} -b {} {host}.pem",
                comma(backend.address)
            );
            let log = File::create(place.path(&format!("{host}.log"))).unwrap();
            Kept(command(&place, &line).stderr(log).spawn().unwrap())
        });
        let hosts = ips.map(|ip| SocketAddr::from((ip, front)));
        for at in hosts {
            eventually("the host accepts connections", || {
                TcpStream::connect(at).is_ok()
            });
        }
        Self {
            place,
            hosts,
            _backend: backend,
            _running: [first, second],
        }
    }

    /// Sends a request to a host. Does not verify the certificate, which is from another authority than the place's own.
    fn ask(&self, openssl: &OpenSsl, host: usize, flags: &[&str]) -> Finished {
        let to = self.hosts[host].to_string();
        let fixed = [
            "s_client",
            "-connect",
            &to,
            "-ign_eof",
            "-servername",
            "www.example.org",
        ];
        let run = openssl
            .0
            .run([&fixed[..], flags].concat(), "GET / HTTP/1.0\r\n\r\n");
        assert!(run.stdout.contains("well met"), "{}", run.all());
        run
    }

    /// Creates a session on one host and waits until it resumes on the other, in both directions.
    fn resumes_elsewhere(&self, openssl: &OpenSsl, version: &str, flags: &[&str]) {
        for (from, to) in [(0, 1), (1, 0)] {
            let file = self.place.text("session");
            let made = self.ask(openssl, from, &[flags, &["-sess_out", &file]].concat());
            assert!(made.stdout.contains("New, "), "{}", made.all());
            eventually("the session resumes", || {
                let run = self.ask(openssl, to, &[flags, &["-sess_in", &file]].concat());
                run.stdout.contains(&format!("Reused, {version}"))
            });
        }
    }
}

/// Returns the bundle with its key in PKCS#1, as `openssl rsa` writes it.
fn in_pkcs1(openssl: &OpenSsl, bundle: &Bundle) -> String {
    let run = openssl.0.run(["rsa", "-traditional"], &bundle.key);
    assert!(
        run.stdout.contains("BEGIN RSA PRIVATE KEY"),
        "{}",
        run.all()
    );
    format!("{}{}", bundle.certificate, run.stdout)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn two_hosts_with_the_articles_command_resume_each_others_sessions() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let authority = Place::new().authority;
    let rsa = authority.issue(&["www.example.org"], Key::Rsa);
    let ecdsa = authority.issue(&["www.example.org"], Key::Ecdsa).pem();
    for pems in [
        [rsa.pem(), in_pkcs1(&openssl, &rsa)],
        [ecdsa.clone(), ecdsa],
    ] {
        let farm = Farm::start(pems);
        farm.resumes_elsewhere(&openssl, "TLSv1.2", &["-tls1_2", "-no_ticket"]);
        farm.resumes_elsewhere(&openssl, "TLSv1.3", &["-tls1_3"]);
    }
}
