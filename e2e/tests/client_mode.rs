//! Listeners without TLS: programs that speak plain TCP, led through TLS by becket.

use std::io::{Read, Write};
use std::net::TcpStream;

use becket_e2e::{Backend, Becket, Place, Shape, Tool, finish, fresh_address};

/// The becket that ends TLS, in front of a plain server.
fn terminator(place: &Place, backend: &Backend) -> (Becket, Place) {
    // A folder of its own, with certificates of the same authority.
    let own = Place::new();
    place
        .authority
        .issue(&["www.example.org"], becket_e2e::Key::Ecdsa)
        .write(&own.path("site.pem"));
    let becket = Becket::start(&own, &Shape::new(backend.address));
    (becket, own)
}

const TRUSTED: &str = "tls.ca = \"ca.pem\"\ntls.name = \"www.example.org\"";

#[test]
fn curl_without_tls_reaches_a_server_with_tls() {
    let Some(curl) = Tool::find("curl") else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("through TLS");
    let (remote, _own) = terminator(&place, &backend);
    let local = Becket::start(&place, &Shape::new(remote.web).plain().backend(TRUSTED));
    let url = format!("http://{}/", local.web);
    for _ in 0..3 {
        let found = finish(curl.command(["-s", "--max-time", "10", &url]), "");
        assert_eq!(found.code, 0, "{}", found.all());
        assert!(found.all().contains("through TLS"), "{}", found.all());
    }
    let line = local.next_access();
    assert_eq!(line["reason"], "finished");
    assert_eq!(line["version"], serde_json::Value::Null);
    assert_eq!(remote.next_access()["version"], "TLSv1.3");
}

#[test]
fn a_server_behind_tls_may_speak_first() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        stream.write_all(b"220 well met\r\n")?;
        let mut said = [0; 4];
        stream.read_exact(&mut said)?;
        stream.write_all(&said)
    });
    let (remote, _own) = terminator(&place, &backend);
    let local = Becket::start(&place, &Shape::new(remote.web).plain().backend(TRUSTED));
    let mut client = TcpStream::connect(local.web).unwrap();
    let mut greeting = [0; 14];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"220 well met\r\n");
    client.write_all(b"ECHO").unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"ECHO");
}

#[test]
fn a_plain_client_is_reset_where_nobody_answers() {
    let place = Place::new();
    let becket = Becket::start(
        &place,
        &Shape::new(fresh_address()).plain().backend(TRUSTED),
    );
    let mut client = TcpStream::connect(becket.web).unwrap();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(becket.next_reason(), "connect-failed");
}

#[test]
fn plain_on_both_sides_is_a_balancer() {
    let place = Place::new();
    let (one, two) = (Backend::http("one"), Backend::http("two"));
    let shape = Shape::new(one.address)
        .server(two.address)
        .plain()
        .process("workers = 1");
    let becket = Becket::start(&place, &shape);
    for _ in 0..4 {
        let mut client = TcpStream::connect(becket.web).unwrap();
        client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(
            answer.ends_with("one") || answer.ends_with("two"),
            "{answer}"
        );
    }
    assert_eq!((one.served(), two.served()), (2, 2));
}
