//! Headers of both versions: written and read back, truncated, damaged, and as HAProxy writes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use super::*;

const HAPROXY_V2: &[u8] = include_bytes!("../../testdata/proxy_header/haproxy-v2.bin");
const HAPROXY_TCP4: &[u8] = include_bytes!("../../testdata/proxy_header/haproxy-v1-tcp4.bin");
const HAPROXY_TCP6: &[u8] = include_bytes!("../../testdata/proxy_header/haproxy-v1-tcp6.bin");

const V2: Format = Format::V2;

fn header(input: &[u8], accept: Accept) -> (ProxyHeader<'_>, usize) {
    match decode(input, accept) {
        Ok(Some((header, len))) => (header, len),
        other => panic!("{other:?}"),
    }
}

fn refusal(input: &[u8], accept: Accept) -> Refusal {
    match decode(input, accept) {
        Err(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

fn encoded(header: &ProxyHeader<'_>, format: Format) -> Vec<u8> {
    let mut out = Vec::new();
    header.encode(format, &mut out).unwrap();
    out
}

fn plain(endpoints: Endpoints) -> ProxyHeader<'static> {
    ProxyHeader {
        endpoints,
        tlvs: Tlvs::default(),
    }
}

fn tcp(source: &str, destination: &str) -> Endpoints {
    Endpoints::tcp(source.parse().unwrap(), destination.parse().unwrap())
}

#[test]
fn headers_sent_by_haproxy_are_parsed() {
    let (v2, len) = header(HAPROXY_V2, Accept::Either);
    assert_eq!(&HAPROXY_V2[len..], b"hello\n");
    assert_eq!(v2.endpoints, tcp("127.0.0.1:55724", "127.0.0.1:18443"));
    assert_eq!(v2.tlvs.alpn, Some(b"http/1.1".as_slice()));
    assert_eq!(v2.tlvs.authority, Some("haproxy.example"));
    assert_eq!(v2.tlvs.unique_id.unwrap().len(), 22);
    let ssl = v2.tlvs.ssl.unwrap();
    assert_eq!(
        (
            ssl.is_tls,
            ssl.cert_in_connection,
            ssl.cert_in_session,
            ssl.verify
        ),
        (true, true, true, 0)
    );
    assert_eq!(
        (ssl.version, ssl.common_name),
        (Some("TLSv1.3"), Some("localhost"))
    );
    assert_eq!(
        (ssl.cipher, ssl.key_algorithm),
        (Some("TLS_AES_256_GCM_SHA384"), Some("EC256"))
    );
    assert_eq!(ssl.signature_algorithm, Some("ecdsa-with-SHA256"));
    assert_eq!(
        header(HAPROXY_TCP4, Accept::V1).0.endpoints,
        tcp("127.0.0.1:51994", "127.0.0.1:18080")
    );
    assert_eq!(
        header(HAPROXY_TCP6, Accept::V1).0.endpoints,
        tcp("[::1]:59146", "[::1]:18080")
    );
}

#[test]
fn version_1_headers_are_written_as_specified() {
    for (endpoints, line) in [
        (
            tcp("192.0.2.1:56324", "192.0.2.2:443"),
            "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n",
        ),
        (
            tcp("[2001:db8::1]:1", "[::]:0"),
            "PROXY TCP6 2001:db8::1 :: 1 0\r\n",
        ),
        (
            tcp("[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:2"),
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        ),
        (
            tcp("192.0.2.1:1", "[2001:db8::2]:2"),
            "PROXY TCP6 ::ffff:c000:201 2001:db8::2 1 2\r\n",
        ),
        (Endpoints::Local, "PROXY UNKNOWN\r\n"),
        (Endpoints::Unknown, "PROXY UNKNOWN\r\n"),
    ] {
        assert_eq!(encoded(&plain(endpoints), Format::V1), line.as_bytes());
    }
}

#[test]
fn version_2_headers_are_written_as_specified() {
    let bytes = encoded(&plain(tcp("192.0.2.1:258", "192.0.2.2:443")), V2);
    assert_eq!(&bytes[..12], v2::SIGNATURE);
    assert_eq!(bytes[12..16], [0x21, 0x11, 0, 12]);
    assert_eq!(bytes[16..], [192, 0, 2, 1, 192, 0, 2, 2, 1, 2, 1, 187]);
    let local = encoded(&plain(Endpoints::Local), V2);
    assert_eq!(local[12..], [0x20, 0, 0, 0]);
    assert_eq!(
        encoded(&plain(Endpoints::Unknown), V2)[12..],
        [0x21, 0, 0, 0]
    );
}

#[test]
fn lines_that_deviate_from_the_specification_are_rejected() {
    for (line, reason) in [
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n", Refusal::LineEnd),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\rx", Refusal::LineEnd),
        ("PROXY UNKNOWN a\nb\r\n", Refusal::LineEnd),
        ("PROXY UNKNOWNS\r\n", Refusal::Protocol),
        ("PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n", Refusal::Protocol),
        ("PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n", Refusal::Address),
        ("PROXY TCP4 ::1 ::1 1 2\r\n", Refusal::Address),
        ("PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n", Refusal::Address),
        ("PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", Refusal::Address),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n", Refusal::Address),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n", Refusal::Address),
        (
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
            Refusal::Address,
        ),
        ("PROXY TCP4 192.0.2.1  192.0.2.2 1 2\r\n", Refusal::Address),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n", Refusal::Address),
        ("PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n", Refusal::Address),
        ("PROXY\tTCP4 ", Refusal::Signature),
        ("GET / HTTP/1.1\r\n", Refusal::Signature),
    ] {
        assert_eq!(refusal(line.as_bytes(), Accept::Either), reason, "{line:?}");
    }
}

