//! Tests of checks against servers that answer, answer wrongly, or do not answer.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use becket_config::backend::RequestHost;
use becket_config::notation::Text;
use becket_config::policy::{ServerTls, VerifiedName};
use becket_config::process::LimitsSection;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection};
use tokio::net::UnixSocket;

use super::*;
use becket_tls::config::Onward;
use becket_tls::server_rules::RuleVerifier;
use becket_tls::to_servers::for_check;

const PATIENCE: Duration = Duration::from_secs(20);

fn check(address: ServerAddress) -> Check {
    Check {
        starttls: None,
        addresses: Arc::new([address]),
        sources: Arc::new([]),
        proxy_header: None,
        tls: None,
        request: None,
        timeout: PATIENCE,
    }
}

fn http(address: ServerAddress) -> Check {
    let expect = ["2xx".parse().unwrap()];
    Check {
        request: Some(HealthRequest::get("/health?a=b", "app.test:80", &expect)),
        ..check(address)
    }
}

fn run(check: &Check) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(check.run())
}

/// Starts a server for one connection: it sends `answer` after it has received `asked`, and returns
/// the received bytes.
fn server(asked: &'static [u8], answer: &'static [u8]) -> (ServerAddress, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = ServerAddress::Tcp(listener.local_addr().unwrap());
    let serve = move || {
        let (mut stream, _) = listener.accept().unwrap();
        converse(&mut stream, asked, answer)
    };
    (address, thread::spawn(serve))
}

fn converse(stream: &mut (impl Read + Write), asked: &[u8], answer: &[u8]) -> Vec<u8> {
    let mut got = Vec::new();
    let mut byte = [0];
    while !got.ends_with(asked) && stream.read(&mut byte).is_ok_and(|n| n > 0) {
        got.extend(byte);
    }
    // In pieces, as in networks.
    for piece in answer.chunks(5) {
        // A check that has read enough closes the connection.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    got
}

#[test]
fn a_server_that_listens_passes_and_one_that_does_not_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    run(&check(ServerAddress::Tcp(address))).unwrap();
    drop(listener);
    let failure = run(&check(ServerAddress::Tcp(address))).unwrap_err();
    assert!(failure.to_string().contains("refused"), "{failure}");
}

#[test]
fn the_first_address_that_passes_decides() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let good = ServerAddress::Tcp(listener.local_addr().unwrap());
    let bad = ServerAddress::Unix("/nowhere/at/all".into());
    let both = |addresses: [ServerAddress; 2]| Check {
        addresses: Arc::new(addresses),
        ..check(bad.clone())
    };
    run(&both([bad.clone(), good.clone()])).unwrap();
    run(&both([good, bad.clone()])).unwrap();
    assert!(run(&both([bad.clone(), bad.clone()])).is_err());
}

#[test]
fn a_unix_socket_is_checked_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    run(&check(ServerAddress::Unix(path))).unwrap();
}

#[test]
fn a_check_without_an_expected_answer_ignores_sent_data_and_closes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = ServerAddress::Tcp(listener.local_addr().unwrap());
    let talking = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(&[0; 2048]).is_ok() {}
    });
    let check = Check {
        request: Some(HealthRequest {
            bytes: b"cancel".as_slice().into(),
            expect: None,
        }),
        ..check(address)
    };
    run(&check).unwrap();
    talking.join().unwrap();
}

#[test]
fn an_http_status_decides() {
    let answers: [(&[u8], Option<&str>); 5] = [
        (b"HTTP/1.1 204 No Content\r\n\r\n", None),
        (b"HTTP/1.0 503 Sorry\r\n", Some("status 503")),
        (b"SSH-2.0-x\r\n", Some("the answer is not HTTP")),
        (b"HTTP/1.1 2", Some("after connect: unexpected end of file")),
        (b"", Some("after connect: unexpected end of file")),
    ];
    for (answer, expected) in answers {
        let (address, served) = server(b"\r\n\r\n", answer);
        let failure = run(&http(address)).err().map(|failure| failure.to_string());
        assert_eq!(failure.as_deref(), expected);
        let asked = String::from_utf8(served.join().unwrap()).unwrap();
        assert!(
            asked.starts_with("GET /health?a=b HTTP/1.1\r\nHost: app.test:80\r\n"),
            "{asked}"
        );
    }
}

