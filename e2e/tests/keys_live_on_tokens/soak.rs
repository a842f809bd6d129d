//! A soak of keys on a token, with the processes that are really there: clients misbehave at random, while the token is pulled, and its
//! process is killed, stopped for a while, or stopped for good; reloads keep the key, change it and remove it; and then all is as
//! before.
//!
//! `BECKET_SOAK` and `BECKET_SOAK_SEED` are those of the other soaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use becket_e2e::{Becket, Key, Shape, eventually, unix_now};
use fastrand::Rng;
use rustls::version::{TLS12, TLS13};

use super::{Site, agent, gets_in, number, signal};
use crate::soak;

#[test]
#[ignore = "slow: .ci/run test"]
fn after_a_soak_with_keys_on_a_token_everything_is_as_before() {
    let Some(site) = Site::with(&[("www", Key::Ecdsa)]) else {
        return;
    };
    let other = site.place.authority.issue(&[NAME], Key::Rsa);
    let (_, key) = other.write_pair(site.place.folder(), "rsa");
    site.token.import("rsa", &key);
    let length = soak::number("BECKET_SOAK", 1000) as usize;
    let seed = soak::number("BECKET_SOAK_SEED", unix_now());
    println!("BECKET_SOAK_SEED={seed}");
    let backend = soak::moody();
    let shape = Shape::new(backend.address)
        .process("workers = 2")
        .listener("defer-accept = \"0s\"")
        .timeouts("handshake = \"2s\"\npkcs11 = \"500ms\"\nidle = \"5s\"\nlinger = \"500ms\"");
    let pairs = [
        site.pair("www"),
        site.pair("rsa"),
        "\"site.pem\"".to_owned(),
    ];
    let shapes = pairs.map(|pair| shape.clone().certificates(&format!("[{pair}]")));
    let becket = Arc::new(site.start(&shapes[0]));
    assert!(gets_in(&becket, &site.trust(&TLS13), NAME));
    becket.idle();
    let descriptors = becket.descriptors();

    let trusts = Arc::new([
        site.trust(&TLS12),
        site.trust(&TLS13),
        site.trust(&TLS12).without_tickets(),
        site.trust(&TLS13).without_tickets(),
    ]);
    let done = Arc::<AtomicUsize>::default();
    let threads: Vec<_> = (1..=THREADS)
        .map(|number| {
            let (becket, trusts, done) = (becket.clone(), trusts.clone(), done.clone());
            thread::spawn(move || {
                let mut dice = Rng::with_seed(seed.wrapping_add(number));
                while done.fetch_add(1, SeqCst) < length {
                    soak::misbehave(&becket, &*trusts, &mut dice).ok();
                }
            })
        })
        .collect();
    let mut dice = Rng::with_seed(seed);
    for turn in 1..FAULTS {
        let due = length * turn / FAULTS;
        eventually("clients come", || done.load(SeqCst) >= due);
        happens(&site, &becket, &mut dice);
        reload(&site, &becket, dice.choice(&shapes).unwrap());
    }
    for thread in threads {
        thread.join().unwrap();
    }
    reload(&site, &becket, &shapes[0]);
    becket.idle();
    eventually("the token signs", || {
        gets_in(&becket, &site.trust(&TLS13).without_tickets(), NAME)
    });
    becket.idle();
    eventually("nothing is asked of it", || {
        number(&becket, "in_flight") == 0.0
    });
    eventually("descriptors are back", || {
        becket.descriptors() <= descriptors
    });
    assert_eq!(becket.metrics().closed("internal"), 0);
    assert!(!becket.log().contains("panicked"), "{}", becket.log());
}

/// Its thread is started by a process that is confined already.
#[test]
#[ignore = "slow: .ci/run test"]
fn a_token_that_a_reload_removed_comes_back_with_another() {
    let Some(site) = Site::with(&[("www", Key::Ecdsa)]) else {
        return;
    };
    let backend = soak::moody();
    let shape = Shape::new(backend.address);
    let on_token = (shape.clone()).certificates(&format!("[{}]", site.pair("www")));
    let becket = site.start(&on_token);
    for shape in [&shape, &on_token] {
        site.place.write("becket.toml", &shape.text());
        assert!(becket.reload(), "{}", becket.log());
        let is_on_token = shape.text() == on_token.text();
        eventually("an agent, or none", || {
            agent(&becket).is_some() == is_on_token
        });
    }
    assert!(gets_in(&becket, &site.trust(&TLS13), NAME));
    let refused = &becket.status()["refused_calls"];
    assert_eq!(refused, &serde_json::json!({}));
}

/// Something happens to the token, if it is in use, or to its agent.
fn happens(site: &Site, becket: &Becket, dice: &mut Rng) {
    // Those of earlier configurations end with their last handshakes.
    eventually("one agent at most", || {
        becket.children_named("becket-token").len() <= 1
    });
    // SoftHSM loses a token if it is killed while it logs in.
    let Some(agent) = agent(becket).filter(|_| number(becket, "available") == 1.0) else {
        return;
    };
    let asked = || {
        let client = site.crowd(becket, NAME, 1);
        eventually("it is asked, or was replaced", || {
            number(becket, "in_flight") > 0.0 || super::agent(becket) != Some(agent)
        });
        client
    };
    match dice.u8(..4) {
        0 => {
            site.token.pull();
            gets_in(becket, &site.trust(&TLS12).without_tickets(), NAME);
            site.token.plug();
        }
        1 => signal(agent, "-KILL"),
        2 => {
            signal(agent, "-STOP");
            let clients = asked();
            signal(agent, "-CONT");
            drop(clients);
        }
        _ => {
            signal(agent, "-STOP");
            let clients = asked();
            eventually("another agent", || super::agent(becket) != Some(agent));
            drop(clients);
        }
    }
}

/// Reloads, by which another agent is started.
fn reload(site: &Site, becket: &Becket, shape: &Shape) {
    site.place.write("becket.toml", &shape.text());
    becket.reload();
}

const NAME: &str = "www.example.org";
const THREADS: u64 = 4;
/// Of the token; there is one less.
const FAULTS: usize = 10;
