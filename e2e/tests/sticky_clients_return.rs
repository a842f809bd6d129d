//! Stickiness: a client returns to its previous server by address, session ID or ticket, unless that server is full
//! or down.

use std::io::{Read, Write};

use becket_e2e::{Backend, Becket, Client, Place, Shape, Trust};
use rustls::version::{TLS12, TLS13};

/// Four servers that answer each read with their number.
fn servers() -> Vec<Backend> {
    let server = |n: u8| {
        Backend::new(move |mut stream| {
            let mut byte = [0];
            while stream.read(&mut byte)? > 0 {
                stream.write_all(&[n])?;
            }
            Ok(())
        })
    };
    (0..4).map(server).collect()
}

fn shape(servers: &[Backend], stick: &str) -> Shape {
    let shape = Shape::new(servers[0].address).server_keys("maxconn = 2");
    servers[1..]
        .iter()
        .fold(shape, |shape, server| {
            shape.server(server.address).server_keys("maxconn = 2")
        })
        .backend(&format!("stick = \"{stick}\""))
}

/// Connects, asks for the server's number and stays connected.
fn come(becket: &Becket, trust: &Trust) -> (Client, u8) {
    let mut client = Client::connect(becket.web, trust).unwrap();
    client.write_all(b"?").unwrap();
    let mut answer = [0];
    client.read_exact(&mut answer).unwrap();
    (client, answer[0])
}

fn which(becket: &Becket, trust: &Trust) -> u8 {
    let (mut client, server) = come(becket, trust);
    client.close_notify().unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    drop(client);
    // Wait until the server's slot is free for the next client.
    becket.idle();
    server
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_client_that_resumes_returns_by_id_by_ticket_and_by_psk() {
    let place = Place::new();
    let servers = servers();
    let becket = Becket::start(&place, &shape(&servers, "tls-session"));
    for trust in [
        Trust::only(&place, &TLS12).without_tickets(),
        Trust::only(&place, &TLS12),
        Trust::only(&place, &TLS13),
    ] {
        let first = which(&becket, &trust);
        // Connections of other clients advance the round-robin position in between.
        for round in 0..6 {
            let stranger = Trust::new(&place);
            which(&becket, &stranger);
            assert_eq!(which(&becket, &trust), first, "round {round}");
        }
    }
}
