//! Admission: a flood of new clients does not lock out those who return, a source has its share,
//! and some networks stay out.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use becket_e2e::{Backend, Becket, Client, Over, Place, Shape, Trust, eventually, fresh_host, now};
use rustls::client::Resumption;
use rustls::version::{TLS12, TLS13};

/// A client that has never been here.
fn newcomer(trust: &Trust) -> Trust {
    trust.changed(|config| config.resumption = Resumption::disabled())
}

/// Connects from an address and makes the handshake.
fn connect_from(from: Ipv4Addr, to: SocketAddr, trust: &Trust) -> io::Result<Client> {
    let mut client = Client::begin_from(from, to, trust)?;
    client.handshake()?;
    Ok(client)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_flood_of_new_clients_does_not_lock_out_those_who_return() {
    const RATE: u64 = 20;
    let place = Place::new();
    let backend = Backend::http("well met");
    let limits = format!("[admission]\nfull-handshakes-per-second = {RATE}\n");
    let started = now();
    let becket = Becket::start(&place, &Shape::new(backend.address).section(&limits));
    let ways = Trust::ways(&place, None);
    for (_, trust) in &ways {
        trust.visit(becket.web).unwrap();
        assert_eq!(becket.next_access()["handshake"], "full");
    }
    let (over, turned_away) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _over = Over(&over);
        for version in [&TLS12, &TLS13] {
            let trust = newcomer(&Trust::only(&place, version));
            let (over, turned_away, at) = (&over, &turned_away, becket.web);
            scope.spawn(move || {
                while !over.load(SeqCst) {
                    turned_away.fetch_add(trust.visit(at).is_err().into(), SeqCst);
                }
            });
        }
        eventually("the flood is above the limit", || {
            turned_away.load(SeqCst) > 10
        });
        let visits = thread::Builder::new().spawn_scoped(scope, || {
            for _ in 0..20 {
                for (_, trust) in &ways {
                    assert!(trust.visit(becket.web)?.ends_with(b"well met"));
                }
            }
            Ok::<_, io::Error>(())
        });
        let outcome = visits.unwrap().join();
        outcome.unwrap().expect("who returns is served");
    });
    becket.idle();
    let metrics = becket.metrics();
    let most = RATE * (started.elapsed().as_secs() + 2);
    let full = metrics.sum("becket_handshakes_total", &["kind=\"full\""]) as u64;
    assert!(full <= most, "{full} of {most}");
    assert!(metrics.closed("admission-rate") >= turned_away.load(SeqCst) as u64);
    let resumed = metrics.sum("becket_handshakes_total", &["kind=\"resumed\""]);
    assert_eq!(resumed as u64, 60);
    assert_eq!(metrics.sum("becket_full_handshakes_in_flight", &[]), 0.0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn networks_stay_out_and_a_reload_changes_which() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let (one, other) = (fresh_host(), fresh_host());
    let shape = Shape::new(backend.address);
    let deny = shape.clone().listener(&format!("deny = [\"{one}\"]"));
    let becket = Becket::start(&place, &deny);
    let trust = Trust::new(&place);
    let comes_in = |from| connect_from(from, becket.web, &trust).is_ok();
    assert!(!comes_in(one));
    assert_eq!(becket.next_reason(), "denied-network");
    assert!(comes_in(other));
    let allow = shape.listener(&format!("allow = [\"{one}/32\"]"));
    place.write("becket.toml", &allow.text());
    assert!(becket.reload());
    eventually("the other one stays out", || !comes_in(other));
    assert!(comes_in(one));
}
