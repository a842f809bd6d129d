//! Hitch, and becket as its replacement, send the same bytes to a server before the client's data: an address in bytes, a received
//! PROXY header, a client certificate.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use becket_e2e::{
    Backend, Becket, Client, Either, Key, OpenSsl, PATIENCE, Place, REQUEST, Shape, Trust,
    as_nobody, fresh_address,
};

/// Starts a server that reports all bytes before a request, and answers.
fn first_bytes() -> (Backend, Receiver<Vec<u8>>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = Backend::new(move |mut stream| {
        let mut seen = Vec::new();
        while !seen.ends_with(b"GET /") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            seen.extend(byte);
        }
        seen.truncate(seen.len() - b"GET /".len());
        becket_e2e::read_head(&mut stream)?;
        tell.lock().unwrap().send(seen).ok();
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nwell met")
    });
    (backend, told)
}

/// Sends bytes before the TLS handshake, then a request. Returns the response.
fn ask(at: SocketAddr, place: &Place, first: &[u8]) -> io::Result<Vec<u8>> {
    let mut client = Client::begin(at, &Trust::new(place), "www.example.org")?;
    client.socket.write_all(first)?;
    client.ask(REQUEST)
}

/// Returns the bytes before the request that the server receives from hitch and from becket.
fn both_tell(settings: &str, act: impl Fn(&Place, SocketAddr)) -> Option<[Vec<u8>; 2]> {
    let both = Either::both("hitch", "hitch")?;
    let place = Place::new();
    place.issue("client.pem", &["client"], Key::Ecdsa);
    let (backend, told) = first_bytes();
    let user = as_nobody(&place);
    Some(both.map(|either| {
        let at = fresh_address();
        place.write(
            "hitch.conf",
            &format!(
                "frontend = \"[{}]:{}\"\nbackend = \"[{}]:{}\"\npem-file = \"{}\"\nclient-verify = optional\nclient-verify-ca = \"{}\"\n{settings}",
                at.ip(), at.port(), backend.address.ip(), backend.address.port(), place.text("site.pem"), place.text("ca.pem"),
            ),
        );
        let _running = either.start(&place, &[&["--config", "hitch.conf"], user].concat(), &[at]);
        act(&place, at);
        told.recv_timeout(PATIENCE).unwrap()
    }))
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_client_address_is_sent_in_the_binary_format_of_hitch() {
    let act = |place: &Place, at| {
        assert!(ask(at, place, b"").unwrap().ends_with(b"well met"));
    };
    if let Some([theirs, ours]) = both_tell("write-ip = on\n", act) {
        assert_eq!(theirs, [2, 127, 0, 0, 1]);
        assert_eq!(theirs, ours);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_received_proxy_header_is_forwarded() {
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n";
    let act = |place: &Place, at| {
        assert!(ask(at, place, header).unwrap().ends_with(b"well met"));
    };
    if let Some([theirs, ours]) = both_tell("proxy-proxy = on\n", act) {
        assert_eq!(theirs, header);
        assert_eq!(theirs, ours);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_client_certificate_is_sent_as_pem() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let act = |place: &Place, at| {
        let run = openssl.ask(place, at, &["-cert", &place.text("client.pem")]);
        assert!(run.stdout.contains("well met"), "{}", run.all());
    };
    let told = both_tell("write-proxy-v2 = on\nproxy-client-cert = on\n", act);
    let certificate = |header: &[u8]| -> Vec<u8> {
        // Skip signature, command, family and length, then the IPv4 addresses and ports.
        let mut tlvs = &header[16 + 12..];
        while let [kind, high, low, rest @ ..] = tlvs {
            let (value, behind) = rest.split_at(u16::from_be_bytes([*high, *low]).into());
            if *kind == 0xe0 {
                return value.to_vec();
            }
            tlvs = behind;
        }
        panic!("no certificate in {}", header.escape_ascii());
    };
    if let Some([theirs, ours]) = told.map(|told| told.map(|header| certificate(&header))) {
        assert!(theirs.starts_with(b"-----BEGIN TRUSTED CERTIFICATE-----\n"));
        assert_eq!(
            theirs.escape_ascii().to_string(),
            ours.escape_ascii().to_string()
        );
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_binary_proxy_header_is_forwarded_with_unknown_fields() {
    let place = Place::new();
    let (backend, told) = first_bytes();
    let shape = Shape::new(backend.address)
        .listener("accept-proxy = \"any\"\ntrusted-networks = [\"127.0.0.0/8\"]")
        .backend("proxy-header = \"received\"");
    let becket = Becket::start(&place, &shape);
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x13".to_vec();
    header.extend([192, 0, 2, 7, 198, 51, 100, 1, 0x12, 0x67, 1, 0xbb]);
    // Add an unknown TLV.
    header.extend([0xe7, 0, 4, 1, 2, 3, 4]);
    assert!(
        ask(becket.web, &place, &header)
            .unwrap()
            .ends_with(b"well met")
    );
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), header);
    // A LOCAL header is forwarded as well.
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    assert!(
        ask(becket.web, &place, local)
            .unwrap()
            .ends_with(b"well met")
    );
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), local);
}
