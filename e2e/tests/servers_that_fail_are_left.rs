//! A failed server is avoided and used again after it has recovered.

use becket_e2e::{Becket, Make, Place, Server, Shape, Tool, Trust, eventually, fresh_address};

/// Sends requests of this number of clients, and returns the distinct first lines of the responses.
#[track_caller]
fn answers(becket: &Becket, trust: &Trust, clients: usize) -> Vec<String> {
    let ask = |_| {
        let answer = trust.visit(becket.web).unwrap();
        let text = String::from_utf8_lossy(&answer).into_owned();
        let body = text.rsplit("\r\n\r\n").next().unwrap_or_default();
        body.lines().next().unwrap_or_default().to_owned()
    };
    let mut bodies: Vec<String> = (0..clients).map(ask).collect();
    bodies.sort();
    bodies.dedup();
    bodies
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_killed_nginx_is_avoided_and_used_again() {
    let Some(nginx) = Tool::find("nginx").map(Make::Nginx) else {
        return;
    };
    let place = Place::new();
    let (one, two) = (fresh_address(), fresh_address());
    let start = |at, name| Server::start(&nginx, &place, at, name, 100);
    let (first, _second) = (start(one, "one"), start(two, "two"));
    let keys = "[backend.health]\ncheck = \"http\"\npath = \"/health\"\nexpect = [\"204\"]\n\
                interval = \"100ms\"\nfast-interval = \"100ms\"\nrise = 1\nfall = 2";
    let becket = Becket::start(&place, &Shape::new(one).server(two).backend(keys));
    let trust = Trust::new(&place);
    let becomes = |index: usize, condition: &str| {
        eventually(&format!("server {index} is {condition}"), || {
            becket.status()["backends"][0]["servers"][index]["condition"] == condition
        });
    };
    becomes(0, "in-service");
    becomes(1, "in-service");
    assert_eq!(answers(&becket, &trust, 8), ["one", "two"]);
    drop(first);
    becomes(0, "out-of-service");
    assert_eq!(answers(&becket, &trust, 8), ["two"]);
    let _again = start(one, "one");
    becomes(0, "in-service");
    assert_eq!(answers(&becket, &trust, 8), ["one", "two"]);
}
