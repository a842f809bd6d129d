//! A server name or kind of client that reaches its limit does not affect others.

use becket_e2e::{Backend, Becket, Client, OpenSsl, Place, Shape, Trust, ctl_done, eventually};
use serde_json::Value;

#[test]
fn a_name_at_its_connection_limit_is_refused_and_others_are_served() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).section("[admission]\nname = { connections = 3 }");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let connect = |name| Client::connect_as(becket.web, &trust, name);
    let held: Vec<_> = (0..3)
        .map(|_| connect("www.example.org").unwrap())
        .collect();
    for _ in 0..20 {
        assert!(connect("www.example.org").is_err());
        assert_eq!(becket.next_reason(), "name-connections");
    }
    for name in ["internal.example.org", "localhost"] {
        let answer = connect(name).unwrap().ask(REQUEST).unwrap();
        assert!(answer.ends_with(b"well met"), "{name}");
        assert_eq!(becket.next_reason(), "finished", "{name}");
    }
    let shown: Value = serde_json::from_str(&ctl_done(&place, &["sources", "--json"])).unwrap();
    let row = &shown["sources"][0];
    assert_eq!(row["kind"], "name");
    assert_eq!(row["source"], "www.example.org");
    assert_eq!(row["connections"], 3);
    assert_eq!(row["refused"], 20);
    assert_eq!(row["limited"][0], "connections");
    let text = ctl_done(&place, &["sources"]);
    assert!(
        text.contains("REFUSED") && text.contains("www.example.org"),
        "{text}"
    );
    drop(held);
    eventually("the name has room again", || {
        connect("www.example.org").is_ok()
    });
}

#[test]
fn a_kind_of_client_is_refused_by_its_fingerprint_and_others_are_served() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let becket = Becket::start(&place, &shape);
    // Each client has no session, because a resuming client has another fingerprint.
    let connect = || Client::connect(becket.web, &Trust::new(&place));
    drop(connect().unwrap());
    let ja4 = becket.next_access()["ja4"].as_str().unwrap().to_owned();
    let reload = |keys: &str| {
        let rules = format!("[admission]\nja4 = {{ {keys} }}");
        place.write("becket.toml", &shape.clone().section(&rules).text());
        assert!(becket.reload());
    };
    let others_are_served = || {
        let found = openssl.ask(&place, becket.web, &[]);
        assert!(found.stdout.contains("well met"), "{}", found.all());
        assert_eq!(becket.next_reason(), "finished");
    };

    reload(&format!("refuse = [{ja4:?}]"));
    assert!(connect().is_err());
    assert_eq!(becket.next_reason(), "ja4-refused");
    others_are_served();

    reload("connections = 1");
    let held = connect().unwrap();
    assert!(connect().is_err());
    assert_eq!(becket.next_reason(), "ja4-connections");
    others_are_served();
    drop(held);
}

const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
