//! Orders from pebble, the test authority of Let's Encrypt. The program runs as a process; the
//! supervisor and the serving process are played by the test.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use answers::{Pending, answer, prove_by_http, prove_by_tls};
use becket_acme::control::{Answer, Request, Row, ask};
use becket_config::acme::{
    Acme, AcmeCertificate, AcmeName, Authority, ChallengeKind, ExternalAccount, KeyKind,
    NameServerAddress,
};
use becket_config::notation::Text;
use becket_process::companion_link::{FromCompanion, ToCompanion};
use becket_process::protocol::{AcmeStart, Command as ToProcess, IS_STARTED, VERSION};
use becket_sys::fd_messages;
use becket_sys::identity::UnixIdentity;
use becket_sys::privileges::is_root;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde::Serialize;

/// Kills a process when the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

struct Pebble {
    folder: tempfile::TempDir,
    acme: u16,
    pending: Arc<Pending>,
    dns_port: u16,
    dns_control: u16,
    _processes: [Killed; 2],
}

fn free() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}

fn pebble() -> Option<Pebble> {
    pebble_with(|_| {})
}

/// Starts the authority after `change` has modified its configuration.
fn pebble_with(change: impl FnOnce(&mut serde_json::Value)) -> Option<Pebble> {
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
        _processes: processes,
    })
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..600 {
        if done() {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("not in time: {what}");
}

fn certificate(names: &[&str]) -> AcmeCertificate {
    let names = names.iter().map(|name| AcmeName::parse(name).unwrap());
    AcmeCertificate {
        names: names.collect(),
        ..AcmeCertificate::default()
    }
}

impl Pebble {
    fn section(&self, certificate: Vec<AcmeCertificate>) -> Acme {
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

    fn acme(&self) -> PathBuf {
        self.folder.path().join("acme")
    }

    /// Starts the program as the supervisor does, and answers its challenges.
    fn start(&self, section: &Acme) -> Killed {
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
            while let Ok(Some((text, _))) = fd_messages::receive(&serving, 1 << 20, 0) {
                let message = serde_json::from_slice(&text).unwrap();
                let FromCompanion::Challenges(number, challenges) = message else {
                    continue;
                };
                let all = challenges.into_iter().map(|it| answer(&section, it));
                *pending.lock().unwrap() = all.collect();
                send(&serving, &ToCompanion::ChallengesServed(number), &[]);
            }
            drop(supervisor);
        });
        program
    }

    fn ask(&self, request: &Request) -> Answer {
        let control = self.acme().join("control");
        until("the companion listens", || {
            UnixStream::connect(&control).is_ok()
        });
        ask(&self.acme(), request).unwrap()
    }

    /// Renews the certificate with a name. Returns the error.
    fn renew(&self, name: &str) -> Option<String> {
        let name = name.to_owned();
        match self.ask(&Request::Renew { name }) {
            Answer::Ended { error, .. } => error,
            other => panic!("{other:?}"),
        }
    }

    /// Runs a command. Returns its exit code and its output.
    fn command(&self, arguments: &[&str]) -> (Option<i32>, String) {
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

    fn rows(&self) -> Vec<Row> {
        match self.ask(&Request::List {}) {
            Answer::Certificates(rows) => rows,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until each certificate exists.
    fn wait_for_all(&self) -> Vec<Row> {
        until("certificates", || {
            self.rows().iter().all(|row| row.expires.is_some())
        });
        self.rows()
    }

    fn bundle(&self, stem: &str) -> String {
        let path = self.acme().join(format!("certificates/{stem}.pem"));
        fs::read_to_string(path).unwrap_or_default()
    }
}

fn send(stream: &UnixStream, message: &impl Serialize, fds: &[BorrowedFd<'_>]) {
    let text = serde_json::to_vec(message).unwrap();
    fd_messages::send(stream, &text, fds, Duration::from_secs(5)).unwrap();
}

/// Sends a command to the DNS server.
fn dns(port: u16, path: &str, body: &str) {
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

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn a_trial_shows_what_an_authority_would_find(pebble: &Pebble) {
    let (code, text) = pebble.command(&["try", "a.test"]);
    assert_eq!(code, Some(0), "{text}");
    for name in ["a.test", "b.test"] {
        let finding = format!("\n{name}: 127.0.0.1:443 DOES NOT ANSWER THE CHALLENGE: ");
        assert!(text.contains(&finding), "{text}");
    }
    let allowed = "\nthe DNS records that exist allow the order\n";
    assert!(text.contains(allowed), "{text}");
    let caa = format!(
        "\na.test. CAA 0 issue \"pebble.letsencrypt.org; accounturi=https://localhost:{}/",
        pebble.acme
    );
    assert!(text.contains(&caa), "{text}");
}

#[test]
fn certificates_are_ordered_renewed_and_revoked() {
    let Some(pebble) = pebble() else { return };
    let mut section = pebble.section(vec![
        certificate(&["a.test", "b.test"]),
        AcmeCertificate {
            challenge: Some(ChallengeKind::Http),
            key: Some(KeyKind::Rsa2048),
            profile: Some("shortlived".to_owned()),
            ..certificate(&["c.test"])
        },
        AcmeCertificate {
            key: Some(KeyKind::P384),
            ..certificate(&["127.0.0.1"])
        },
    ]);
    // Without a profile, pebble chooses one at random.
    section.profile = Some("default".to_owned());
    section.contact = vec!["a@b.test".to_owned()];
    let running = pebble.start(&section);
    let rows = pebble.wait_for_all();
    assert!(
        rows.iter()
            .all(|row| row.error.is_none() && row.failures == 0),
        "{rows:?}"
    );
    let lifetime =
        |row: &Row| row.expires.unwrap().unix_seconds() - row.next.unwrap().unix_seconds();
    assert!(
        lifetime(&rows[1]) < 4 * 24 * 3600 && lifetime(&rows[0]) > 20 * 24 * 3600,
        "{rows:?}"
    );
    let toml = "[acme]\nfolder = 'acme'\n[[acme.certificate]]\nnames = ['a.test']\n";
    fs::write(pebble.folder.path().join("becket.toml"), toml).unwrap();
    let (code, text) = pebble.command(&["list"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.starts_with("a.test, b.test\n  file      a.test.pem\n  challenge tls-alpn-01\n"),
        "{text}"
    );
    assert_eq!(text.matches("\n  expires   20").count(), 3, "{text}");
    let (code, text) = pebble.command(&["renew", "z.test"]);
    assert_eq!(
        (code, text.contains("has this name")),
        (Some(1), true),
        "{text}"
    );
    assert_eq!(pebble.command(&["renew"]).0, Some(2));
    a_trial_shows_what_an_authority_would_find(&pebble);
    let first = pebble.bundle("a.test");
    assert_eq!(first.matches("BEGIN CERTIFICATE").count(), 2);
    assert_eq!(mode(&pebble.acme().join("certificates/a.test.pem")), 0o640);
    assert!(pebble.bundle("127.0.0.1").contains("PRIVATE KEY"));
    let orders = || fs::read_dir(pebble.acme().join("orders")).unwrap().count();
    assert_eq!(orders(), 0);
    // Keys are not reused.
    assert_eq!(pebble.renew("b.test"), None);
    let second = pebble.bundle("a.test");
    let key = |bundle: &str| {
        bundle
            .split_once("-----BEGIN PRIVATE")
            .unwrap()
            .1
            .to_owned()
    };
    assert_ne!(key(&first), key(&second));
    let revoked = pebble.ask(&Request::Revoke {
        name: "a.test".to_owned(),
    });
    assert!(
        matches!(revoked, Answer::Ended { error: None, .. }),
        "{revoked:?}"
    );
    until("another certificate", || pebble.bundle("a.test") != second);
    // After a restart, nothing is due.
    let last = pebble.bundle("a.test");
    drop(running);
    let _running = pebble.start(&section);
    let rows = pebble.rows();
    assert!(
        rows.iter()
            .all(|row| row.authority.is_some() && row.expires.is_some()),
        "{rows:?}"
    );
    assert_eq!(pebble.bundle("a.test"), last);
}

#[test]
fn a_wildcard_is_proved_by_the_hook() {
    let Some(pebble) = pebble() else { return };
    let Some(curl) = becket_tidy::find("curl") else {
        return;
    };
    let hook = pebble.folder.path().join("hook");
    let script = format!(
        "#!/bin/sh\ncase $1 in present) path=set-txt ;; remove) path=clear-txt ;; esac\n\
         exec {} -sf -d \"{{\\\"host\\\":\\\"$2.\\\",\\\"value\\\":\\\"$3\\\"}}\" http://127.0.0.1:{}/$path\n",
        curl.display(),
        pebble.dns_control
    );
    fs::write(&hook, script).unwrap();
    fs::set_permissions(&hook, Permissions::from_mode(0o755)).unwrap();
    let section = Acme {
        hook: Some("hook".to_owned()),
        challenge: ChallengeKind::Dns,
        ..pebble.section(vec![certificate(&["*.d.test", "d.test"])])
    };
    let _running = pebble.start(&section);
    pebble.wait_for_all();
    assert!(pebble.bundle("_.d.test").contains("PRIVATE KEY"));
}

#[test]
fn an_account_is_bound_to_an_account_of_the_authority() {
    // 32 bytes in base64url.
    let key = "A".repeat(43);
    let Some(pebble) = pebble_with(|config| {
        config["externalAccountBindingRequired"] = true.into();
        config["externalAccountMACKeys"] = serde_json::json!({"id-1": key});
    }) else {
        return;
    };
    let mut section = pebble.section(vec![certificate(&["f.test"])]);
    let running = pebble.start(&section);
    until("a failure", || pebble.rows()[0].error.is_some());
    let error = pebble.rows()[0].error.clone().unwrap();
    assert!(error.contains("acme.external-account: none for"), "{error}");
    drop(running);
    fs::write(pebble.folder.path().join("mac.key"), format!("{key}\n")).unwrap();
    section.external_account = vec![ExternalAccount {
        authority: None,
        id: "id-1".to_owned(),
        key_file: "mac.key".to_owned(),
    }];
    let running = pebble.start(&section);
    pebble.wait_for_all();
    drop(running);
    // Nothing answers at this port, so the authority decides.
    section.name_servers[0].0.set_port(1);
    let _running = pebble.start(&section);
    let Answer::Ended { records, error } = pebble.ask(&Request::Try { name: None }) else {
        panic!("not tried");
    };
    assert_eq!(error, None);
    let failure = "cannot look up DNS records; the authority decides: f.test: CAA: ";
    assert!(
        records.iter().any(|it| it.starts_with(failure)),
        "{records:?}"
    );
}

#[test]
fn a_second_authority_with_an_external_account_of_its_own_takes_over() {
    let key = "A".repeat(43);
    let Some(pebble) = pebble_with(|config| {
        config["externalAccountBindingRequired"] = true.into();
        config["externalAccountMACKeys"] = serde_json::json!({"id-2": key});
    }) else {
        return;
    };
    fs::write(pebble.folder.path().join("mac.key"), &key).unwrap();
    let mut section = pebble.section(vec![certificate(&["h.test"])]);
    // Nothing listens at this port.
    let dead = format!("https://localhost:{}/dir", port(&free()));
    section.authority.insert(0, Authority::Directory(dead));
    let numbered = section.authority.iter().zip(1..);
    let accounts = numbered.map(|(authority, number)| ExternalAccount {
        authority: Some(authority.clone()),
        id: format!("id-{number}"),
        key_file: ["none.key", "mac.key"][number - 1].to_owned(),
    });
    section.external_account = accounts.collect();
    let _running = pebble.start(&section);
    until("a failure", || pebble.rows()[0].error.is_some());
    let mut errors = Vec::new();
    until("the second authority issues", || {
        let error = pebble.renew("h.test");
        errors.extend(error.clone());
        error.is_none()
    });
    assert!(errors.len() <= 2, "{errors:?}");
    let issuer = pebble.rows()[0].authority.clone().unwrap();
    assert!(issuer.contains(&pebble.acme.to_string()), "{issuer}");
}

#[test]
fn a_permanent_record_proves_a_wildcard() {
    let Some(pebble) = pebble() else { return };
    let section = Acme {
        challenge: ChallengeKind::DnsPersist,
        ..pebble.section(vec![certificate(&["*.e.test"])])
    };
    let _running = pebble.start(&section);
    until("a failure", || pebble.rows()[0].error.is_some());
    let Answer::Ended { records, error } = pebble.ask(&Request::Try { name: None }) else {
        panic!("no records");
    };
    let missing = "_validation-persist.e.test. has no TXT record; expected ";
    let expected = format!("{missing}{}", records[0]);
    assert_eq!(error.as_deref(), Some(&*expected));
    assert_eq!(pebble.rows()[0].error, error);
    let (name, value) = records[0].split_once(" TXT ").unwrap();
    dns(
        pebble.dns_control,
        "/set-txt",
        &format!("{{\"host\":\"{name}\",\"value\":{value}}}"),
    );
    assert_eq!(pebble.renew("*.e.test"), None);
}

#[test]
fn a_full_disk_begins_no_order_and_keeps_the_certificate() {
    let Some(pebble) = pebble() else { return };
    let Some(mount) = becket_tidy::find("mount").filter(|_| is_root()) else {
        return becket_tidy::skip("needs root");
    };
    let section = pebble.section(vec![certificate(&["g.test"])]);
    drop(pebble.start(&section));
    let mut command = Command::new(mount);
    command.args([
        "-t",
        "tmpfs",
        "-o",
        "size=64k,uid=12345,gid=12345,mode=750",
        "tmpfs",
    ]);
    if !command.arg(pebble.acme()).status().unwrap().success() {
        return becket_tidy::skip("needs the right to mount a file system");
    }
    let _unmounted = Unmounted(pebble.acme());
    let _running = pebble.start(&section);
    pebble.wait_for_all();
    let first = pebble.bundle("g.test");
    let filler = pebble.acme().join("filler");
    fs::write(&filler, vec![0; 64 * 1024]).unwrap_err();
    let error = pebble.renew("g.test").unwrap();
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(pebble.bundle("g.test"), first);
    fs::remove_file(filler).unwrap();
    assert_eq!(pebble.renew("g.test"), None);
    assert_ne!(pebble.bundle("g.test"), first);
}

/// Unmounts a folder when the test ends.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

#[test]
fn a_companion_that_is_killed_at_any_time_finishes_its_order() {
    let Some(pebble) = pebble() else { return };
    for delay in (0..1200).step_by(80) {
        let section = pebble.section(vec![certificate(&[&format!("k{delay}.test")])]);
        let running = pebble.start(&section);
        thread::sleep(Duration::from_millis(delay));
        drop(running);
        let _running = pebble.start(&section);
        pebble.wait_for_all();
        let orders = fs::read_dir(pebble.acme().join("orders")).unwrap().count();
        assert_eq!(orders, 0, "{delay}");
    }
    let state = fs::read(pebble.acme().join("state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    assert!(state["orders"].as_array().unwrap().len() <= 15);
}
