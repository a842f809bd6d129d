//! Admission: a flood of new clients does not lock out those who return, a source has its share,
//! and some networks stay out.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, Over, Place, REQUEST, Shape, Trust, eventually, fresh_host, now,
};
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
fn a_source_that_floods_costs_the_others_nothing() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let limits =
        "[admission]\nsource-full-handshakes-per-second = 1\nsource-burst = 2\nprefix-v4 = 32\n";
    let becket = Becket::start(&place, &Shape::new(backend.address).section(limits));
    let trust = newcomer(&Trust::new(&place));
    let loud = fresh_host();
    let mut refused = 0;
    for _ in 0..30 {
        refused += u64::from(connect_from(loud, becket.web, &trust).is_err());
        let quiet = connect_from(fresh_host(), becket.web, &trust);
        assert!(quiet.unwrap().ask(REQUEST).unwrap().ends_with(b"well met"));
    }
    assert!(refused > 0);
    becket.idle();
    assert_eq!(becket.metrics().closed("admission-source"), refused);
    assert!(becket.status()["admission"]["sources"].as_u64().unwrap() > 1);
}

#[test]
fn a_source_has_no_more_connections_than_it_may() {
    let place = Place::new();
    let backend = Backend::echo();
    let limits = "[admission]\nconnections-per-source = 3\n";
    let becket = Becket::start(&place, &Shape::new(backend.address).section(limits));
    let trust = Trust::new(&place);
    let one = fresh_host();
    let mut open: Vec<Client> = (0..3)
        .map(|_| connect_from(one, becket.web, &trust).unwrap())
        .collect();
    assert!(connect_from(one, becket.web, &trust).is_err());
    assert_eq!(becket.metrics().closed("source-connections"), 1);
    let mut other = connect_from(fresh_host(), becket.web, &trust).unwrap();
    other.write_all(b"x").unwrap();
    drop(open.pop());
    eventually("there is room again", || {
        connect_from(one, becket.web, &trust).is_ok()
    });
    drop((open, other));
    becket.idle();
}

#[test]
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

#[test]
fn a_reload_switches_admission_on() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let becket = Becket::start(&place, &shape);
    let trust = newcomer(&Trust::new(&place));
    for _ in 0..5 {
        trust.visit(becket.web).unwrap();
    }
    let limited = "[admission]\nfull-handshakes-per-second = 1\n";
    place.write("becket.toml", &shape.section(limited).text());
    assert!(becket.reload());
    eventually("somebody is turned away", || {
        trust.visit(becket.web).is_err()
    });
    eventually("somebody is let in", || trust.visit(becket.web).is_ok());
}
