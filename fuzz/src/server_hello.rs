//! The peek at a ServerHello: its answer is stable, and it learns only session IDs that the server made.

use becket_proto::server_hello::{ServerHelloPeek, peek};

/// Checks one input twice: as the bytes of a stream, and as the body of a hello in records.
///
/// Returns in how many of the two forms the peek found a hello.
///
/// # Panics
///
/// If the peek changes its answer as more bytes arrive, or would learn an ID that it must not.
pub fn run(data: &[u8]) -> usize {
    let raw = check(data);
    let data = &data[..data.len().min(MAX_FRAMED)];
    let fragment = 1 + usize::from(data.first().copied().unwrap_or(0));
    let framed = check(&in_records(data, fragment));
    usize::from(raw) + usize::from(framed)
}

fn check(stream: &[u8]) -> bool {
    let answer = peek(stream);
    for cut in [
        0,
        1,
        4,
        5,
        9,
        43,
        stream.len() / 2,
        stream.len().saturating_sub(1),
    ] {
        let early = peek(stream.get(..cut).unwrap_or(stream));
        assert!(
            early == ServerHelloPeek::Incomplete || early == answer,
            "{early:?} became {answer:?}"
        );
    }
    let ServerHelloPeek::Hello(hello) = answer else {
        return false;
    };
    if let Some(id) = hello.session_to_learn(b"another") {
        assert!((1..=32).contains(&id.len()));
        assert_eq!(hello.session_to_learn(id), None, "an echo");
    }
    true
}

fn in_records(body: &[u8], fragment: usize) -> Vec<u8> {
    let mut message = vec![2, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut stream = Vec::new();
    for part in message.chunks(fragment) {
        stream.extend([22, 3, 3]);
        stream.extend((part.len() as u16).to_be_bytes());
        stream.extend(part);
    }
    stream
}

/// Maximum length of a framed input in bytes, more than the peek reads.
const MAX_FRAMED: usize = 6000;
