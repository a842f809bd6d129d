//! Listeners without TLS: becket encrypts the connections of plain TCP clients.

use becket_e2e::{Backend, Becket, Place, Shape, Tool, finish};

/// Starts another becket that terminates TLS in front of a plain server.
fn terminator(place: &Place, backend: &Backend) -> (Becket, Place) {
    // The terminating becket has its own folder, with a certificate of the same authority.
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
#[ignore = "slow: .ci/run test"]
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
