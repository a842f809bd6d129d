//! The ClientHello peek, compared with rustls and with itself.
//!
//! Two parsers read each hello: the peek chooses the policy, rustls chooses the certificate. The peek must read every hello
//! that rustls accepts in the same way, or reject it by one of a few intentionally stricter rules.

use becket_proto::client_hello::{ClientHello, MAX_NAME_BYTES, Malformed, NotHello, peek};
use rustls::server::{Accepted, Acceptor};

/// Checks one input in four frames: as bytes of a connection, as the body of a hello, as its extensions, as a server name.
///
/// Lengths in the frames are consistent, so that the fuzzer need not guess them.
///
/// Returns the number of frames that rustls accepted. A run with too few accepted inputs would test nothing.
///
/// # Panics
///
/// If the peek changes its answer as more bytes arrive, or reads a hello differently from rustls.
pub fn run(data: &[u8]) -> usize {
    let raw = check(data);
    let data = &data[..data.len().min(MAX_FRAMED)];
    let fragment = 1 + usize::from(data.first().copied().unwrap_or(0)) * 4;
    let body = check(&in_records(data, fragment));
    let extensions = check(&in_records(&in_hello(data), MAX_FRAMED * 2));
    let name = check(&in_records(
        &in_hello(&in_server_name(data)),
        MAX_FRAMED * 2,
    ));
    [raw, body, extensions, name]
        .into_iter()
        .filter(|accepted| *accepted)
        .count()
}

/// Checks one stream. Returns `true` if rustls accepts it.
fn check(stream: &[u8]) -> bool {
    let answer = peek(stream);
    if let Ok(Some(hello)) = &answer {
        walk(hello);
        assert!(hello.wire_len() <= stream.len());
        assert_eq!(
            peek(&stream[..hello.wire_len()]),
            answer,
            "reads beyond wire_len"
        );
        assert_eq!(peek(&stream[..hello.wire_len() - 1]), Ok(None));
    }
    for cut in [1, 3, 5, 9, stream.len() / 2, stream.len().saturating_sub(1)] {
        let early = peek(stream.get(..cut).unwrap_or(stream));
        assert!(
            early == Ok(None) || early == answer,
            "{early:?} became {answer:?}"
        );
    }
    let accepted = accept(stream);
    if let Some(accepted) = &accepted {
        compare(&answer, accepted);
    }
    accepted.is_some()
}

/// Makes a ClientHello message with this body and spreads it over records.
fn in_records(body: &[u8], fragment: usize) -> Vec<u8> {
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    let mut stream = Vec::new();
    for part in message.chunks(fragment) {
        stream.extend([22, 3, 1]);
        stream.extend((part.len() as u16).to_be_bytes());
        stream.extend(part);
    }
    stream
}

/// Returns the body of a hello with the `signature_algorithms` extension, which rustls requires, and these extensions.
fn in_hello(extensions: &[u8]) -> Vec<u8> {
    let signature_algorithms = [0, 13, 0, 4, 0, 2, 4, 3];
    let mut body = vec![3, 3];
    body.extend([0x5a; 32]);
    body.extend([0, 0, 4, 0x13, 1, 0xc0, 0x2b, 1, 0]);
    body.extend((extensions.len() as u16 + signature_algorithms.len() as u16).to_be_bytes());
    body.extend(signature_algorithms);
    body.extend(extensions);
    body
}

/// Makes a server_name extension that names one host.
fn in_server_name(name: &[u8]) -> Vec<u8> {
    let name = &name[..name.len().min(MAX_NAME_BYTES + 3)];
    let len = name.len() as u16;
    let mut extension = vec![0, 0];
    extension.extend((len + 5).to_be_bytes());
    extension.extend((len + 3).to_be_bytes());
    extension.push(0);
    extension.extend(len.to_be_bytes());
    extension.extend(name);
    extension
}

/// Calls every getter of a hello, none of which may panic.
fn walk(hello: &ClientHello<'_>) {
    let numbers = [
        hello.cipher_suites().count(),
        hello.signature_schemes().count(),
        hello.groups().count(),
        hello.supported_versions().count(),
        hello.extension_types().count(),
    ];
    assert!(numbers.iter().all(|count| count * 2 <= hello.wire_len()));
    assert!(hello.alpn().all(|protocol| !protocol.is_empty()));
    assert!(hello.psk_identities().all(|psk| !psk.is_empty()));
    assert!(hello.session_id().len() <= 32);
    assert!(
        hello
            .session_ticket()
            .is_none_or(|ticket| ticket.len() < hello.wire_len())
    );
    let switches = [
        hello.offers_tls12(),
        hello.offers_tls13(),
        hello.offers_early_data(),
    ];
    std::hint::black_box(switches);
}

/// Passes the bytes to rustls as a connection would. Returns `None` if it rejects them or needs more.
fn accept(mut data: &[u8]) -> Option<Accepted> {
    let mut acceptor = Acceptor::default();
    while !data.is_empty() {
        if acceptor.read_tls(&mut data).ok()? == 0 {
            return None;
        }
        if let Some(accepted) = acceptor.accept().ok()? {
            return Some(accepted);
        }
    }
    None
}

/// Compares the peek's answer with a hello that rustls accepted.
fn compare(answer: &Result<Option<ClientHello<'_>>, NotHello>, accepted: &Accepted) {
    let peeked = match answer {
        Ok(Some(hello)) => hello,
        Err(not_hello) if is_stricter_by_intent(*not_hello) => return,
        other => panic!("rustls accepts it, the peek answers {other:?}"),
    };
    let hello = accepted.client_hello();
    let mut lower = [0; MAX_NAME_BYTES];
    let name = peeked
        .server_name()
        .map(|name| name.to_lowercase(&mut lower));
    assert_eq!(name, hello.server_name());
    assert!(peeked.alpn().eq(hello.alpn().into_iter().flatten()), "alpn");
    assert!(
        peeked
            .cipher_suites()
            .eq(hello.cipher_suites().iter().map(|suite| u16::from(*suite))),
        "suites"
    );
    let schemes = hello
        .signature_schemes()
        .iter()
        .map(|scheme| u16::from(*scheme));
    assert!(peeked.signature_schemes().eq(schemes), "signature schemes");
    let groups = hello
        .named_groups()
        .unwrap_or_default()
        .iter()
        .map(|group| u16::from(*group));
    assert!(peeked.groups().eq(groups), "groups");
}

/// Returns `true` if the peek rejects a hello by a rule that rustls does not have.
fn is_stricter_by_intent(not_hello: NotHello) -> bool {
    matches!(
        not_hello,
        // A record version other than 0x03xx: rustls also accepts those of SSL 2.0 and DTLS.
        NotHello::NotTls
            | NotHello::Malformed(Malformed::RecordVersion)
            // More than 2^14 bytes: rustls accepts 2 KiB more.
            | NotHello::Malformed(Malformed::OversizedRecord)
            | NotHello::Malformed(Malformed::TooManyExtensions)
    )
}

/// Maximum length of a framed input in bytes. A hello of this length fits into one record.
const MAX_FRAMED: usize = 8000;
