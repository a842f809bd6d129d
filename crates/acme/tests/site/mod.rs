//! Pebble, and a companion that orders from it. The companion runs as a process; the supervisor and the serving process are
//! played by the test.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use becket_acme::control::{Answer, Request, Row, ask};
use becket_config::acme::{Acme, AcmeCertificate, AcmeName, Authority, NameServerAddress};
use becket_config::notation::Text;
use becket_process::companion_link::{FromCompanion, ToCompanion};
use becket_process::protocol::{AcmeStart, Command as ToProcess, IS_STARTED, VERSION};
use becket_sys::fd_messages;
use becket_sys::identity::UnixIdentity;
use becket_sys::privileges::is_root;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde::Serialize;

use crate::answers::{Pending, answer, prove_by_http, prove_by_tls};
use crate::authority_proxy::AuthorityProxy;

/// Kills a process when the test ends.
pub(crate) struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub(crate) struct Pebble {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) acme: u16,
    pending: Arc<Pending>,
    dns_port: u16,
    pub(crate) dns_control: u16,
    _processes: Arc<[Killed; 2]>,
}

/// Binds a port below the kernel's range for outgoing connections (ip_local_port_range), so that nothing else gets it between its
/// release and its use.
pub(crate) fn free() -> TcpListener {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 100) as u16 * 200;
    let mut ports = std::iter::repeat_with(|| first + COUNT.fetch_add(1, Relaxed) % 200);
    let free = ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    free.unwrap()
}

pub(crate) fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}

pub(crate) fn pebble() -> Option<Pebble> {
    pebble_with(|_| {})
}

/// Starts the authority after `change` has modified its configuration.
pub(crate) fn pebble_with(change: impl FnOnce(&mut serde_json::Value)) -> Option<Pebble> {
    let program = becket_tidy::find("pebble")?;
    let dns = becket_tidy::find("pebble-challtestsrv")?;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    fs::write(at("ca.pem"), ca.pem()).unwrap();
    fs::write(at("cert.pem"), leaf.signed_by(&key, &ca).unwrap().pem()).unwrap();
    fs::write(at("key.pem"), key.serialize_pem()).unwrap();
    let (tls, http) = (free(), free());
    let [acme, control, dns_port] = [free(), free(), free()].map(|it| port(&it));
    let mut config = serde_json::json!({"pebble": {
        "listenAddress": format!("127.0.0.1:{acme}"),
        "certificate": at("cert.pem"), "privateKey": at("key.pem"),
        "httpPort": port(&http), "tlsPort": port(&tls),
        "ocspResponderURL": "", "externalAccountBindingRequired": false,
        "retryAfter": {"authz": 1, "order": 1},
        "profiles": {
            "default": {"description": "usual", "validityPeriod": 7_776_000},
            "shortlived": {"description": "six days", "validityPeriod": 518_400},
        },
    }});
    change(&mut config["pebble"]);
    fs::write(at("pebble.json"), config.to_string()).unwrap();
    let mut names = Command::new(dns);
    let flags = "-defaultIPv4 127.0.0.1 -defaultIPv6= -http01= -https01= -tlsalpn01= -doh=";
    names.args(flags.split(' '));
    names.arg(format!("-dnsserver=127.0.0.1:{dns_port}"));
    names.arg(format!("-management=127.0.0.1:{control}"));
    let mut authority = Command::new(program);
    authority.arg(format!("-dnsserver=127.0.0.1:{dns_port}"));
    authority
        .arg("-strict")
        .arg("-config")
        .arg(at("pebble.json"));
    authority.env("PEBBLE_VA_NOSLEEP", "1");
    let start = |command: &mut Command| Killed(command.stdout(Stdio::null()).spawn().unwrap());
    let processes = [start(&mut names), start(&mut authority)];
    for port in [acme, control] {
        until("a process listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
    }
    let pending = Arc::new(Pending::default());
    let answers = Arc::clone(&pending);
    thread::spawn(move || {
        for client in tls.incoming() {
            prove_by_tls(client.unwrap(), &answers).unwrap_or_default();
        }
    });
    let answers = Arc::clone(&pending);
    thread::spawn(move || {
        for client in http.incoming() {
            prove_by_http(client.unwrap(), &answers).unwrap_or_default();
        }
    });
    Some(Pebble {
        folder,
        acme,
        pending,
        dns_port,
        dns_control: control,
        _processes: Arc::new(processes),
    })
}

/// Waits up to three minutes: on a busy machine a request may exceed its time limit, and an order is repeated after 30 to 90 s.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..3_600 {
        if done() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("not in time: {what}");
}

pub(crate) fn certificate(names: &[&str]) -> AcmeCertificate {
    let names = names.iter().map(|name| AcmeName::parse(name).unwrap());
    AcmeCertificate {
        names: names.collect(),
        ..AcmeCertificate::default()
    }
}

