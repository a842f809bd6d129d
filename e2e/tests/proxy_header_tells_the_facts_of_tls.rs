//! The PROXY header of version 2 contains the properties of the client's TLS connection: protocol, name, version, suite and
//! identity, also for resumed sessions.

use std::io;
use std::net::SocketAddr;

use becket_e2e::{Backend, Becket, Client, PATIENCE, Place, REQUEST, Shape, Trust};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::{TLS12, TLS13};

/// Sends a request. Returns the response and the client's address.
fn ask(becket: &Becket, trust: &Trust) -> (String, SocketAddr) {
    let mut client = Client::connect(becket.web, trust).unwrap();
    let own = client.socket.local_addr().unwrap();
    let answer = client.ask(REQUEST).unwrap();
    (String::from_utf8_lossy(&answer).into_owned(), own)
}

/// Parses `bytes` as TLVs and returns their types and values.
fn tlvs(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let [kind, high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        found.push((*kind, rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    found
}

fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes())
        .unwrap()
        .to_vec()
}

fn value(tlvs: &[(u8, Vec<u8>)], kind: u8) -> Option<&[u8]> {
    let found = tlvs.iter().find(|(other, _)| *other == kind);
    found.map(|(_, value)| value.as_slice())
}

#[test]
#[ignore = "slow: .ci/run test"]
fn version_2_contains_the_properties_of_tls() -> io::Result<()> {
    let place = Place::new();
    let (backend, headers) = Backend::collecting();
    let shape = Shape::new(backend.address)
        .listener("alpn = [\"http/1.0\"]")
        .backend(
            "proxy-header = \"v2\"\nproxy-tlvs = [\"unique-id\", \"client-certificate\", \"ja4\"]",
        )
        .section(
            "[[policy]]\nname = \"web\"\nclient-certificates = \"optional\"\n\
             client-ca = \"ca.pem\"",
        );
    let becket = Becket::start(&place, &shape);
    let alice = place.authority.issue_numbered(&["alice"], 0xabc);
    let mut ids = Vec::new();
    // PP2_CLIENT_SSL 1, PP2_CLIENT_CERT_CONN 2, PP2_CLIENT_CERT_SESS 4.
    for (own, full, resumed) in [(None, 1, 1), (Some(&alice), 7, 5)] {
        for (tls, version) in [(&TLS12, "TLSv1.2"), (&TLS13, "TLSv1.3")] {
            let trust = Trust::with(&place, &[tls], own).alpn(&["http/1.0"]);
            for flags in [full, resumed] {
                let (answer, from) = ask(&becket, &trust);
                assert!(answer.ends_with("well met"));
                let header = headers.recv_timeout(PATIENCE).unwrap();
                assert_eq!(&header[..12], b"\r\n\r\n\0\r\nQUIT\n");
                assert_eq!(&header[12..14], [0x21, 0x11], "PROXY over TCP and IPv4");
                assert_eq!(&header[24..26], from.port().to_be_bytes());
                let all = tlvs(&header[28..]);
                assert_eq!(value(&all, 0x01).unwrap(), b"http/1.0", "ALPN");
                assert_eq!(value(&all, 0x02).unwrap(), b"www.example.org", "authority");
                let id = value(&all, 0x05).unwrap();
                assert_eq!(id.len(), 32, "unique ID");
                ids.push(id.to_vec());
                let ssl = value(&all, 0x20).unwrap();
                assert_eq!(ssl[0], flags, "{version}: client flags");
                let verify = u32::from_be_bytes(ssl[1..5].try_into().unwrap());
                // The value is zero if the client presented a certificate that was verified successfully, otherwise
                // it is not zero.
                assert_eq!(verify == 0, own.is_some(), "{version}");
                let facts = tlvs(&ssl[5..]);
                assert_eq!(value(&facts, 0x21).unwrap(), version.as_bytes());
                let cipher = String::from_utf8_lossy(value(&facts, 0x23).unwrap());
                let names = ["ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"];
                assert_eq!(cipher, names[usize::from(version == "TLSv1.3")]);
                assert_eq!(value(&facts, 0x24).unwrap(), b"SHA256");
                assert_eq!(value(&facts, 0x25).unwrap(), b"EC256");
                if own.is_some() {
                    assert_eq!(value(&facts, 0x22).unwrap(), b"alice", "common name");
                }
                let shown = own.map(|own| der(&own.certificate));
                assert_eq!(value(&facts, 0x28), shown.as_deref(), "client certificate");
                let line = becket.next_access();
                let ja4 = value(&all, 0xec).unwrap();
                let begins = format!("t{}d", version.replace("TLSv", "").replace('.', ""));
                assert!(ja4.starts_with(begins.as_bytes()), "{version}");
                assert_eq!(line["ja4"].as_str().unwrap().as_bytes(), ja4);
                assert_eq!(line["unique_id"].as_str().unwrap().as_bytes(), id);
                let subject = own.map(|_| "CN=alice");
                assert_eq!(line["subject"].as_str(), subject);
                assert_eq!(line["serial"].as_str(), own.map(|_| "0ABC"));
            }
        }
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 8, "each connection has a unique ID");
    Ok(())
}
