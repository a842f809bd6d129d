//! The peek against hellos of real clients and against hellos made to break it.

use proptest::prelude::*;

use super::*;

struct Sample {
    name: &'static str,
    bytes: &'static [u8],
}

macro_rules! sample {
    ($name:literal) => {
        Sample {
            name: $name,
            bytes: include_bytes!(concat!("../../testdata/client_hello/", $name, ".bin")),
        }
    };
}

const SAMPLES: [Sample; 11] = [
    sample!("openssl-tls12"),
    sample!("openssl-tls13"),
    sample!("openssl-no-sni"),
    sample!("openssl-ip-literal"),
    sample!("openssl-tls12-ticket"),
    sample!("openssl-tls12-id"),
    sample!("openssl-tls13-psk"),
    sample!("openssl-tls10"),
    sample!("curl-h2"),
    sample!("gnutls"),
    sample!("openssl-tls12-ecdsa-sha384-alone"),
];

fn sample(name: &str) -> ClientHello<'static> {
    let sample = SAMPLES.iter().find(|sample| sample.name == name).unwrap();
    hello(sample.bytes)
}

fn hello(bytes: &[u8]) -> ClientHello<'_> {
    match peek(bytes) {
        Ok(Some(hello)) => hello,
        other => panic!("{other:?}"),
    }
}

fn malformed(bytes: &[u8]) -> Malformed {
    match peek(bytes) {
        Err(NotHello::Malformed(malformed)) => malformed,
        other => panic!("{other:?}"),
    }
}

fn name(hello: &ClientHello<'_>) -> Option<String> {
    Some(hello.server_name()?.as_str().to_owned())
}

/// Cuts the handshake message of a one-record hello into records that end at `cuts`.
fn fragmented(bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
    let message = &bytes[5..];
    let mut ends: Vec<usize> = cuts
        .iter()
        .map(|cut| cut % message.len())
        .filter(|cut| *cut > 0)
        .collect();
    ends.push(message.len());
    ends.sort_unstable();
    ends.dedup();
    let mut out = Vec::new();
    let mut start = 0;
    for end in ends {
        out.extend(record(HANDSHAKE, &message[start..end]));
        start = end;
    }
    out
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![kind, 3, 1];
    out.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
    out.extend(content);
    out
}

/// A hello with these extensions and nothing special before them.
fn hello_with(extensions: &[(u16, &[u8])]) -> Vec<u8> {
    let mut list = Vec::new();
    for (kind, content) in extensions {
        list.extend(kind.to_be_bytes());
        list.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        list.extend(*content);
    }
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
    body.extend(u16::try_from(list.len()).unwrap().to_be_bytes());
    body.extend(list);
    let mut message = vec![1, 0];
    message.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    message.extend(body);
    record(HANDSHAKE, &message)
}

const HANDSHAKE: u8 = 22;

#[test]
fn a_tls12_hello_is_read() {
    let hello = sample("openssl-tls12");
    assert_eq!(hello.legacy_version(), 0x0303);
    assert_eq!((hello.offers_tls12(), hello.offers_tls13()), (true, false));
    assert_eq!(name(&hello).as_deref(), Some("Example.COM"));
    assert_eq!(
        hello.alpn().collect::<Vec<_>>(),
        [b"h2".as_slice(), b"http/1.1"]
    );
    assert!(hello.session_id().is_empty());
    assert_eq!(
        hello.session_ticket(),
        Some(&[][..]),
        "asks for a ticket, has none"
    );
    assert_eq!(hello.cipher_suites().next(), Some(0xc02c));
    assert!(hello.signature_schemes().any(|scheme| scheme == 0x0403));
    assert_eq!(hello.groups().next(), Some(29));
    assert_eq!(hello.psk_identities().count(), 0);
    assert_eq!(hello.wire_len(), 226);
}

#[test]
fn a_tls13_hello_is_read() {
    let hello = sample("openssl-tls13");
    assert_eq!((hello.offers_tls12(), hello.offers_tls13()), (false, true));
    assert_eq!(hello.supported_versions().collect::<Vec<_>>(), [0x0304]);
    assert_eq!(name(&hello).as_deref(), Some("www.example.com"));
    assert_eq!(hello.alpn().collect::<Vec<_>>(), [b"http/1.1"]);
    assert_eq!(hello.session_id().len(), 32, "middlebox compatibility");
    assert!(!hello.offers_early_data());
    assert_eq!(
        hello.cipher_suites().take(3).collect::<Vec<_>>(),
        [0x1302, 0x1303, 0x1301]
    );
}

