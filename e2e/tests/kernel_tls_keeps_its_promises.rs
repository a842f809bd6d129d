//! Kernel TLS: data arrives completely in both directions, with correct ends. The tests run in a guest whose kernel supports TLS.
//!
//! The features of the host's kernel do not matter. Tests with scripted sockets cover refusals by the kernel and key updates with a newer
//! kernel as well.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, OnceLock};

use crate::files_leave_by_sendfile::{Site, through_the_kernel};
use becket_e2e::{
    Backend, Becket, Client, Key, OpenSsl, Place, Shape, Signal, Trust, UserModeLinux, becket,
    eventually, is_inside_uml, read_to_end, reset, until,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};

#[test]
#[ignore = "slow: .ci/run test"]
fn kernel_tls_works_in_user_mode_linux() {
    if let Some(linux) = UserModeLinux::find() {
        in_uml(&linux);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn both_sides_can_update_keys_in_a_newer_linux() {
    if let Some(linux) = UserModeLinux::newer() {
        let Some(report) = in_uml(&linux) else {
            return;
        };
        assert_eq!(report.matches("keys were replaced").count(), 3, "{report}");
    }
}

/// Runs the tests in a guest and returns their report; `None` if the guest does not support this processor.
fn in_uml(linux: &UserModeLinux) -> Option<String> {
    let place = Place::new();
    let ran = linux.run(&place, "kernel_tls_keeps_its_promises::inside")?;
    let report = fs::read_to_string(place.path("report")).unwrap_or_default();
    assert!(report.ends_with("all\n"), "{report}\n{ran}");
    Some(report)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_kernel_without_tls_is_reported_and_connections_work() {
    let place = Place::new();
    let backend = Backend::http("hello");
    let shape = Shape::new(backend.address).listener("kernel-tls = 'bulk'");
    let becket = Becket::start(&place, &shape);
    becket.says("kernel TLS: ");
    assert!(becket.status()["kernel_tls"].is_string());
    let answer = Trust::new(&place).visit(becket.web).unwrap();
    assert!(answer.ends_with(b"hello"));
}

/// Runs within a guest only.
#[test]
#[ignore = "slow: .ci/run test"]
fn inside() {
    if !is_inside_uml() {
        return;
    }
    UserModeLinux::load(&MODULES).unwrap();
    let mut report = String::new();
    for suite in ["AES-128-GCM", "AES-256-GCM", "CHACHA20-POLY1305"] {
        for version in [&TLS12, &TLS13] {
            let place = Place::new();
            let backend = Backend::new(serve);
            let shape = shape(&backend, suite).limits("kernel-tls-without-rekey = true");
            let becket = Becket::start(&place, &shape);
            let trust = Trust::only(&place, version);
            exchange(&becket, &trust, 1);
            asked_by_openssl(&place, &becket);
            files(suite, version);
            if suite == "AES-128-GCM" {
                cuts(&becket, &trust);
                reload_and_drain(becket, &trust);
            }
        }
        report.push_str(update_keys(suite));
    }
    report.push_str("all\n");
    fs::write("report", report).unwrap();
}

/// Checks that files are sent with sendfile where the kernel takes over TLS, and that `becket check` warns otherwise.
fn files(suite: &str, version: &'static SupportedProtocolVersion) {
    let place = Place::new();
    let number = if version == &TLS12 { "1.2" } else { "1.3" };
    let policy = format!("suites = ['{suite}']\nversions = ['{number}']");
    let site = Site::start(&place, UserModeLinux::disk(), &policy);
    let lacks_keys = version == &TLS13 && site.count("becket_kernel_tls_rekeys") == 0;
    let checked = becket(&place, &["check"]).all();
    let warns = checked.contains("the kernel takes over none of the suites");
    assert_eq!(warns, lacks_keys, "{checked}");
    drop(site);
    let limits = "[limits]\nkernel-tls-without-rekey = true";
    let site = Site::start(
        &place,
        UserModeLinux::disk(),
        &format!("{policy}\n{limits}"),
    );
    through_the_kernel(&site, &Trust::only(&place, version));
}

fn shape(backend: &Backend, suite: &str) -> Shape {
    Shape::new(backend.address)
        .listener("kernel-tls = 'bulk'\npolicy = 'one'")
        .section(&format!("[[policy]]\nname = 'one'\nsuites = ['{suite}']"))
        .limits("kernel-tls-after = '64KiB'\nconnections = 50")
        .process("workers = 1\npin = false")
}

/// Serves a connection according to the first byte. `G`: respond at once. `P`: respond piece by piece. `R`: receive all data, respond and
/// reset. Any other byte: receive all data, then respond.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut said = vec![0; 1];
    stream.read_exact(&mut said)?;
    if said == b"P" {
        for piece in pattern().chunks(PIECE) {
            stream.write_all(piece)?;
            stream.read_exact(&mut said)?;
        }
        return stream.shutdown(Shutdown::Write);
    }
    if said != b"G" {
        let (rest, end) = read_to_end(&mut stream);
        end?;
        assert!(rest == pattern()[1..], "{} bytes came", rest.len());
    }
    stream.write_all(pattern())?;
    if said == b"R" {
        reset(stream);
        return Ok(());
    }
    stream.shutdown(Shutdown::Write)?;
    read_to_end(&mut stream).1
}

fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let byte = |at: usize| (at ^ (at >> 8) ^ (at >> 16)) as u8;
    PATTERN.get_or_init(|| (0..LEN).map(byte).collect())
}

fn moved(becket: &Becket) -> u64 {
    becket.metrics().sum("becket_kernel_tls_legs_total", &[]) as u64
}

/// Connects a client and sends more than the sockets and becket can buffer, without an end. The kernel decrypts a part of it.
fn bulk(becket: &Becket, trust: &Trust, first: u8) -> Client {
    let mut client = Client::connect(becket.web, trust).unwrap();
    let mut said = pattern().to_vec();
    said[0] = first;
    client.write_all(&said).unwrap();
    client
}

/// Makes an upload, a half-close and a download with a clean end, and checks the number of kernel TLS sides (`legs`).
fn exchange(becket: &Becket, trust: &Trust, legs: u64) {
    let before = moved(becket);
    let mut client = bulk(becket, trust, 0);
    client.close_notify().unwrap();
    let (got, end) = read_to_end(&mut client);
    end.unwrap();
    assert!(got == pattern(), "{} bytes came", got.len());
    drop(client);
    assert_eq!(becket.next_reason(), "finished");
    assert_eq!(moved(becket), before + legs);
    let spliced = becket.metrics().sum("becket_spliced_bytes_total", &[]);
    assert_eq!(spliced > 0.0, legs > 0);
}

/// Ends connections irregularly: FIN without close_notify, a truncated record, an invalid record, a client's RST, a server's RST.
fn cuts(becket: &Becket, trust: &Trust) {
    let mut client = bulk(becket, trust, 0);
    client.socket.shutdown(Shutdown::Write).unwrap();
    assert!(read_to_end(&mut client).0 == pattern());
    drop(client);
    assert_eq!(becket.next_reason(), "client-truncated");

    for (record, reason) in [
        (&[23, 3, 3, 1, 0, 7, 7][..], "client-truncated"),
        (
            &[&[23, 3, 3, 0, 30][..], &[7; 30]].concat(),
            "client-tls-error",
        ),
    ] {
        let mut client = bulk(becket, trust, 0);
        client.socket.write_all(record).unwrap();
        // Becket may have closed the connection already.
        drop(client.socket.shutdown(Shutdown::Write));
        drop(read_to_end(&mut client));
        drop(client);
        assert_eq!(becket.next_reason(), reason);
    }

    let before = moved(becket);
    let client = bulk(becket, trust, 0);
    eventually("the kernel takes over", || moved(becket) > before);
    client.reset();
    assert_eq!(becket.next_reason(), "client-reset");

    let mut client = bulk(becket, trust, b'R');
    client.close_notify().unwrap();
    read_to_end(&mut client).1.unwrap_err();
    drop(client);
    assert_eq!(becket.next_reason(), "server-reset");
}

fn asked_by_openssl(place: &Place, becket: &Becket) {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let before = moved(becket);
    let asked = openssl.ask(place, becket.web, &["-quiet"]);
    assert_eq!((asked.code, moved(becket)), (0, before + 1));
    let line = becket.next_access();
    assert_eq!(
        (&line["reason"], &line["server_bytes_in"]),
        (&"finished".into(), &LEN.into())
    );
}

/// Tests key updates, and returns a line for the report.
fn update_keys(suite: &str) -> &'static str {
    let place = Place::new();
    let backend = Backend::new(serve);
    let becket = Becket::start(&place, &shape(&backend, suite));
    let trust = Trust::only(&place, &TLS13);
    if becket.metrics().sum("becket_kernel_tls_rekeys", &[]) == 0.0 {
        exchange(&becket, &trust, 0);
        update_in_vain(suite);
        return "no key was replaced\n";
    }
    let trust = trust.changed(|config| config.enable_secret_extraction = true);
    client_updates(&becket, &trust);
    updates_without_data(&becket, &trust);
    server_updates(suite);
    "keys were replaced\n"
}

