//! What the old process knows goes over in an upgrade: which servers fail, what an operator changed beside the file, and where clients
//! stick.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use becket_e2e::{
    Backend, Becket, Client, Key, Place, Shape, Signal, Trust, becket_program, eventually, finish,
};
use serde_json::Value;

use crate::processes_of_an_upgrade_are_killed::{close_gate, open_gate};
use crate::upgrades_lose_nothing::{TWO_WORKERS, start, upgrade};

fn server(becket: &Becket, index: usize) -> Value {
    becket.status()["backends"][0]["servers"][index].clone()
}

#[track_caller]
fn ctl(place: &Place, words: &[&str]) {
    let mut command = Command::new(becket_program());
    command.args(["ctl", "--config", "becket.toml"]).args(words);
    command.current_dir(place.folder());
    let done = finish(command, "");
    assert_eq!(done.code, 0, "{}", done.all());
}

/// Where nobody listens.
fn nowhere() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[test]
fn a_server_that_fails_its_checks_stays_out_of_service() {
    let (place, backend, down) = (Place::new(), Backend::http("well met"), nowhere());
    let shape = Shape::new(down)
        .server(backend.address)
        .process(TWO_WORKERS);
    let checks = "[backend.health]\ncheck = \"connect\"\nrise = 2\ninterval = \"10m\"\nfast-interval = \"10m\"";
    let becket = start(&place, &shape.section(checks));
    let condition = |index| server(&becket, index)["condition"].clone();
    eventually("both are known", || {
        (condition(0), condition(1)) == ("out-of-service".into(), "in-service".into())
    });
    let before = server(&becket, 0);
    // It is back, and one good check is not enough.
    let _back = TcpListener::bind(down).unwrap();
    for _ in 0..2 {
        upgrade(&becket);
        let after = server(&becket, 0);
        assert_eq!(after["condition"], "out-of-service");
        assert_eq!(after["condition_reason"], before["condition_reason"]);
        let second = |server: &Value| server["condition_since"].as_str().unwrap()[..19].to_owned();
        assert_eq!(second(&after), second(&before));
    }
    assert_eq!(condition(1), "in-service");
}

#[test]
fn a_server_whose_connects_failed_is_not_tried_again_before_its_pause_is_over() {
    let (place, backend, down) = (Place::new(), Backend::http("well met"), nowhere());
    let shape = Shape::new(down)
        .server(backend.address)
        .process(TWO_WORKERS);
    let passive = "[backend.health]\npassive-failures = 1\npassive-pause = \"1h\"";
    let becket = start(&place, &shape.section(passive));
    let trust = Trust::new(&place);
    eventually("its connects fail", || {
        trust.visit(becket.web).unwrap();
        server(&becket, 0)["condition"] == "out-of-service"
    });
    upgrade(&becket);
    for _ in 0..10 {
        assert!(trust.visit(becket.web).unwrap().ends_with(b"well met"));
    }
    let after = server(&becket, 0);
    assert_eq!(after["condition"], "out-of-service");
    assert_eq!(after["failures"], 0, "{after}");
}

