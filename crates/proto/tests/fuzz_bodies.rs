//! Runs the bodies of the fuzz targets without a fuzzer: on real inputs, mutated by a seeded generator.
//!
//! The bodies live in `fuzz/src` and are shared by path, so that `cargo test` holds every change to what the fuzzer
//! would: no panic, no change of mind as bytes come, and no hello that the peek reads otherwise than rustls.
//! A failure prints the input; `cargo +nightly fuzz run` searches deeper.

#![expect(
    clippy::unwrap_used,
    reason = "a test, in which the lint sees no test functions"
)]

#[path = "../../../fuzz/src/client_hello.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod client_hello;
#[path = "../../../fuzz/src/http_status.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod http_status;
#[path = "../../../fuzz/src/proxy_header.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod proxy_header;
#[path = "../../../fuzz/src/replica.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod replica;

#[path = "../../../fuzz/src/server_hello.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod server_hello;
#[path = "../../../fuzz/src/session_state.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod session_state;
#[path = "../../../fuzz/src/starttls.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod starttls;
#[path = "../../../fuzz/src/stud.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod stud;

use std::panic::catch_unwind;
use std::path::Path;
use std::time::Duration;

use becket_proto::replica::{Record, ServerTag, SessionRecord, StickKey, StickRecord};
use becket_proto::session_table::PolicyTag;
use becket_proto::ticket::OriginId;

const ROUNDS: usize = 6_000;

#[test]
fn the_peek_agrees_with_rustls_on_mutated_hellos() {
    let hellos = testdata("client_hello");
    let mut inputs: Vec<_> = hellos.iter().map(|hello| fragmented(hello, 3)).collect();
    // The target frames its input also as the body of a hello and as a list of extensions.
    inputs.extend(hellos.iter().map(|hello| hello[9..].to_vec()));
    inputs.extend(hellos.iter().map(|hello| extensions(hello).to_vec()));
    inputs.extend(hellos);
    run_on_mutations(&inputs, client_hello::run);
}

#[test]
fn the_peek_agrees_with_rustls_on_what_a_host_name_is() {
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

#[test]
fn status_lines_survive_mutation() {
    let inputs = [
        b"HTTP/1.1 200 OK\r\nServer: a\r\n\r\n".to_vec(),
        b"HTTP/1.0 503 Service Unavailable\n".to_vec(),
        b"HTTP/1.1 204\r\n".to_vec(),
    ];
    run_on_mutations(&inputs, http_status::run);
}

#[test]
fn datagrams_of_other_nodes_survive_mutation() {
    let id = [7; 32];
    let session = SessionRecord {
        policy: PolicyTag(1),
        id: &id,
        ttl: Duration::from_secs(300),
        age: Duration::from_secs(1),
        origin: OriginId(2),
        state: &[9; 80],
    };
    let stick = StickRecord {
        by: StickKey::Origin(OriginId(2)),
        server: ServerTag(3),
        ttl: Duration::from_secs(60),
    };
    let records = [
        Record::New(session),
        Record::Sync(session),
        Record::Stick(stick),
        Record::Stuck(stick),
        Record::Del {
            policy: PolicyTag(1),
            id: &id,
        },
    ];
    let mut all = Vec::new();
    for record in &records {
        let mut text = vec![0; 200];
        let len = record.encode(&mut text).unwrap();
        all.extend(&text[..len]);
    }
    // What keeps a pair going, a kind from the future, a goodbye, and a HELLO in clear.
    let frames = b"\x05\x00\x10aaaaaaaaaaaaaaaa\x06\x00\x04\0\0\0\x01\x07\x00\x04\xff\xff\xff\xff\x08\x00\x04\0\0\0\x01\x63\0\x01a\x0a\0\0";
    let mut hello =
        b"BKT2\0\0\0\0\0\0\0\x01\0\0\0\0nnnnnnnnnnnn\x01\0\x03bbbbbbbb\0\0\0\x05".to_vec();
    hello.extend([0x55; 16 + 16 + 32 + 16]);
    let datagrams = [&all[..], frames, &hello];
    let framed = datagrams.map(|datagram| {
        let len = u16::try_from(datagram.len()).unwrap();
        [&len.to_be_bytes()[..], datagram].concat()
    });
    let mut inputs = framed.to_vec();
    inputs.push(framed.concat());
    inputs.push(all);
    run_on_mutations(&inputs, replica::run);
}

#[test]
fn datagrams_of_stud_survive_mutation() {
    let mut fields = b"\x02\x01\x01\x02\x02\x03\x03\x04\x02\xc0\x30\x04\x20".to_vec();
    fields.extend([5; 32]);
    fields.extend(b"\x04\x30");
    fields.extend([6; 48]);
    fields.extend(b"\xa1\x06\x02\x04\x6b\x01\x7d\x05\xa2\x04\x02\x02\x1c\x20\xa4\x02\x04\x00");
    fields.extend(
        b"\xa5\x03\x02\x01\x00\xa6\x08\x04\x06a.test\xad\x03\x02\x01\x01\xb3\x03\x02\x01\x1d",
    );
    let mut der = vec![0x30, 0x81, u8::try_from(fields.len()).unwrap()];
    der.extend(fields);
    let datagram = [&[5; 32][..], &der, &[0x6b, 1, 0x7d, 5], &[9; 20]].concat();
    let key =
        b"\x30\x14\x02\x01\x00\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00\x04\x00";
    assert!(becket_proto::stud::StudSession::parse(&der).is_ok());
    assert!(becket_proto::stud::rsa_pkcs1(key).is_some());
    run_on_mutations(&[datagram, der, key.to_vec()], stud::run);
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

/// Runs a target's body. Every hundredth input at least must be one that it accepts, or it would only see rubbish.
fn run_on_mutations(inputs: &[Vec<u8>], body: fn(&[u8]) -> usize) {
    let mut accepted: usize = inputs.iter().map(|input| check(body, input)).sum();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..ROUNDS {
        let mut input = inputs[random.below(inputs.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut input, &mut random);
        }
        accepted += check(body, &input);
    }

    assert!(
        accepted > ROUNDS / 100,
        "only {accepted} of {ROUNDS} inputs were accepted"
    );
}

fn check(body: fn(&[u8]) -> usize, input: &[u8]) -> usize {
    catch_unwind(|| body(input)).unwrap_or_else(|_| panic!("failed on {}", input.escape_ascii()))
}

/// Changes an input in one of the ways that break parsers: a bit, a byte, a length, a part lost, doubled or moved.
fn mutate(input: &mut Vec<u8>, random: &mut Random) {
    if input.is_empty() {
        input.push(random.byte());
        return;
    }
    let at = random.below(input.len());
    let end = at + random.below((input.len() - at).min(24) + 1);
    match random.below(7) {
        0 => input[at] ^= 1 << random.below(8),
        1 => input[at] = random.byte(),
        2 => {
            input[at] = [
                0,
                1,
                0x7f,
                0x80,
                0xff,
                input[at].wrapping_add(1),
                input[at].wrapping_sub(1),
            ][random.below(7)]
        }
        3 => input.truncate(at),
        4 => drop(input.drain(at..end)),
        5 => input.extend_from_within(at..end),
        _ => {
            let part = input[at..end].to_vec();
            let to = random.below(input.len());
            input.splice(to..to, part);
        }
    }
}

/// A xorshift generator: the same inputs in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }

    fn byte(&mut self) -> u8 {
        self.below(256) as u8
    }
}
