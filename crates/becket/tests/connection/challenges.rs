//! Tests of the challenges of an ACME authority: the pending ones are answered, and nothing else.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::script::link::End;
use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_proto::acme::{Challenge, ChallengeAnswer};
use becket_proto::close_reason::CloseReason;
use becket_tls::challenges::{ACME_TLS, HTTP_PATH};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{AlertDescription, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::common::{Client, House, server_got};
use crate::starttls::{begin_tls, enter, say};

/// Accepts the self-signed certificate of a challenge. An end-to-end test shows that an authority does.
#[derive(Debug)]
struct Authority;

impl ServerCertVerifier for Authority {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

fn authority(house: &House) -> Arc<ClientConfig> {
    let mut config = house.client(&TLS13);
    let mut dangerous = config.dangerous();
    dangerous.set_certificate_verifier(Arc::new(Authority));
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    Arc::new(config)
}

fn await_answer(stage: &Stage, name: &str, answer: ChallengeAnswer) {
    let name = name.to_owned();
    let pending = [(Challenge { name, answer }, Duration::MAX)];
    let challenges = &stage.challenges;
    challenges.replace(&pending, |_, error| panic!("{error}"));
}

/// Terminates TLS for `a.test`, and passes it through for `*.b.test`.
const WEB: &str = "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
     certificates = ['a.pem']\nalpn = ['h2', 'acme-tls/1']\n\
     [[listener.route]]\nnames = ['*.b.test']\nmode = 'passthrough'\nbackend = 'app'\n\
     [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n";

#[test]
fn a_pending_name_is_answered_before_any_route_and_is_no_client() {
    let house = House::new(WEB);
    for (pending, name, is_answered) in [
        ("a.test", "a.test", true),
        ("x.b.test", "x.b.test", true),
        ("a.test", "x.b.test", false),
        ("x.b.test", "a.test", false),
    ] {
        let mut stage = house.stage();
        await_answer(&stage, pending, ChallengeAnswer::TlsAlpn([7; 32]));
        let listener = house.listener(0);
        let mut client = Client::enter(&mut stage, listener, &authority(&house), name);
        client.talk(&mut stage);
        assert_eq!(stage.net.dialled.is_empty(), is_answered, "{name}");
        let is_client = house.config.listeners[0].certificates.keys_for(Some(name));
        let counted: u64 = stage
            .counters
            .handshakes
            .iter()
            .flatten()
            .map(|it| it.value())
            .sum();
        drop(client);
        stage.settle();
        assert_eq!(
            stage.closed() == Some(CloseReason::AcmeChallenge),
            is_answered
        );
        assert!(!is_answered || counted + is_client.handshakes() == 0);
    }
}

#[test]
fn an_authority_is_refused_where_a_client_requests_tls_in_clear() {
    let requests: [(&str, &[u8], &[u8]); 4] = [
        ("smtp", b"220 mx.test ESMTP\r\n", b"EHLO me\r\nSTARTTLS\r\n"),
        ("imap", b"* OK hello\r\n", b"b STARTTLS\r\n"),
        ("pop3", b"+OK hello\r\n", b"STLS\r\n"),
        ("postgresql", b"", b""),
    ];
    for (protocol, greeting, request) in requests {
        let backend = "alpn-mismatch = 'continue'\nunknown-names = 'default'";
        let house = House::new(&format!(
            "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:25']\nbackend = 'app'\n\
             certificates = ['a.pem']\nstarttls = '{protocol}'\n{backend}\n\
             [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n"
        ));
        let (mut stage, mut end, _) = enter(&house, greeting);
        await_answer(&stage, "a.test", ChallengeAnswer::TlsAlpn([7; 32]));
        if !request.is_empty() {
            say(&mut stage, &mut end, request);
        }
        let mut client = begin_tls(&house, end, &[ACME_TLS]);
        client.talk(&mut stage);
        let expected = Error::AlertReceived(AlertDescription::NoApplicationProtocol);
        assert_eq!(client.fault, Some(expected), "{protocol}");
        assert_eq!(server_got(&mut stage), b"");
        drop(client);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::AlpnMismatch));
    }
}

/// Relays clear text, but answers challenges.
const PLAIN: &str = "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:80']\nbackend = 'app'\n\
     tls = false\nacme-http = true\n\
     [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n\
     [acme]\nfolder = 'acme'\nchallenge = 'http-01'\n[[acme.certificate]]\nnames = ['a.test']\n";

/// Connects a client without TLS while the challenge `token` is pending.
fn plain(house: &House) -> (Stage, End) {
    let mut stage = house.stage();
    let (token, thumbprint) = ("token".to_owned(), "thumb".to_owned());
    await_answer(
        &stage,
        "a.test",
        ChallengeAnswer::Http { token, thumbprint },
    );
    let end = stage.admit(house.listener(0), [Plan::Accept]);
    stage.settle();
    assert!(stage.net.dialled.is_empty());
    (stage, end)
}

#[test]
fn a_listener_that_relays_answers_a_pending_path_and_relays_everything_else() {
    let house = House::new(PLAIN);
    let request = format!("GET {HTTP_PATH}token HTTP/1.1\r\nHost: a.test\r\n\r\n");
    for step in [1, request.len()] {
        let (mut stage, mut end) = plain(&house);
        for part in request.as_bytes().chunks(step) {
            end.write_all(part).unwrap();
            stage.settle();
        }
        let answer = String::from_utf8(end.receive_all()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("\r\nContent-Length: 11\r\n"));
        assert!(answer.ends_with("\r\n\r\ntoken.thumb"));
        assert!(end.watch().is_ended() && stage.net.dialled.is_empty());
        drop(end);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::AcmeChallenge));
    }
    let long = format!("GET {HTTP_PATH}{}", "t".repeat(257));
    let unknown = format!("GET {HTTP_PATH}other HTTP/1.1\r\n\r\n");
    let post = request.replace("GET", "POST");
    for (said, is_ended) in [
        ("GET /index.html HTTP/1.1\r\n\r\n", false),
        ("GET /.well-known/x", false),
        (&unknown, false),
        (&long, false),
        (&post, false),
        ("\x16\x03\x01", false),
        ("", true),
        ("GET /.well-kn", true),
        (request.split_inclusive("token").next().unwrap(), true),
    ] {
        let (mut stage, mut end) = plain(&house);
        for byte in said.as_bytes() {
            end.write_all(&[*byte]).unwrap();
            stage.settle();
        }
        if is_ended {
            becket_proxy::socket::StreamSocket::finish(&mut end);
        }
        stage.settle();
        assert_eq!(stage.net.dialled.len(), 1, "{said}");
        assert_eq!(server_got(&mut stage), said.as_bytes());
        assert_eq!(
            stage.net.dialled[0].far.watch().is_ended(),
            is_ended,
            "{said}"
        );
    }
}

#[test]
fn a_client_that_waits_or_stops_is_relayed_after_the_timeout() {
    let house = House::new(PLAIN);
    for said in ["", "GET /.well-known/acme"] {
        let (mut stage, mut end) = plain(&house);
        end.write_all(said.as_bytes()).unwrap();
        stage.settle();
        assert!(stage.net.dialled.is_empty(), "{said}");
        stage.wait(stage.timeouts.hello);
        stage.settle();
        assert_eq!(server_got(&mut stage), said.as_bytes());
        end.write_all(b"more").unwrap();
        stage.settle();
        assert_eq!(server_got(&mut stage), b"more");
    }
}