/// If the kernel cannot update keys, a KeyUpdate ends the connection.
fn update_in_vain(suite: &str) {
    let place = Place::new();
    let backend = Backend::new(serve);
    let shape = shape(&backend, suite).limits("kernel-tls-without-rekey = true");
    let becket = Becket::start(&place, &shape);
    let mut client = bulk(&becket, &Trust::only(&place, &TLS13), 0);
    client.tls.refresh_traffic_keys().unwrap();
    client.close_notify().unwrap();
    read_to_end(&mut client).1.unwrap_err();
    drop(client);
    assert_eq!((&*becket.next_reason(), moved(&becket)), ("key-update", 1));
}

/// The client updates its key before each piece that it sends, then after each piece that it receives, and requests key updates of becket.
fn client_updates(becket: &Becket, trust: &Trust) {
    let (plain, updated) = pattern().split_at(LEN / 2);
    let mut client = Client::connect(becket.web, trust).unwrap();
    client.write_all(plain).unwrap();
    eventually("the kernel takes over", || moved(becket) == 1);
    for piece in updated.chunks(PIECE) {
        client.tls.refresh_traffic_keys().unwrap();
        client.write_all(piece).unwrap();
    }
    client.close_notify().unwrap();
    let (got, end) = read_to_end(&mut client);
    end.unwrap();
    assert!(got == pattern(), "{} bytes came", got.len());
    drop(client);
    assert_eq!((&*becket.next_reason(), moved(becket)), ("finished", 1));

    let mut client = Client::connect(becket.web, trust).unwrap();
    client.write_all(b"P").unwrap();
    for (at, piece) in pattern().chunks(PIECE).enumerate() {
        let mut got = vec![0; piece.len()];
        client.read_exact(&mut got).unwrap();
        assert!(got == piece);
        if at * PIECE >= LEN / 2 {
            client.tls.refresh_traffic_keys().unwrap();
        }
        client.write_all(b"m").unwrap();
    }
    client.close_notify().unwrap();
    read_to_end(&mut client).1.unwrap();
    let Client { tls, .. } = client;
    let records = tls.dangerous_extract_secrets().unwrap().rx.0;
    let least = (LEN / RECORD) as u64;
    assert!(records < least / 2, "{records} under the last key");
    assert_eq!((&*becket.next_reason(), moved(becket)), ("finished", 2));
}

