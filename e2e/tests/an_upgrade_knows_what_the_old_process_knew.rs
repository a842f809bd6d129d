//! An upgrade passes state to the new process: the condition of servers and the stick table.

use std::net::{Ipv4Addr, SocketAddr};

use becket_e2e::{Backend, Becket, Place, Shape, Trust, ctl_done, eventually};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::upgrades_lose_nothing::{TWO_WORKERS, start, upgrade};

fn server(becket: &Becket, index: usize) -> Value {
    becket.status()["backends"][0]["servers"][index].clone()
}

/// Returns a bound socket, which refuses connections until it listens, and its address.
fn refusing() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    socket.bind(&any.into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_server_that_fails_its_checks_stays_out_of_service() {
    let (place, backend) = (Place::new(), Backend::http("well met"));
    let (down, address) = refusing();
    let shape = Shape::new(address)
        .server(backend.address)
        .process(TWO_WORKERS);
    let checks = "[backend.health]\ncheck = \"connect\"\nrise = 3\ninterval = \"10m\"\nfast-interval = \"10m\"";
    let becket = start(&place, &shape.section(checks));
    let condition = |index| server(&becket, index)["condition"].clone();
    eventually("both servers are checked", || {
        (condition(0), condition(1)) == ("out-of-service".into(), "in-service".into())
    });
    let before = server(&becket, 0);
    // The server is back, but needs three successful checks. Each new process does one, and the count is passed on.
    down.listen(1).unwrap();
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
#[ignore = "slow: .ci/run test"]
fn a_server_that_failed_passive_checks_stays_paused() {
    let (place, backend) = (Place::new(), Backend::http("well met"));
    let (_down, address) = refusing();
    let shape = Shape::new(address)
        .server(backend.address)
        .process(TWO_WORKERS);
    let passive = "[backend.health]\npassive-failures = 1\npassive-pause = \"1h\"";
    let becket = start(&place, &shape.section(passive));
    let trust = Trust::new(&place);
    eventually("connects to the server fail", || {
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
#[ignore = "slow: .ci/run test"]
fn clients_stick_to_their_servers() {
    let place = Place::new();
    let backends = ["one", "two"].map(Backend::http);
    let shape = Shape::new(backends[0].address)
        .server(backends[1].address)
        .backend("stick = \"source\"")
        .process(TWO_WORKERS);
    let becket = start(&place, &shape);
    let first = format!("app/{}", backends[0].address);
    ctl_done(&place, &["servers", "drain", &first]);
    let trust = Trust::new(&place);
    let goes_to = |server: &[u8]| trust.visit(becket.web).unwrap().ends_with(server);
    assert!(goes_to(b"two"));
    // A client without an entry would be sent to the first server. A server of weight 0 keeps its clients.
    place.write("becket.toml", &shape.server_keys("weight = 0").text());
    for _ in 0..2 {
        upgrade(&becket);
        assert_eq!(becket.status()["backends"][0]["stick_entries"], 1);
        assert!(goes_to(b"two"));
    }
}