#[test]
fn resumption_offers_are_read() {
    let by_ticket = sample("openssl-tls12-ticket");
    assert!(by_ticket.session_ticket().unwrap().len() > 100);
    let by_id = sample("openssl-tls12-id");
    assert_eq!(by_id.session_id().len(), 32);
    assert_eq!(by_id.session_ticket(), None);
    let by_psk = sample("openssl-tls13-psk");
    let identities: Vec<_> = by_psk.psk_identities().collect();
    assert_eq!(identities.len(), 1);
    assert!(identities[0].len() > 100);
}

#[test]
fn hellos_without_a_host_name_are_read() {
    assert_eq!(name(&sample("openssl-no-sni")), None);
    assert_eq!(name(&sample("openssl-ip-literal")), None);
}

#[test]
fn hellos_of_other_clients_are_read() {
    let curl = sample("curl-h2");
    assert_eq!(name(&curl).as_deref(), Some("front.example"));
    assert_eq!(curl.alpn().next(), Some(b"h2".as_slice()));
    assert_eq!((curl.offers_tls12(), curl.offers_tls13()), (true, true));
    assert_eq!(name(&sample("gnutls")).as_deref(), Some("gnutls.example"));
    let old = sample("openssl-tls10");
    assert_eq!((old.offers_tls12(), old.offers_tls13()), (false, false));
    assert_eq!(old.legacy_version(), 0x0301);
}

#[test]
fn records_after_the_hello_are_ignored() {
    let mut bytes = SAMPLES[0].bytes.to_vec();
    bytes.extend([23, 3, 3, 0, 1, 0]);
    assert_eq!(hello(&bytes), hello(SAMPLES[0].bytes));
}

#[test]
fn a_hello_in_one_record_is_borrowed_and_one_in_two_is_assembled() {
    use std::borrow::Cow;
    let one = records::assemble(SAMPLES[0].bytes).unwrap().unwrap();
    assert!(matches!(one.body, Cow::Borrowed(_)));
    let bytes = fragmented(SAMPLES[0].bytes, &[1]);
    let two = records::assemble(&bytes).unwrap().unwrap();
    assert!(matches!(two.body, Cow::Owned(_)));
    assert_eq!(one.body, two.body);
    assert_eq!(two.wire_len, bytes.len());
}

#[test]
fn other_protocols_are_recognised() {
    for (input, expected) in [
        (b"GET / HTTP/1.1\r\n".as_slice(), NotHello::PlainHttp),
        (b"DELETE ", NotHello::PlainHttp),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", NotHello::PlainHttp),
        (b"PROXY TCP4 192.0.2.1 ", NotHello::ProxyHeader),
        (b"\r\n\r\n\0\r\nQUIT\n!\x11", NotHello::ProxyHeader),
        (b"\x80\x2e\x01\x03\x01", NotHello::Sslv2),
        (b"\x80\x2e\x04", NotHello::NotTls),
        (b"SSH-2.0-OpenSSH", NotHello::NotTls),
        (b"\0", NotHello::NotTls),
        (b"\x16\x02", NotHello::NotTls),
        (b"\x17\x03", NotHello::NotHandshake(23)),
        (
            b"\x15\x03\x01\0\x02\x01\0",
            NotHello::Alert {
                level: 1,
                description: 0,
            },
        ),
        (b"\x15\x03\x01\0\x03", NotHello::NotHandshake(21)),
        (b"\x16\x03\x01\0\x30\x02", NotHello::NotClientHello(2)),
    ] {
        assert_eq!(peek(input), Err(expected), "{input:?}");
        for cut in 0..input.len() {
            let earlier = peek(&input[..cut]);
            assert!(
                earlier == Ok(None) || earlier == Err(expected),
                "{input:?} at {cut}"
            );
        }
    }
}