#[test]
fn a_request_names_the_host_and_a_socket_has_none() {
    let asked = |name: &str, host: Option<&str>| {
        let mut backend = Backend::plain("app", vec![Server::plain(name, Vec::new())]);
        backend.keys.health.check = CheckKind::Http;
        backend.keys.health.host = host.map(|host| RequestHost(host.to_owned()));
        let check = Check::of(&backend, &backend.servers[0]).unwrap();
        String::from_utf8(check.request.unwrap().bytes.to_vec()).unwrap()
    };
    let own = asked("127.0.0.1:8080", None);
    assert!(
        own.starts_with("GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n"),
        "{own}"
    );
    for (name, host) in [("127.0.0.1:8080", Some("app.test")), ("/app.test", None)] {
        let given = asked(name, host);
        let host = host.unwrap_or("localhost");
        assert!(given.contains(&format!("\r\nHost: {host}\r\n")), "{given}");
    }
}

#[test]
fn a_status_is_read_from_a_whole_line_and_no_further() {
    for (text, expected) in [
        (
            "HTTP/1.0 503 Service Unavailable\r\nServer: x\r\n",
            Some(503),
        ),
        ("HTTP/1.1 404\n", Some(404)),
        ("HTTP/1.1 204\r\n", Some(204)),
        ("HTTP/1.1 200 d\u{e9}j\u{e0} vu\r\nno header", Some(200)),
        ("HTTP/1.1 200 OK", None),
    ] {
        assert_eq!(status(text.as_bytes()).unwrap(), expected, "{text}");
    }
    let endless = format!("HTTP/1.1 200 {}", "a".repeat(MAX_STATUS_LINE));
    for text in [
        "S",
        "\u{15}\u{3}\u{3}",
        "HTTP/2",
        "HTTP/1.1 2x",
        "HTTP/1.1 2000",
        &endless,
    ] {
        assert!(
            matches!(status(text.as_bytes()), Err(Failure::NotHttp)),
            "{text}"
        );
    }
}

#[test]
fn a_server_that_is_silent_costs_the_time_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let check = Check {
        timeout: Duration::from_millis(50),
        ..http(ServerAddress::Tcp(listener.local_addr().unwrap()))
    };
    assert_eq!(
        run(&check).unwrap_err().to_string(),
        "no answer within 50ms"
    );
}

#[test]
fn a_check_waits_for_a_unix_socket_with_a_full_backlog() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app");
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        // One connection is in the queue, and the next one would have to wait.
        let listener = socket.listen(0).unwrap();
        let _first = UnixStream::connect(&path).await.unwrap();
        let full = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let check = check(ServerAddress::Unix(path));
        let accepting = async { while listener.accept().await.is_ok() {} };
        tokio::select! {
            biased;
            outcome = check.run() => outcome.unwrap(),
            () = accepting => panic!("nobody accepts any more"),
        }
    });
}

#[test]
fn the_proxy_header_of_a_check_names_no_client() {
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
    let v1 = b"PROXY UNKNOWN\r\n";
    for (version, header) in [(Introduction::V2, &v2[..]), (Introduction::V1, &v1[..])] {
        let (address, served) = server(b"close\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n");
        let check = Check {
            proxy_header: Some(version),
            ..http(address)
        };
        run(&check).unwrap();
        let got = served.join().unwrap();
        assert!(got.starts_with(header), "{}", got.escape_ascii());
        assert!(got[header.len()..].starts_with(b"GET "));
    }
}

