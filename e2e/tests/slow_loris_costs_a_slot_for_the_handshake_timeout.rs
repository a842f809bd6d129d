//! A handshake that never ends costs a slot for the handshake time-out, little memory, and nobody
//! else's service.

use std::io::Write;
use std::net::TcpStream;

use becket_e2e::{Backend, Becket, Client, PATIENCE, Place, REQUEST, Shape, Trust, until};

/// Where a record with a hello of twelve kilobytes begins.
const START: [u8; 9] = [22, 3, 1, 0x30, 0, 1, 0, 0x2f, 0xfc];

fn becket(place: &Place, backend: &Backend, timeout: &str) -> Becket {
    let shape = Shape::new(backend.address)
        .listener("defer-accept = \"0s\"")
        .timeouts(&format!("handshake = \"{timeout}\"\nhello = \"{timeout}\""));
    Becket::start(place, &shape)
}

fn connect(becket: &Becket) -> TcpStream {
    let socket = TcpStream::connect(becket.web).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

#[test]
#[ignore = "slow: .ci/run test"]
fn hundreds_of_them_take_little_memory_and_nobody_elses_service() {
    const MANY: usize = 400;
    const SENT: usize = 8 * 1024;
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = becket(&place, &backend, "60s");
    let trust = Trust::new(&place);
    // Warm: what every becket needs once does not count.
    Client::connect(becket.web, &trust)
        .unwrap()
        .ask(REQUEST)
        .unwrap();
    let resident = || becket.metrics().sum("process_resident_memory_bytes", &[]);
    let before = resident();
    let mut bytes = START.to_vec();
    bytes.resize(SENT, 3);
    let all: Vec<TcpStream> = (0..MANY)
        .map(|_| {
            let mut socket = connect(&becket);
            socket.write_all(&bytes).unwrap();
            socket
        })
        .collect();
    let in_flight = || becket.metrics().sum("becket_handshakes_in_flight", &[]) as usize;
    until("they are all there", || (in_flight() == MANY).then_some(()));
    let grown = resident() - before;
    let bound = (MANY * 16 * 1024) as f64 + 1e6;
    assert!(grown < bound, "{grown} bytes for {MANY}");
    let answer = Client::connect(becket.web, &trust).unwrap().ask(REQUEST);
    assert!(answer.unwrap().ends_with(b"well met"));
    assert_eq!(in_flight(), MANY, "it was served beside them");
    drop(all);
    becket.idle();
}