#[test]
fn broken_records_are_rejected_at_the_first_invalid_byte() {
    assert_eq!(malformed(&[22, 3, 1, 0, 0]), Malformed::EmptyRecord);
    assert_eq!(malformed(&[22, 3, 1, 0x40, 1]), Malformed::OversizedRecord);
    assert_eq!(peek(&[22, 3, 1, 0x40, 0]), Ok(None));
    assert_eq!(
        malformed(&[22, 3, 1, 0, 9, 1, 1]),
        Malformed::OversizedHello
    );
    assert_eq!(
        malformed(&[22, 3, 1, 0, 9, 1, 0, 0, 4]),
        Malformed::TrailingBytes
    );
    let first = record(HANDSHAKE, &[1, 0, 0]);
    assert_eq!(
        malformed(&[&first[..], &[20]].concat()),
        Malformed::Interleaved(20)
    );
    assert_eq!(
        malformed(&[&first[..], &[22, 2]].concat()),
        Malformed::RecordVersion
    );
    assert_eq!(
        malformed(&[&first[..], &[22, 3, 0, 0, 0]].concat()),
        Malformed::EmptyRecord
    );
}

#[test]
fn broken_hellos_are_refused() {
    let twice = [(0x1234, &[][..]), (9, &[]), (0x1234, &[])];
    assert_eq!(
        malformed(&hello_with(&twice)),
        Malformed::DuplicateExtension(0x1234)
    );
    let psk = (41, &[0, 7, 0, 1, 9, 0, 0, 0, 0, 0, 2, 1, 9][..]);
    assert_eq!(hello(&hello_with(&[psk])).psk_identities().count(), 1);
    assert_eq!(
        malformed(&hello_with(&[psk, (9, &[])])),
        Malformed::PskNotLast
    );
    for (kind, content) in [
        (16, &[0, 0][..]),
        (16, &[0, 1, 0]),
        (16, &[0, 2, 1, 9, 9]),
        (43, &[0]),
        (43, &[1, 3]),
        (10, &[0, 3, 1, 2, 3]),
        (13, &[0, 0]),
        (23, &[0]),
        (42, &[0]),
        (45, &[0]),
        (41, &[0, 0, 0, 0]),
    ] {
        assert_eq!(
            malformed(&hello_with(&[(kind, content)])),
            Malformed::Extension(kind),
            "{kind} {content:?}"
        );
    }
    let names: [&[u8]; 3] = [&[0, 0], &[0, 4, 0, 0, 1, b'-'], &[0, 4, 0, 0, 1, b'a', 0]];
    for content in names {
        assert_eq!(
            malformed(&hello_with(&[(0, content)])),
            Malformed::ServerName,
            "{content:?}"
        );
    }
    let mut long = SAMPLES[0].bytes.to_vec();
    long[5 + 4 + 2 + 32] = 33;
    assert_eq!(malformed(&long), Malformed::Length);
}

#[test]
fn the_number_of_extensions_is_bounded() {
    let extensions: Vec<(u16, &[u8])> = (1000..)
        .take(MAX_EXTENSIONS + 1)
        .map(|kind| (kind, &[][..]))
        .collect();
    let refused = include_bytes!("../../testdata/client_hello_refused/extensions-129.bin");
    assert_eq!(hello_with(&extensions), refused);
    assert_eq!(malformed(refused), Malformed::TooManyExtensions);
    hello(&hello_with(&extensions[1..]));
}

#[test]
fn rejections_have_the_alert_required_by_the_rfc() {
    assert_eq!(NotHello::PlainHttp.alert(), None);
    assert_eq!(NotHello::Sslv2.alert(), Some(70));
    assert_eq!(
        NotHello::Malformed(Malformed::OversizedRecord).alert(),
        Some(22)
    );
    assert_eq!(NotHello::Malformed(Malformed::ServerName).alert(), Some(47));
    assert_eq!(
        NotHello::Malformed(Malformed::Length).to_string(),
        "malformed client hello: inconsistent length"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_fragmented_hello_is_read_like_an_unfragmented_one(which in 0..SAMPLES.len(), cuts in prop::collection::vec(0usize..600, 1..12)) {
        let bytes = fragmented(SAMPLES[which].bytes, &cuts);
        let (whole, parts) = (hello(SAMPLES[which].bytes), hello(&bytes));
        prop_assert_eq!(&whole.body, &parts.body);
        prop_assert_eq!(parts.wire_len(), bytes.len());
        let last = bytes.len() - 1;
        for cut in cuts {
            prop_assert_eq!(peek(&bytes[..cut.min(last)]), Ok(None));
        }
    }

}
