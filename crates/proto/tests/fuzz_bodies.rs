//! Runs the bodies of the fuzz targets without a fuzzer: on real inputs, mutated by a seeded generator.
//!
//! The bodies are in `fuzz/src` and are included by path, so that `cargo test` checks the same
//! properties as the fuzzer: no panic, no change of a result as bytes arrive, and no hello that the
//! peek reads differently than rustls. A failure prints the input; `cargo +nightly fuzz run` searches
//! deeper.

#![expect(
    clippy::unwrap_used,
    reason = "a test, in which the lint sees no test functions"
)]

#[path = "../../../fuzz/src/client_hello.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod client_hello;
#[path = "../../../fuzz/src/mutations.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod mutations;
#[path = "../../../fuzz/src/post_handshake.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod post_handshake;
#[path = "../../../fuzz/src/proxy_header.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod proxy_header;
#[path = "../../../fuzz/src/rsa_key.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod rsa_key;
#[path = "../../../fuzz/src/server_hello.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod server_hello;
#[path = "../../../fuzz/src/session_state.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod session_state;
#[path = "../../../fuzz/src/starttls.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod starttls;

#[path = "../../../fuzz/src/handover.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod handover;

use std::path::Path;
use std::time::Duration;

use becket_proto::handover::{Record, Secrets, Server, StickEntry};
use becket_proto::health::Known;
use becket_proto::session::{PolicyTag, Session, SessionName};
use becket_proto::ticket::{Epoch, Origin, SecretId};
use mutations::run_on_mutations;
use zeroize::Zeroizing;

#[test]
fn the_peek_agrees_with_rustls_on_mutated_hellos() {
    let mut hellos = testdata("client_hello");
    hellos.extend(testdata("client_hello_refused"));
    let mut inputs: Vec<_> = hellos.iter().map(|hello| fragmented(hello, 3)).collect();
    // The target also frames its input as the body of a hello and as a list of extensions.
    inputs.extend(hellos.iter().map(|hello| hello[9..].to_vec()));
    inputs.extend(hellos.iter().map(|hello| extensions(hello).to_vec()));
    inputs.extend(hellos);
    run_on_mutations(&inputs, client_hello::run);
}

#[test]
fn records_of_a_handover_survive_mutation() {
    let name = SessionName::new(PolicyTag(7), &[9; 32]).unwrap();
    let session = Session::new(vec![1; 100], Origin::default());
    let secrets = Secrets {
        id: SecretId(1),
        rotations: 2,
        due: Duration::from_secs(3),
        epochs: vec![(Epoch(4), Zeroizing::new([5; 32]))],
    };
    let records = [
        Record::Session {
            name,
            session,
            remaining: Duration::from_secs(300),
        },
        Record::Forgotten(name),
        Record::Secrets(secrets),
        Record::Cut,
        Record::Left,
        Record::Server(Server {
            backend: "app".to_owned(),
            name: "10.0.0.1:80".to_owned(),
            known: Known::default(),
            failures: 1,
            since: Duration::from_secs(2),
            reason: "refused".to_owned(),
            addresses: vec!["10.0.0.1:80".to_owned()],
        }),
        Record::Sticks {
            backend: "app".to_owned(),
            sticks: vec![StickEntry {
                client: 1,
                server: 2,
                remaining: Duration::from_secs(3),
            }],
        },
    ];
    let mut all = Vec::new();
    records.iter().for_each(|record| record.write(&mut all));
    assert_eq!(handover::run(&all), 7);
    run_on_mutations(&[all], handover::run);
}

#[test]
fn messages_after_a_handshake_survive_mutation() {
    let inputs = [
        b"\x09\x18\0\0\x01\x01\x04\0\0\0".to_vec(),
        b"\x06\x04\0\0\x05ab\x07cde\x18\0\0\x01\x01\x00\x04\0\0\0\0".to_vec(),
        b"\x02\x01\0\x05\0\0\0\0\x01\x03\0\0\0".to_vec(),
        b"\x06\x04\0\x20\0ab\xe4xyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyzxyz".to_vec(),
    ];
    run_on_mutations(&inputs, post_handshake::run);
}

