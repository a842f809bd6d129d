//! TLS that the kernel takes over: whole, both ways, with its ends, in a guest whose kernel has it.
//!
//! What a machine's own kernel can do does not matter here. Refusals, and what a newer kernel does with KeyUpdates, are met on
//! scripted sockets as well.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::OnceLock;

use becket_e2e::{
    Backend, Becket, Client, OpenSsl, Place, Shape, Signal, Trust, UserModeLinux, eventually,
    is_inside_uml, read_to_end, reset, until,
};
use rustls::version::{TLS12, TLS13};

#[test]
fn in_user_mode_linux_all_that_is_promised_holds() {
    let Some(linux) = UserModeLinux::find() else {
        return;
    };
    let place = Place::new();
    let ran = linux.run(&place, "kernel_tls_keeps_its_promises::inside");
    let report = std::fs::read_to_string(place.path("report")).unwrap_or_default();
    assert!(report.ends_with("all\n"), "{report}\n{ran}");
    if report.contains("no second key") {
        println!("NOT CHECKED: KeyUpdate in the kernel, which needs a guest of Linux 6.14");
    }
}

#[test]
fn a_kernel_without_tls_is_told_and_nothing_else_changes() {
    let place = Place::new();
    let backend = Backend::http("hello");
    let shape = Shape::new(backend.address).listener("kernel-tls = 'bulk'");
    let becket = Becket::start(&place, &shape);
    assert!(becket.logs().contains("kernel TLS: "), "{}", becket.logs());
    assert!(becket.status()["kernel_tls"].is_string());
    let answer = Trust::new(&place).visit(becket.web).unwrap();
    assert!(answer.ends_with(b"hello"));
}

/// Only in a guest.
#[test]
fn inside() {
    if !is_inside_uml() {
        return;
    }
    UserModeLinux::load(&MODULES).unwrap();
    let mut report = String::new();
    for suite in ["AES-128-GCM", "AES-256-GCM", "CHACHA20-POLY1305"] {
        for version in [&TLS12, &TLS13] {
            let place = Place::new();
            let (becket, backend) = becket(&place, suite);
            let trust = Trust::only(&place, version);
            exchange(&becket, &trust);
            asked_by_openssl(&place, &becket);
            if suite == "AES-128-GCM" {
                cuts(&becket, &trust);
                if version.version == TLS13.version {
                    report.push_str(update_keys(&becket, &trust));
                }
                reload_and_drain(becket, &trust);
            }
            drop(backend);
        }
    }
    report.push_str("all\n");
    std::fs::write("report", report).unwrap();
}

fn becket(place: &Place, suite: &str) -> (Becket, Backend) {
    let backend = Backend::new(serve);
    let shape = Shape::new(backend.address)
        .listener("kernel-tls = 'bulk'\npolicy = 'one'")
        .section(&format!("[[policy]]\nname = 'one'\nsuites = ['{suite}']"))
        .limits("kernel-tls-after = '64KiB'\nkernel-tls-without-rekey = true\nconnections = 50")
        .process("workers = 1\npin = false");
    (Becket::start(place, &shape), backend)
}

/// Takes what the client says to its end, and answers; resets then if the client began with an R. A client that begins with a G is
/// answered at once.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut said = vec![0; 1];
    stream.read_exact(&mut said)?;
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

/// A client that has said all but its end, more than the socket and becket hold: some of it was opened by the kernel.
fn bulk(becket: &Becket, trust: &Trust, first: u8) -> Client {
    let mut client = Client::connect(becket.web, trust).unwrap();
    let mut said = pattern().to_vec();
    said[0] = first;
    client.write_all(&said).unwrap();
    client
}

/// Upload, half-close, download, and a clean end.
fn exchange(becket: &Becket, trust: &Trust) {
    let before = moved(becket);
    let mut client = bulk(becket, trust, 0);
    client.close_notify().unwrap();
    let (got, end) = read_to_end(&mut client);
    end.unwrap();
    assert!(got == pattern(), "{} bytes came", got.len());
    drop(client);
    assert_eq!(becket.next_access()["reason"], "finished");
    assert_eq!(moved(becket), before + 1);
    assert!(becket.metrics().sum("becket_spliced_bytes_total", &[]) > 0.0);
}

/// FIN without close_notify; a client that resets; a server that does.
fn cuts(becket: &Becket, trust: &Trust) {
    let mut client = bulk(becket, trust, 0);
    client.socket.shutdown(Shutdown::Write).unwrap();
    assert!(read_to_end(&mut client).0 == pattern());
    drop(client);
    assert_eq!(becket.next_access()["reason"], "client-truncated");

    let before = moved(becket);
    let client = bulk(becket, trust, 0);
    eventually("the kernel takes over", || moved(becket) > before);
    client.reset();
    assert_eq!(becket.next_access()["reason"], "client-reset");

    let mut client = bulk(becket, trust, b'R');
    client.close_notify().unwrap();
    read_to_end(&mut client).1.unwrap_err();
    drop(client);
    assert_eq!(becket.next_access()["reason"], "server-reset");
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

/// What becomes of a KeyUpdate of the client.
fn update_keys(becket: &Becket, trust: &Trust) -> &'static str {
    let mut client = bulk(becket, trust, 0);
    client.tls.refresh_traffic_keys().unwrap();
    client.close_notify().unwrap();
    let (got, end) = read_to_end(&mut client);
    drop(client);
    let reason = becket.next_access()["reason"].clone();
    if becket.metrics().sum("becket_kernel_tls_rekeys", &[]) > 0.0 {
        assert!(end.is_ok() && got == pattern() && reason == "finished");
        return "second key\n";
    }
    assert!(end.is_err() && reason == "key-update", "{reason}");
    "no second key\n"
}

/// A reload and a drain find a connection in the kernel, and leave it.
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

/// Of one direction.
const LEN: usize = 512 << 10;
/// TLS, and ciphers: the kernel of a guest has nobody who loads them when they are asked for.
const MODULES: [&str; 8] = [
    "tls",
    "aes_generic",
    "gcm",
    "ctr",
    "ghash-generic",
    "chacha20poly1305",
    "chacha_generic",
    "poly1305_generic",
];