impl Pebble {
    /// Returns a site with a folder of its own, whose companion reaches the authority through a proxy.
    pub(crate) fn behind_proxy(&self) -> (Self, AuthorityProxy) {
        let own = self.folder.path();
        let [ca, certificate, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| own.join(name));
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        fs::copy(&ca, folder.path().join("ca.pem")).unwrap();
        let authority = ([127, 0, 0, 1], self.acme).into();
        let proxy = AuthorityProxy::start(authority, "localhost", [&ca, &certificate, &key]);
        let site = Self {
            folder,
            acme: proxy.address.port(),
            pending: Arc::clone(&self.pending),
            _processes: Arc::clone(&self._processes),
            ..*self
        };
        (site, proxy)
    }

    pub(crate) fn section(&self, certificate: Vec<AcmeCertificate>) -> Acme {
        Acme {
            authority: vec![Authority::Directory(format!(
                "https://localhost:{}/dir",
                self.acme
            ))],
            ca: Some("ca.pem".to_owned()),
            folder: "acme".to_owned(),
            name_servers: vec![NameServerAddress(([127, 0, 0, 1], self.dns_port).into())],
            certificate,
            ..Acme::default()
        }
    }

    pub(crate) fn acme(&self) -> PathBuf {
        self.folder.path().join("acme")
    }

    /// Starts the program as the supervisor does, and answers its challenges.
    pub(crate) fn start(&self, section: &Acme) -> Killed {
        let user = is_root().then_some(UnixIdentity {
            uid: 12_345,
            gid: 12_345,
            groups: Vec::new(),
        });
        if !self.acme().exists() {
            fs::create_dir(self.acme()).unwrap();
            fs::set_permissions(self.acme(), Permissions::from_mode(0o750)).unwrap();
            let owner = user.as_ref().map(|it| it.uid);
            chown(self.acme(), owner, owner).unwrap();
        }
        let (supervisor, stream) = UnixStream::pair().unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_becket-acme"));
        program
            .env(IS_STARTED, VERSION)
            .stdin(Stdio::from(OwnedFd::from(stream)));
        let program = Killed(program.spawn().unwrap());
        let start = AcmeStart {
            section: section.clone(),
            base: self.folder.path().to_owned(),
            user,
        };
        send(&supervisor, &ToProcess::Acme(Box::new(start)), &[]);
        let (serving, end) = UnixStream::pair().unwrap();
        send(&supervisor, &ToProcess::Companion, &[end.as_fd()]);
        send(
            &serving,
            &ToCompanion::Ranks(vec![0; section.certificate.len()]),
            &[],
        );
        let pending = Arc::clone(&self.pending);
        let section = section.clone();
        thread::spawn(move || {
            let mut own: HashMap<_, _> = HashMap::new();
            while let Ok(Some((text, _))) = fd_messages::receive(&serving, 1 << 20, 0) {
                let message = serde_json::from_slice(&text).unwrap();
                let FromCompanion::Challenges(number, challenges) = message else {
                    continue;
                };
                let mut pending = pending.lock().unwrap();
                pending.retain(|key, _| !own.contains_key(key));
                own = challenges
                    .into_iter()
                    .map(|it| answer(&section, it))
                    .collect();
                pending.extend(own.clone());
                drop(pending);
                send(&serving, &ToCompanion::ChallengesServed(number), &[]);
            }
            drop(supervisor);
        });
        program
    }

    pub(crate) fn ask(&self, request: &Request) -> Answer {
        let control = self.acme().join("control");
        until("the companion listens", || {
            UnixStream::connect(&control).is_ok()
        });
        ask(&self.acme(), request).unwrap()
    }

    /// Runs a command. Returns its exit code and its output.
    pub(crate) fn command(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut program = Command::new(env!("CARGO_BIN_EXE_becket-acme"));
        let config = self.folder.path().join("becket.toml");
        let output = program
            .args(arguments)
            .arg("--config")
            .arg(config)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        match self.ask(&Request::List {}) {
            Answer::Certificates(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until each certificate exists.
    pub(crate) fn wait_for_all(&self) -> Vec<Row> {
        until("certificates", || {
            let rows = self.rows();
            let rejected = rows
                .iter()
                .filter(|row| row.error.as_deref().is_some_and(is_rejected));
            rejected.for_each(|row| drop(self.renew(&row.names[0])));
            rows.iter().all(|row| row.expires.is_some())
        });
        self.rows()
    }

    /// Renews the certificate for a name, and returns the error.
    pub(crate) fn renew(&self, name: &str) -> Option<String> {
        loop {
            let name = name.to_owned();
            match self.ask(&Request::Renew { name }) {
                Answer::Ended {
                    error: Some(error), ..
                } if is_rejected(&error) => {}
                Answer::Ended { error, .. } => return error,
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn bundle(&self, stem: &str) -> String {
        let path = self.acme().join(format!("certificates/{stem}.pem"));
        fs::read_to_string(path).unwrap_or_default()
    }
}

/// Returns `true` if pebble has rejected three nonces in a row, which it does at random.
pub(crate) fn is_rejected(error: &str) -> bool {
    error.contains("badNonce")
}

pub(crate) fn send(stream: &UnixStream, message: &impl Serialize, fds: &[BorrowedFd<'_>]) {
    let text = serde_json::to_vec(message).unwrap();
    fd_messages::send(stream, &text, fds, Duration::from_secs(5)).unwrap();
}

/// Sends a command to the DNS server.
pub(crate) fn dns(port: u16, path: &str, body: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
}
