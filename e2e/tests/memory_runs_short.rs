//! Under memory pressure becket closes idle connections and refuses new clients. Active connections continue, and the OOM killer is not
//! needed.

use std::io::{Read, Write};

use becket_e2e::{Backend, Becket, Client, Place, Shape, Trust, eventually, until};

/// Reloads becket with another memory limit.
fn limit(becket: &Becket, place: &Place, from: &str, to: &str) {
    let text = place.read("becket.toml");
    let (from, to) = (format!("memory = {from:?}"), format!("memory = {to:?}"));
    assert!(text.contains(&from), "{text}");
    place.write("becket.toml", &text.replace(&from, &to));
    assert!(becket.reload(), "{}", becket.log());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn idle_connections_are_closed_and_new_clients_refused_until_memory_is_available() {
    let place = Place::new();
    // The server never answers a request that starts with a question mark.
    let backend = Backend::new(|mut stream| {
        let mut word = [0];
        while stream.read(&mut word)? == 1 {
            if word != *b"?" {
                stream.write_all(&word)?;
            }
        }
        Ok(())
    });
    let shape = Shape::new(backend.address).limits("memory = \"off\"");
    let becket = Becket::start(&place, &shape);
    assert!(becket.status()["memory"].is_null());
    let trust = Trust::new(&place);
    let client = |word: &[u8]| {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
        client.write_all(word).unwrap();
        client
    };
    let resting: Vec<Client> = (0..8).map(|_| client(b"")).collect();
    let mut asking = client(b"?");
    // This limit is below the memory of any process.
    limit(&becket, &place, "off", "1MiB");
    eventually("idle connections are closed", || {
        becket.metrics().closed("memory-rest") == 8
    });
    until("new clients are refused", || {
        (becket.status()["memory"]["shortage"] == "refusing").then_some(())
    });
    assert!(Client::connect(becket.web, &trust).is_err());
    let metrics = becket.metrics();
    assert!(metrics.closed("memory-limit") >= 1);
    assert!(metrics.sum("becket_memory_shortage", &[]) >= 2.0);
    assert_eq!(metrics.open(), 1, "the active connection stays");
    limit(&becket, &place, "1MiB", "off");
    eventually("the shortage ends", || becket.status()["memory"].is_null());
    asking.write_all(b"x").unwrap();
    asking.read_exact(&mut [0]).unwrap();
    client(b"");
    eventually("the end of each shortage is logged", || {
        let log = becket.log();
        let said = |words: &str| log.matches(words).count();
        said(" memory-pressure:") == said(" memory-pressure-ended:")
    });
    drop((resting, asking));
    becket.idle();
}