#[test]
fn a_line_is_limited_to_107_bytes() {
    let line = format!("PROXY UNKNOWN {}\r\n", "f".repeat(91));
    assert_eq!(line.len(), MAX_V1_BYTES);
    assert_eq!(
        header(line.as_bytes(), Accept::V1),
        (plain(Endpoints::Unknown), MAX_V1_BYTES)
    );
    for cut in 0..line.len() {
        assert_eq!(
            decode(&line.as_bytes()[..cut], Accept::V1),
            Ok(None),
            "at {cut}"
        );
    }
    let longer = format!("PROXY UNKNOWN {}\r\n", "f".repeat(92));
    assert_eq!(refusal(longer.as_bytes(), Accept::V1), Refusal::LineEnd);
    assert_eq!(
        refusal(&longer.as_bytes()[..106], Accept::V1),
        Refusal::LineEnd,
        "no CR can come in time"
    );
}

#[test]
fn a_mapped_address_in_dotted_form_is_read() {
    let line = b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n";
    let Endpoints::Tcp { source, .. } = header(line, Accept::V1).0.endpoints else {
        panic!()
    };
    assert_eq!(source, "[::ffff:192.0.2.1]:1".parse().unwrap());
}

#[test]
fn only_the_accepted_version_is_read() {
    assert_eq!(refusal(HAPROXY_V2, Accept::V1), Refusal::Signature);
    assert_eq!(refusal(HAPROXY_TCP4, Accept::V2), Refusal::Signature);
    assert_eq!(
        refusal(b"P", Accept::V2),
        Refusal::Signature,
        "at the first byte"
    );
}

/// A version 2 header with this command, family and block.
fn raw(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let mut bytes = v2::SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend(u16::try_from(block.len()).unwrap().to_be_bytes());
    bytes.extend(block);
    bytes
}