#[test]
fn what_an_operator_changed_beside_the_file_stays_as_it_would_have() {
    let place = Place::new();
    let backends = ["one", "two", "six"].map(Backend::http);
    let shape = Shape::new(backends[0].address)
        .server(backends[1].address)
        .admin_keys("socket = \"admin.sock\"")
        .process(TWO_WORKERS);
    let becket = start(&place, &shape);
    let ctl = |words: &[&str]| ctl(&place, words);
    let [first, second, third] = backends
        .each_ref()
        .map(|backend| format!("app/{}", backend.address));
    let name = "new.example.org";
    place.issue("new.pem", &[name], Key::Ecdsa);
    ctl(&["servers", "drain", &first, "--keep"]);
    ctl(&["servers", "add", &third, "--weight", "9"]);
    ctl(&["servers", "weight", &third, "7"]);
    ctl(&["servers", "maxconn", &third, "0"]);
    ctl(&["servers", "remove", &second]);
    ctl(&["log", "debug"]);
    ctl(&[
        "certificates",
        "set",
        "web",
        "--chain",
        "new.pem",
        "--key",
        "new.pem",
    ]);
    let shown = || {
        let status = becket.status();
        let keys = [
            "name", "mode", "weight", "maxconn", "in_file", "kept", "added", "state",
        ];
        let servers = status["backends"][0]["servers"].as_array().unwrap().iter();
        let servers = servers.map(|server| keys.map(|key| server[key].clone()));
        (servers.collect::<Vec<_>>(), status["log"].clone())
    };
    let before = shown();
    assert_eq!(before.0.len(), 2, "{before:?}");
    let trust = Trust::new(&place);
    for _ in 0..2 {
        upgrade(&becket);
        assert_eq!(shown(), before, "{}", becket.log());
        let visit = || trust.visit(becket.web).unwrap();
        assert!((0..4).all(|_| visit().ends_with(b"six")));
        Client::connect_as(becket.web, &trust, name).unwrap();
    }
    // A reload undoes what was not to be kept, as it would have before.
    assert!(becket.reload());
    let after = shown();
    assert_eq!(after.0[0], before.0[0]);
    assert_eq!(after.0[1][0], backends[1].address.to_string());
    assert!(Client::connect_as(becket.web, &trust, name).is_err());
}

#[test]
fn clients_stick_where_they_did_also_to_a_server_that_is_not_in_the_file() {
    let place = Place::new();
    let backends = ["one", "two"].map(Backend::http);
    let shape = Shape::new(backends[0].address)
        .backend("stick = \"source\"")
        .admin_keys("socket = \"admin.sock\"")
        .process(TWO_WORKERS);
    let becket = start(&place, &shape);
    let [first, second] = backends
        .each_ref()
        .map(|backend| format!("app/{}", backend.address));
    ctl(&place, &["servers", "add", &second]);
    ctl(&place, &["servers", "drain", &first]);
    let trust = Trust::new(&place);
    let goes_to = |server: &[u8]| trust.visit(becket.web).unwrap().ends_with(server);
    assert!(goes_to(b"two"));
    // Whoever comes without a memory is given the first; a server that drains keeps those whom it has.
    ctl(&place, &["servers", "ready", &first]);
    ctl(&place, &["servers", "drain", &second]);
    for _ in 0..2 {
        upgrade(&becket);
        assert_eq!(becket.status()["backends"][0]["stick_entries"], 1);
        assert!(goes_to(b"two"));
    }
}

#[test]
fn a_client_that_came_while_the_new_process_loaded_sticks_as_well() {
    let place = Place::new();
    let backends = ["one", "two"].map(Backend::http);
    let shape = Shape::new(backends[0].address)
        .server(backends[1].address)
        .backend("stick = \"source\"")
        .admin_keys("socket = \"admin.sock\"")
        .process(TWO_WORKERS);
    let becket = start(&place, &shape);
    let [first, second] = backends
        .each_ref()
        .map(|backend| format!("app/{}", backend.address));
    let trust = Trust::new(&place);
    let goes_to = |server: &[u8]| trust.visit(becket.web).unwrap().ends_with(server);
    // Whom it has by now is told already.
    close_gate(&place);
    becket.signal(Signal::USR2);
    eventually("a successor is told", || {
        becket.log().contains("the new process is loading")
    });
    ctl(&place, &["servers", "drain", &first]);
    assert!(goes_to(b"two"));
    ctl(&place, &["servers", "ready", &first]);
    ctl(&place, &["servers", "drain", &second]);
    open_gate(&place);
    eventually("it is upgraded", || {
        becket.status()["upgrades"]["done"] == 1
    });
    assert!(goes_to(b"two"));
}
