//! Becket does not start on a port that is in use, not even if it could share the port with another becket.

use std::net::{SocketAddr, TcpListener};

use becket_e2e::{Backend, Becket, Client, Place, REQUEST, Shape, Trust, fresh_address};
use socket2::{Domain, Socket, Type};

/// Starts a becket that should exit with an error, and returns its log.
#[track_caller]
fn refused(place: &Place, shape: &Shape) -> String {
    place.write("becket.toml", &shape.text());
    let command = Becket::command(place, &["run", "--config", "becket.toml"]);
    let mut becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    assert_eq!(becket.ended(), Some(2), "{}", becket.logs());
    becket.log()
}

/// Creates a listening socket that allows other sockets on its port.
fn sharing(at: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&at.into()).unwrap();
    socket.listen(8).unwrap();
    socket
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_second_becket_exits_and_the_first_continues_to_serve() {
    let (place, other) = (Place::new(), Place::new());
    let backend = Backend::http("first");
    let shape = Shape::new(backend.address);
    let becket = Becket::start(&place, &shape);
    let mut second = Shape::new(backend.address);
    second.web = shape.web;
    let said = refused(&other, &second);
    assert!(said.contains(&shape.web.to_string()), "{said}");
    assert!(said.contains("address in use by"), "{said}");
    let trust = Trust::new(&place);
    for _ in 0..8 {
        let answer = Client::connect(becket.web, &trust).unwrap().ask(REQUEST);
        assert!(answer.unwrap().ends_with(b"first"));
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn all_ports_in_use_are_reported_at_once() {
    let place = Place::new();
    let (one, two, free) = (fresh_address(), fresh_address(), fresh_address());
    let _foreign = TcpListener::bind(one).unwrap();
    let _sharing = sharing(two);
    let mut shape = Shape::new(fresh_address()).section(&format!(
        "[[listener]]\nname = \"two\"\nbind = [\"{free}\", \"{two}\"]\n\
         certificates = [\"site.pem\"]\nbackend = \"app\""
    ));
    shape.web = one;
    let said = refused(&place, &shape);
    for at in [one, two] {
        assert!(said.contains(&at.to_string()), "{said}");
    }
    assert!(!said.contains(&free.to_string()), "{said}");
    assert!(
        said.contains("listener[web].bind") && said.contains("listener[two].bind"),
        "{said}"
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn an_admin_address_in_use_is_rejected() {
    let place = Place::new();
    let shape = Shape::new(fresh_address());
    let _foreign = TcpListener::bind(shape.admin).unwrap();
    let said = refused(&place, &shape);
    assert!(said.contains("admin.address"), "{said}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_port_is_free_as_soon_as_a_becket_has_exited() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    for _ in 0..3 {
        let mut becket = Becket::start(&place, &shape);
        // This connection stays in TIME_WAIT.
        Client::connect(becket.web, &Trust::new(&place))
            .unwrap()
            .ask(REQUEST)
            .unwrap();
        becket.signal(becket_e2e::Signal::TERM);
        assert_eq!(becket.ended(), Some(0));
    }
}