#[test]
fn binary_headers_that_deviate_from_the_specification_are_rejected() {
    let inet = [0; 12];
    let with = |tlvs: &[u8]| raw(0x21, 0x11, &[&inet[..], tlvs].concat());
    for (bytes, reason) in [
        (raw(0x11, 0x11, &inet), Refusal::Version),
        (raw(0x22, 0x11, &inet), Refusal::Command),
        (raw(0x21, 0x41, &inet), Refusal::Family),
        (raw(0x21, 0x13, &inet), Refusal::Family),
        (raw(0x21, 0x11, &inet[1..]), Refusal::TooShort),
        (raw(0x21, 0x21, &inet), Refusal::TooShort),
        (raw(0x21, 0x31, &[0; 215]), Refusal::TooShort),
        (raw(0x21, 0x11, &[0; MAX_V2_BYTES - 15]), Refusal::TooLong),
        (with(&[1, 0]), Refusal::Tlv(1)),
        (with(&[1, 0, 2, 9]), Refusal::Tlv(1)),
        (with(&[2, 0, 1, 0xff]), Refusal::Tlv(2)),
        (
            with(&[&[5, 0, 129][..], &[0; 129]].concat()),
            Refusal::Tlv(5),
        ),
        (with(&[0x20, 0, 4, 1, 0, 0, 0]), Refusal::Tlv(0x20)),
        (
            with(&[0x20, 0, 8, 1, 0, 0, 0, 0, 0x21, 0, 9]),
            Refusal::Tlv(0x21),
        ),
        (
            with(&[0x20, 0, 9, 1, 0, 0, 0, 0, 0x23, 0, 1, 0x80]),
            Refusal::Tlv(0x23),
        ),
        (with(&[1, 0, 1, 9, 1, 0, 1, 9]), Refusal::DuplicateTlv(1)),
    ] {
        assert_eq!(refusal(&bytes, Accept::V2), reason, "{bytes:?}");
    }
}

#[test]
fn an_invalid_header_is_rejected_before_it_is_complete() {
    let bytes = raw(0x21, 0x11, &[0; 3]);
    assert_eq!(refusal(&bytes[..16], Accept::V2), Refusal::TooShort);
    assert_eq!(
        refusal(&raw(0x31, 0, &[])[..13], Accept::V2),
        Refusal::Version
    );
}

#[test]
fn a_local_header_is_skipped_with_any_content() {
    let bytes = raw(0x20, 0xff, &[1, 2, 3]);
    assert_eq!(header(&bytes, Accept::V2), (plain(Endpoints::Local), 19));
}

#[test]
fn unspecified_addresses_are_skipped_but_tlvs_are_read() {
    // No family, no transport, and a Unix socket.
    for (family, block) in [
        (0x00, &[9; 12][..]),
        (0x10, &[9; 12]),
        (0x01, &[]),
        (0x31, &[9; 216]),
    ] {
        assert_eq!(
            header(&raw(0x21, family, block), Accept::V2).0,
            plain(Endpoints::Unknown)
        );
    }
    let bytes = raw(0x21, 0, &[2, 0, 1, b'a']);
    assert_eq!(header(&bytes, Accept::V2).0.tlvs.authority, Some("a"));
}

#[test]
fn unknown_types_and_padding_are_skipped() {
    let bytes = raw(
        0x21,
        0x11,
        &[
            &[0; 12][..],
            &[4, 0, 1, 0, 4, 0, 0, 0xe0, 0, 2, 7, 7, 2, 0, 1, b'a'],
        ]
        .concat(),
    );
    assert_eq!(header(&bytes, Accept::V2).0.tlvs.authority, Some("a"));
}

#[test]
fn an_oversized_header_is_not_encoded() {
    let long = "a".repeat(65536);
    let mut out = b"before".to_vec();
    let mut too_long = plain(Endpoints::Unknown);
    too_long.tlvs.authority = Some(&long);
    assert_eq!(too_long.encode(V2, &mut out), Err(EncodeError));
    too_long.tlvs.authority = Some(&long[..65535]);
    assert_eq!(too_long.encode(V2, &mut out), Err(EncodeError));
    let mut id = plain(Endpoints::Unknown);
    id.tlvs.unique_id = Some(&[0; 129]);
    assert_eq!(id.encode(V2, &mut out), Err(EncodeError));
    assert_eq!(out, b"before");
}

#[test]
fn private_tlvs_are_skipped_by_readers() {
    let header = ProxyHeader {
        endpoints: Endpoints::Unknown,
        tlvs: Tlvs {
            early_data: Some(16_384),
            ja4: Some(b"t13"),
            ..Tlvs::default()
        },
    };
    let mut out = Vec::new();
    header.encode(V2, &mut out).unwrap();
    assert_eq!(
        out[16..],
        [0xed, 0, 4, 0, 0, 0x40, 0, 0xec, 0, 3, b't', b'1', b'3']
    );
    let Ok(Some((header, len))) = decode(&out, Accept::V2) else {
        panic!("not a header");
    };
    assert_eq!((header.tlvs, len), (Tlvs::default(), out.len()));
}

