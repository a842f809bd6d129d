//! Who of several servers gets the next client: by weight, by load, in order, by hash; and who when one fails.

use std::io::Write;

use becket_e2e::{Backend, Becket, Client, Place, Shape, Trust, read_to_end, until};

/// Servers that say which they are when the client has ended.
fn servers(count: usize) -> Vec<Backend> {
    let server = |n: usize| {
        Backend::new(move |mut stream| {
            std::io::copy(&mut stream, &mut std::io::sink())?;
            stream.write_all(n.to_string().as_bytes())
        })
    };
    (0..count).map(server).collect()
}

fn shape(servers: &[Backend], keys: &[&str]) -> Shape {
    let mut servers = servers.iter().zip(keys);
    let (first, keys) = servers.next().unwrap();
    let shape = Shape::new(first.address).server_keys(keys);
    servers
        .fold(shape, |shape, (server, keys)| {
            shape.server(server.address).server_keys(keys)
        })
        .process("workers = 1")
}

/// Asks which server one gets.
fn ask(becket: &Becket, trust: &Trust, name: &str) -> usize {
    let mut client = Client::connect_as(becket.web, trust, name).unwrap();
    client.close_notify().unwrap();
    let (answer, end) = read_to_end(&mut client);
    end.unwrap();
    String::from_utf8(answer).unwrap().parse().unwrap()
}

fn shares(becket: &Becket, trust: &Trust, clients: usize) -> [usize; 3] {
    let mut shares = [0; 3];
    (0..clients).for_each(|_| shares[ask(becket, trust, "www.example.org")] += 1);
    shares
}

#[test]
fn weights_are_honoured_and_zero_and_disabled_get_nobody() {
    let place = Place::new();
    let trust = Trust::new(&place);
    let servers = servers(3);
    let becket = Becket::start(&place, &shape(&servers, &["weight = 3", "", "weight = 0"]));
    assert_eq!(shares(&becket, &trust, 16), [12, 4, 0]);
    drop(becket);
    let place = Place::new();
    let trust = Trust::new(&place);
    let becket = Becket::start(
        &place,
        &shape(&servers, &["disabled = true", "", "weight = 2"]),
    );
    assert_eq!(shares(&becket, &trust, 9), [0, 3, 6]);
    let state = becket.status()["backends"][0]["servers"][0]["state"].clone();
    assert_eq!(state, "disabled");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn with_no_server_in_service_clients_are_refused_at_once_and_served_again_after_a_reload() {
    let place = Place::new();
    let trust = Trust::new(&place);
    let servers = servers(1);
    let out = shape(&servers, &["disabled = true"]);
    let becket = Becket::start(&place, &out);
    let mut client = Client::connect(becket.web, &trust).unwrap();
    assert!(client.ask(b"x").is_err());
    drop(client);
    assert_eq!(becket.next_reason(), "no-server");
    let text = out.text().replace("disabled = true", "");
    place.write("becket.toml", &text);
    assert!(becket.reload());
    until("a client is served", || {
        let mut client = Client::connect(becket.web, &trust).ok()?;
        client.close_notify().ok()?;
        let (answer, _) = read_to_end(&mut client);
        (answer == b"0").then_some(())
    });
}