#[test]
fn a_check_uses_the_configured_source_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let source: IpAddr = "127.77.0.9".parse().unwrap();
    let check = Check {
        sources: Arc::new(["::1".parse().unwrap(), source]),
        ..check(ServerAddress::Tcp(listener.local_addr().unwrap()))
    };
    run(&check).unwrap();
    assert_eq!(listener.accept().unwrap().1.ip(), source);
}

fn tls_server(answer: &'static [u8]) -> (ServerAddress, JoinHandle<()>) {
    tls_server_with(1, answer)
}

/// Starts a TLS server that sends its certificate `shown` times.
fn tls_server_with(shown: usize, answer: &'static [u8]) -> (ServerAddress, JoinHandle<()>) {
    let made = rcgen::generate_simple_self_signed(["app.test".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone(); shown], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = ServerAddress::Tcp(listener.local_addr().unwrap());
    let serve = move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
        // A client that does not trust the certificate closes early.
        let _left = tls.complete_io(&mut stream);
        if !answer.is_empty() {
            converse(
                &mut rustls::Stream::new(&mut tls, &mut stream),
                b"\r\n\r\n",
                answer,
            );
        }
    };
    (address, thread::spawn(serve))
}

fn with_tls(check: Check, config: ClientConfig) -> Check {
    let name = ServerName::try_from("app.test").unwrap();
    Check {
        tls: Some((Arc::new(config), name)),
        ..check
    }
}

fn client(trusts: bool) -> ClientConfig {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    if trusts {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(RuleVerifier::none(provider)))
            .with_no_client_auth()
    } else {
        builder
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth()
    }
}

#[test]
fn an_oversized_certificate_chain_fails_the_check() {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let onward = |bytes| Onward {
        client: client(true),
        verifier: Arc::new(RuleVerifier::none(Arc::clone(&provider))),
        contents: [0; 32],
        most_chain: LimitsSection {
            certificate_chain: bytes,
            ..LimitsSection::default()
        },
        keys: ServerTls {
            name: VerifiedName::parse("app.test").ok(),
            ..ServerTls::default()
        },
    };
    let kib = 1024;
    for (shown, most, fault) in [
        (1, 16 * kib, None),
        (8, 16 * kib, Some("7 intermediate certificates")),
        (8, kib, Some("limits.certificate-chain is 1024")),
        // More than rustls accepts in one message.
        (400, 16 * kib, Some("handshake payload too large")),
    ] {
        let (address, served) = tls_server_with(shown, b"");
        let check = Check {
            tls: Some(for_check(&onward(most), &"app".into(), |_| true)),
            ..check(address)
        };
        let said = run(&check).err().map(|failure| failure.to_string());
        match fault {
            None => assert_eq!(said, None),
            Some(fault) => assert!(
                said.as_ref().is_some_and(|said| said.contains(fault)),
                "{said:?}"
            ),
        }
        served.join().unwrap();
    }
}

#[test]
fn the_handshake_and_the_http_status_over_tls_decide() {
    let (address, served) = tls_server(b"");
    run(&with_tls(check(address), client(true))).unwrap();
    served.join().unwrap();
    let (address, served) = tls_server(b"HTTP/1.1 200 OK\r\n\r\n");
    run(&with_tls(http(address), client(true))).unwrap();
    served.join().unwrap();
    let (address, served) = tls_server(b"HTTP/1.1 500 Oh\r\n\r\n");
    let failure = run(&with_tls(http(address), client(true))).unwrap_err();
    assert_eq!(failure.to_string(), "status 500");
    served.join().unwrap();
}

#[test]
fn a_server_that_is_not_trusted_or_speaks_no_tls_fails() {
    let (address, served) = tls_server(b"");
    let failure = run(&with_tls(check(address), client(false))).unwrap_err();
    assert!(matches!(failure, Failure::Tls(_)), "{failure}");
    served.join().unwrap();
    let (address, served) = server(b"", b"220 mail.test ready\r\n");
    let failure = run(&with_tls(check(address), client(true))).unwrap_err();
    assert!(matches!(failure, Failure::Tls(_)), "{failure}");
    served.join().unwrap();
}