/// Owned parts of a header.
#[derive(Clone, Debug)]
struct Parts {
    kind: u8,
    ports: (u16, u16),
    ips: (u128, u128),
    alpn: Option<Vec<u8>>,
    authority: Option<String>,
    unique_id: Option<Vec<u8>>,
    ssl: Option<(u8, u32, [Option<String>; 5])>,
}

impl Parts {
    fn header(&self) -> ProxyHeader<'_> {
        ProxyHeader {
            endpoints: self.endpoints(),
            tlvs: Tlvs {
                alpn: self.alpn.as_deref(),
                authority: self.authority.as_deref(),
                unique_id: self.unique_id.as_deref(),
                client_certificate_pem: None,
                early_data: None,
                ja4: None,
                ssl: self.ssl.as_ref().map(|(bits, verify, texts)| SslTlv {
                    is_tls: bits & 1 != 0,
                    cert_in_connection: bits & 2 != 0,
                    cert_in_session: bits & 4 != 0,
                    verify: *verify,
                    version: texts[0].as_deref(),
                    common_name: texts[1].as_deref(),
                    cipher: texts[2].as_deref(),
                    signature_algorithm: texts[3].as_deref(),
                    key_algorithm: texts[4].as_deref(),
                    client_certificate: texts[2].as_deref().map(str::as_bytes),
                }),
            },
        }
    }

    fn endpoints(&self) -> Endpoints {
        let tcp = |source: IpAddr, destination: IpAddr| Endpoints::Tcp {
            source: SocketAddr::new(source, self.ports.0),
            destination: SocketAddr::new(destination, self.ports.1),
        };
        match self.kind {
            0 => Endpoints::Unknown,
            1 => tcp(
                Ipv4Addr::from_bits(self.ips.0 as u32).into(),
                Ipv4Addr::from_bits(self.ips.1 as u32).into(),
            ),
            _ => tcp(
                Ipv6Addr::from_bits(self.ips.0).into(),
                Ipv6Addr::from_bits(self.ips.1).into(),
            ),
        }
    }
}

fn parts() -> impl Strategy<Value = Parts> {
    let bytes = |max| prop::option::of(prop::collection::vec(any::<u8>(), 0..=max));
    let text = || prop::option::of("[ -~]{0,40}");
    let texts = [text(), prop::option::of(".{0,40}"), text(), text(), text()];
    let ends = (0u8..3, any::<(u16, u16)>(), any::<(u128, u128)>());
    let tlvs = (bytes(300), prop::option::of(".{0,60}"), bytes(128));
    let ssl = prop::option::of((0u8..8, any::<u32>(), texts));
    (ends, tlvs, ssl).prop_map(
        |((kind, ports, ips), (alpn, authority, unique_id), ssl)| Parts {
            kind,
            ports,
            ips,
            alpn,
            authority,
            unique_id,
            ssl,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn encoded_version_2_headers_are_parsed_back(
        parts in parts(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encoded(&parts.header(), V2);
        let len = bytes.len();
        prop_assert_eq!(decode(&bytes[..cut.index(len)], Accept::Either), Ok(None));
        bytes.extend(b"GET /");
        prop_assert_eq!(header(&bytes, Accept::Either), (parts.header(), len));
    }

    #[test]
    fn encoded_version_1_headers_are_parsed_back(parts in parts(), cut in any::<prop::sample::Index>()) {
        let bytes = encoded(&parts.header(), Format::V1);
        prop_assert!(bytes.len() <= MAX_V1_BYTES);
        let expected = match parts.endpoints() {
            tcp @ Endpoints::Tcp { .. } => tcp,
            _ => Endpoints::Unknown,
        };
        prop_assert_eq!(header(&bytes, Accept::Either), (plain(expected), bytes.len()));
        prop_assert_eq!(decode(&bytes[..cut.index(bytes.len())], Accept::V1), Ok(None));
    }
}
