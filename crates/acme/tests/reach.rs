//! The companion asks for challenges as an authority does, before a trial order.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;

use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use answers::{Pending, answer, prove_by_http, prove_by_tls};
use becket_acme::reach::ask;
use becket_config::acme::{Acme, AcmeCertificate, AcmeName};
use becket_config::notation::Text;
use becket_process::companion_link::AcmeChallenge;
use becket_proto::acme::ChallengeAnswer;

/// Starts a server. Returns its address.
fn serve(answer: impl Fn(TcpStream) -> Option<()> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            answer(client.unwrap()).unwrap_or_default();
        }
    });
    address
}

/// Starts a server of [`answers`], which answers the challenge for a name. `shown` is the name in its
/// certificate.
fn prove(
    by: impl Fn(TcpStream, &Pending) -> Option<()> + Send + 'static,
    (name, shown): (&str, &str),
    own: &ChallengeAnswer,
) -> SocketAddr {
    let section = Acme {
        certificate: vec![AcmeCertificate {
            names: vec![AcmeName::parse(name).unwrap()],
            ..AcmeCertificate::default()
        }],
        ..Acme::default()
    };
    let challenge = AcmeChallenge {
        certificate: 0,
        name: 0,
        answer: own.clone(),
        lifetime: 60,
    };
    let (key, (_, own)) = answer(&section, challenge);
    let pending = Pending::new(HashMap::from([(key, (shown.to_owned(), own))]));
    serve(move |client| by(client, &pending))
}

async fn asked(at: SocketAddr, name: &str, answer: &ChallengeAnswer) -> Result<(), String> {
    ask(at, &AcmeName::parse(name).unwrap(), answer).await
}

#[tokio::test]
async fn only_the_certificate_of_the_challenge_is_accepted() {
    let own = ChallengeAnswer::TlsAlpn([7; 32]);
    let other = ChallengeAnswer::TlsAlpn([8; 32]);
    for name in ["a.test", "127.0.0.1"] {
        let at = prove(prove_by_tls, (name, name), &own);
        assert_eq!(asked(at, name, &own).await, Ok(()));
        let wrong = asked(at, name, &other).await.unwrap_err();
        assert!(wrong.contains("not the certificate"), "{wrong}");
    }
    // The server has another name in its certificate, or no challenge for the name.
    let at = prove(prove_by_tls, ("a.test", "b.test"), &own);
    let wrong = asked(at, "a.test", &own).await.unwrap_err();
    assert!(wrong.contains("not the certificate"), "{wrong}");
    assert!(asked(at, "b.test", &own).await.is_err());
}

#[tokio::test]
async fn only_the_page_of_the_challenge_is_accepted() {
    let page = |thumbprint: &str| ChallengeAnswer::Http {
        token: "token".to_owned(),
        thumbprint: thumbprint.to_owned(),
    };
    let at = prove(prove_by_http, ("a.test", "a.test"), &page("own"));
    assert_eq!(asked(at, "a.test", &page("own")).await, Ok(()));
    let wrong = asked(at, "a.test", &page("other")).await.unwrap_err();
    assert!(wrong.ends_with("another page: HTTP/1.0 200 OK"), "{wrong}");
    let at = serve(|mut client| client.write_all(b"HTTP/1.1 404 x\r\n\r\ntoken.own").ok());
    assert!(asked(at, "a.test", &page("own")).await.is_err());
    let flood = "a".repeat(1 << 20);
    let at = serve(move |mut client| {
        while client.write_all(flood.as_bytes()).is_ok() {}
        Some(())
    });
    let wrong = asked(at, "a.test", &page("own")).await.unwrap_err();
    assert!(wrong.len() < 1024, "{wrong}");
}

/// The clock advances as soon as nothing else happens.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let wrong = asked(at, "a.test", &ChallengeAnswer::TlsAlpn([7; 32])).await;
    assert_eq!(wrong, Err("no answer in 10 s".to_owned()));
}