#[test]
fn private_keys_survive_mutation() {
    let pkcs1 = b"\x30\x1b\x02\x01\0\x02\x01\x21\x02\x01\x03\x02\x01\x07\x02\x01\x0b\x02\x01\x03\x02\x01\x07\x02\x01\x01\x02\x01\x04";
    let info =
        b"\x30\x31\x02\x01\0\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\0\x04\x1d";
    let pkcs8 = [&info[..], &pkcs1[..]].concat();
    assert_eq!((rsa_key::run(pkcs1), rsa_key::run(&pkcs8)), (1, 2));
    run_on_mutations(&[pkcs1.to_vec(), pkcs8], rsa_key::run);
}

#[test]
fn the_peek_agrees_with_rustls_on_host_names() {
    let mut inputs: Vec<_> = [
        "_dmarc.Example.com.",
        "xn--bcher-kva.de",
        "a-b.1a",
        "192.0.2.1",
        "2001:db8::192.0.2.1",
        "::",
    ]
    .map(|name| name.as_bytes().to_vec())
    .to_vec();
    inputs.push([b"a".repeat(63), b"b".repeat(62)].join(&b'.'));
    inputs.push(
        [
            b"a".repeat(50),
            b"b".repeat(50),
            b"c".repeat(50),
            b"d".repeat(50),
            b"e".repeat(49),
        ]
        .join(&b'.'),
    );
    run_on_mutations(&inputs, client_hello::run);
}

#[test]
fn states_of_sessions_survive_mutation() {
    let mut state = vec![1, 4, b'a', b'.', b'b', b'c', 3, 4, 0x13, 1, 32];
    state.extend([7; 32]);
    state.extend([1, 1, 0, 0, 12, 0, 0, 3, 1, 2, 3, 0, 0, 3, 4, 5, 6, 0, 0, 0]);
    run_on_mutations(&[state], session_state::run);
}

#[test]
fn server_hellos_survive_mutation() {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(32);
    body.extend([9; 32]);
    body.extend([0xc0, 0x2f, 0, 0, 10, 0, 23, 0, 0, 0, 43, 0, 2, 3, 4]);
    let mut stream = vec![22, 3, 3, 0, body.len() as u8 + 4, 2, 0, 0, body.len() as u8];
    stream.extend(&body);
    run_on_mutations(&[body, stream], server_hello::run);
}

#[test]
fn dialogs_before_tls_survive_mutation() {
    let inputs = [
        b"\0\x02220-mx\r\n220 mx\r\n\0EHLO a\r\nMAIL FROM:<a>\r\nSTARTTLS\r\n".to_vec(),
        b"\x01\x01* OK [CAPABILITY IMAP4rev1] hi\r\n\0a NOOP\r\nb CAPABILITY\r\nc STARTTLS\r\n"
            .to_vec(),
        b"\x02\x03+OK <1@a>\r\n\0CAPA\r\nUSER x\r\nSTLS\r\n".to_vec(),
        b"\x03\x01\0\0\0\x08\x04\xd2\x16\x30\0\0\0\x08\x04\xd2\x16\x2f".to_vec(),
    ];
    run_on_mutations(&inputs, starttls::run);
}

#[test]
fn proxy_headers_survive_mutation() {
    let mut inputs = testdata("proxy_header");
    inputs.push(b"PROXY UNKNOWN anything\r\n".to_vec());
    inputs.push(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec());
    run_on_mutations(&inputs, proxy_header::run);
}

fn testdata(directory: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(directory);
    let mut files: Vec<_> = path
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

/// Spreads the content of a one-record hello over `count` records.
fn fragmented(record: &[u8], count: usize) -> Vec<u8> {
    let content = &record[5..];
    let mut out = Vec::new();
    for part in content.chunks(content.len().div_ceil(count)) {
        out.extend(&record[..3]);
        out.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
        out.extend(part);
    }
    out
}

/// Finds the list of extensions in a one-record hello.
fn extensions(record: &[u8]) -> &[u8] {
    let session_id = 5 + 4 + 2 + 32;
    let suites = session_id + 1 + usize::from(record[session_id]);
    let compression =
        suites + 2 + usize::from(u16::from_be_bytes([record[suites], record[suites + 1]]));
    &record[compression + 1 + usize::from(record[compression]) + 2..]
}
