//! Servers behind Unix sockets and IPv6 addresses.

use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use socket2::{Domain, SockAddr, Socket, Type};

use becket_e2e::{
    Backend, Becket, Client, Kept, Place, REQUEST, Shape, Tool, Trust, eventually, fresh_v6, skip,
};

#[test]
#[ignore = "slow: .ci/run test"]
fn socat_behind_a_unix_socket_is_reached() {
    let Some(socat) = Tool::find("socat") else {
        return;
    };
    let place = Place::new();
    let path = place.text("app.sock");
    let listen = format!("UNIX-LISTEN:{path},fork");
    let _socat = Kept(socat.command([&listen, "EXEC:cat"]).spawn().unwrap());
    eventually("socat listens", || place.path("app.sock").exists());
    let becket = Becket::start(&place, &Shape::new(&path));
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    std::io::Write::write_all(&mut client, b"there and back").unwrap();
    client.close_notify().unwrap();
    let (echo, end) = becket_e2e::read_to_end(&mut client);
    end.unwrap();
    assert_eq!(echo, b"there and back");
    drop(client);
    let line = becket.next_access();
    assert_eq!(line["reason"], "finished");
    assert_eq!(line["server"], path);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_v6_server_is_reached_from_a_v6_listener() {
    let (Some(listen), Some(serve)) = (fresh_v6(), fresh_v6()) else {
        return skip("needs IPv6");
    };
    let place = Place::new();
    let backend = Backend::at(serve, |stream| becket_e2e::answer_all(stream, "six"));
    let mut shape = Shape::new(backend.address);
    shape.web = listen;
    let becket = Becket::start(&place, &shape);
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    assert!(client.ask(REQUEST).unwrap().ends_with(b"six"));
    drop(client);
    let line = becket.next_access();
    assert!(
        line["client"].as_str().unwrap().starts_with("[::1]:"),
        "{line}"
    );
    // A listener on an IPv6 address does not accept IPv4 connections.
    assert!(TcpStream::connect(("127.0.0.1", listen.port())).is_err());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn becket_waits_for_a_unix_socket_with_a_full_backlog() {
    let place = Place::new();
    let path = place.path("full.sock");
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    listener.listen(0).unwrap();
    // A backlog of 0 has room for one connection, so becket's connection must wait.
    let _waits = UnixStream::connect(&path).unwrap();
    let becket = Becket::start(&place, &Shape::new(path.to_str().unwrap()));
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    std::io::Write::write_all(&mut client, REQUEST).unwrap();
    eventually("becket has tried", || {
        becket.metrics().sum("becket_handshakes_total", &[]) >= 1.0
    });
    drop(listener.accept().unwrap());
    let (mut server, _) = listener.accept().unwrap();
    let mut request = [0; REQUEST.len()];
    std::io::Read::read_exact(&mut server, &mut request).unwrap();
    std::io::Write::write_all(&mut server, b"late").unwrap();
    drop(server);
    let (answer, end) = becket_e2e::read_to_end(&mut client);
    end.unwrap();
    assert_eq!(answer, b"late");
    drop(client);
    assert_eq!(becket.next_reason(), "finished");
}