/// Checks that key updates without data are limited with kernel TLS as well.
fn updates_without_data(becket: &Becket, trust: &Trust) {
    let before = moved(becket);
    let mut client = bulk(becket, trust, 0);
    eventually("the kernel takes over", || moved(becket) > before);
    let is_taken = |client: &mut Client| {
        let updated = client.tls.refresh_traffic_keys();
        updated.is_ok() && client.flush().is_ok()
    };
    for _ in 0..1000 {
        if !is_taken(&mut client) {
            break;
        }
    }
    assert_eq!(becket.next_reason(), "records-without-data");
}

/// A TLS server updates its key after each piece that it receives and before each piece that it sends. Both sides use kernel TLS.
fn server_updates(suite: &str) {
    let place = Place::new();
    let bundle = place.issue("app.pem", &["app.example.org"], Key::Ecdsa);
    let chain = CertificateDer::from_pem_slice(bundle.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(bundle.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_protocol_versions(&[&TLS13])
        .with_no_client_auth()
        .with_single_cert(vec![chain], key);
    let config = Arc::new(config.unwrap());
    let backend = Backend::new(move |socket| {
        let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = StreamOwned::new(tls, socket);
        for (at, piece) in pattern().chunks(PIECE).enumerate() {
            let mut said = vec![0; piece.len()];
            stream.read_exact(&mut said)?;
            assert!(said == piece);
            if at * PIECE >= LEN / 2 {
                stream.conn.refresh_traffic_keys().unwrap();
                stream.flush()?;
            }
        }
        for piece in pattern().chunks(PIECE) {
            stream.conn.refresh_traffic_keys().unwrap();
            stream.write_all(piece)?;
        }
        stream.conn.send_close_notify();
        stream.flush()?;
        read_to_end(&mut stream).1
    });
    let tls = "tls.ca = 'ca.pem'\ntls.name = 'app.example.org'\ntls.kernel-tls = 'bulk'";
    let becket = Becket::start(&place, &shape(&backend, suite).backend(tls));
    exchange(&becket, &Trust::only(&place, &TLS13), 2);
}

/// A reload and a drain do not interrupt a connection with kernel TLS.
fn reload_and_drain(mut becket: Becket, trust: &Trust) {
    let mut client = bulk(&becket, trust, 0);
    becket.signal(Signal::HUP);
    eventually("reloaded", || becket.logs().contains("reloaded"));
    becket.signal(Signal::TERM);
    eventually("draining", || becket.logs().contains("draining"));
    client.close_notify().unwrap();
    let (got, end) = read_to_end(&mut client);
    end.unwrap();
    assert!(got == pattern());
    drop(client);
    assert_eq!(until("becket has drained", || becket.ended()), 0);
}

/// Bytes in each direction.
const LEN: usize = 512 << 10;
/// Bytes between two key updates.
const PIECE: usize = 32 << 10;
/// Maximum bytes per record.
const RECORD: usize = 16 << 10;
/// Kernel modules of TLS and the ciphers, with their names in both kernels. A guest does not load them on demand.
const MODULES: [&str; 9] = [
    "tls",
    "aes_generic",
    "gcm",
    "ctr",
    "ghash-generic",
    "chacha20poly1305",
    "chacha",
    "chacha_generic",
    "poly1305_generic",
];
