//! Early data (0-RTT) reaches the server a round trip earlier, with a mark. Replayed early data reaches no
//! server.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use becket_e2e::{Backend, Becket, Finished, OpenSsl, PATIENCE, Place, Shape};

const REQUEST: &str = "GET /early HTTP/1.0\r\n\r\n";
const POLICY: &str = "[[policy]]\nname = \"web\"\nversions = [\"1.3\"]\nearly-data = \"17KiB\"\n";

/// Data that a server received for a request.
#[derive(Debug)]
struct Asked {
    /// Value of becket's own TLV in the PROXY header.
    mark: Option<Vec<u8>>,
    head: String,
}

/// Starts a server that reads the PROXY header and reports the request.
fn collecting() -> (Backend, Receiver<Asked>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = Backend::new(move |mut stream| {
        let header = becket_e2e::read_proxy_header(&mut stream)?;
        let head = becket_e2e::read_head(&mut stream)?;
        let asked = Asked {
            mark: mark(&header[28..]),
            head: String::from_utf8_lossy(&head).into_owned(),
        };
        tell.lock().unwrap().send(asked).ok();
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nwell met")
    });
    (backend, told)
}

fn mark(mut tlvs: &[u8]) -> Option<Vec<u8>> {
    while let [kind, high, low, rest @ ..] = tlvs {
        let (value, rest) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        if *kind == 0xed {
            return Some(value.to_vec());
        }
        tlvs = rest;
    }
    None
}

fn shape(backend: SocketAddr) -> Shape {
    Shape::new(backend)
        .backend("proxy-header = \"v2\"")
        .section(POLICY)
}

fn early(becket: &Becket, outcome: &str) -> u64 {
    let label = format!("outcome=\"{outcome}\"");
    becket.metrics().sum("becket_early_data_total", &[&label]) as u64
}

#[test]
#[ignore = "slow: .ci/run test"]
fn early_data_of_openssl_is_accepted_once_per_session() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let (backend, asked) = collecting();
    let becket = Becket::start(&place, &shape(backend.address));
    let (session, request) = (place.text("session.pem"), place.text("request"));
    place.write("request", REQUEST);
    let run = |flags: &[&str]| -> Finished { openssl.ask(&place, becket.web, flags) };
    let first = run(&["-tls1_3", "-sess_out", &session]);
    assert!(
        first.stdout.contains("Max Early Data: 17408"),
        "{}",
        first.all()
    );
    assert_eq!(asked.recv_timeout(PATIENCE).unwrap().mark, None);
    assert_eq!(becket.next_access()["handshake"], "full");

    let flags = ["-tls1_3", "-sess_in", &session, "-early_data", &request];
    let second = run(&flags);
    assert!(
        second.stdout.contains("Early data was accepted"),
        "{}",
        second.all()
    );
    assert!(second.stdout.contains("well met"), "{}", second.all());
    let told = asked.recv_timeout(PATIENCE).unwrap();
    assert_eq!(told.mark.as_deref(), Some(&17_408_u32.to_be_bytes()[..]));
    assert_eq!(told.head, REQUEST);
    assert_eq!(becket.next_access()["handshake"], "early");

    // A second use of this session: becket makes a full handshake and ignores the early data.
    let third = run(&flags);
    assert!(
        third.stdout.contains("Early data was rejected"),
        "{}",
        third.all()
    );
    let told = asked.recv_timeout(PATIENCE).unwrap();
    assert_eq!(told.mark, None);
    assert!(told.head.starts_with("GET / "), "{}", told.head);
    assert_eq!(becket.next_access()["handshake"], "full");
    assert_eq!(
        (early(&becket, "accepted"), early(&becket, "rejected")),
        (1, 1)
    );
    assert_eq!(backend.served(), 3);
}
