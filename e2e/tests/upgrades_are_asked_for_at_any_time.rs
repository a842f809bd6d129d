//! Requests during an upgrade are handled by the process that serves at that moment.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use becket_e2e::{
    Backend, Client, Over, Place, REQUEST, Shape, Signal, Trust, becket_done, eventually,
    fresh_address, http_get,
};

use crate::upgrades_lose_nothing::{
    READY_AND_SILENT, TWO_WORKERS, install, install_script, rounds, start, upgrade,
};

#[test]
#[ignore = "slow: .ci/run test"]
fn a_becket_that_is_stopped_during_an_upgrade_serves_waiting_clients() {
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address)
        .process(TWO_WORKERS)
        .listener("defer-accept = \"0s\"")
        .timeouts("drain = \"10m\"\ndrain-idle = \"10m\"");
    let mut becket = start(&place, &shape);
    let trust = Trust::new(&place);
    let echo = |client: &mut Client| {
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    };
    let mut old = Client::connect(becket.web, &trust).unwrap();
    echo(&mut old);
    install_script(&place, READY_AND_SILENT);
    becket.signal(Signal::USR2);
    eventually("the old process stops accepting", || {
        let probe = TcpStream::connect(becket.admin).unwrap();
        probe
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        (&probe)
            .write_all(b"GET /healthz HTTP/1.0\r\n\r\n")
            .unwrap();
        (&probe).read(&mut [0]).is_err()
    });
    let mut waiting = Client::begin(becket.web, &trust, "www.example.org").unwrap();
    waiting.tls.write_tls(&mut waiting.socket).unwrap();
    becket.signal(Signal::TERM);
    echo(&mut waiting);
    eventually("the process drains", || {
        http_get(becket.admin, "/healthz").is_ok_and(|(status, _)| status == 503)
    });
    drop((old, waiting));
    assert_eq!(becket.ended(), Some(0), "{}", becket.logs());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn reload_requests_during_an_upgrade_are_answered_by_the_serving_process() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).process(TWO_WORKERS);
    let mut becket = start(&place, &shape);
    let trust = Trust::new(&place);
    let (pid, child) = (becket.pid(), becket.child());
    thread::scope(|scope| {
        let upgrades = scope.spawn(|| {
            for _ in 0..4 {
                upgrade(&becket);
                assert!(trust.visit(becket.web).is_ok());
            }
        });
        // A few signals arrive while the supervisor replaces its program.
        while !upgrades.is_finished() {
            becket.signal(Signal::HUP);
            thread::sleep(Duration::from_micros(500));
        }
    });
    assert_eq!(becket.pid(), pid);
    assert_ne!(becket.child(), child);
    assert_eq!(becket.status()["upgrades"]["done"], 4);
    let restarts = becket.metrics().sum("becket_restarts_total", &[]);
    assert_eq!(restarts, 0.0, "{}", becket.logs());
    becket.signal(Signal::TERM);
    assert_eq!(becket.ended(), Some(0), "{}", becket.logs());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_reload_command_waits_for_a_running_upgrade() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).process(TWO_WORKERS);
    let shape = shape.timeouts("upgrade = \"1s\"");
    let becket = start(&place, &shape);
    for script in ["exec sleep 1000", READY_AND_SILENT] {
        install_script(&place, script);
        becket.signal(Signal::USR2);
        assert_eq!(becket_done(&place, &["reload"]), "reloaded\n");
    }
    install(&place);
    becket.signal(Signal::USR2);
    assert_eq!(becket_done(&place, &["reload"]), "reloaded\n");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn connections_to_an_address_that_an_upgrade_removes_are_served_before_it_closes() {
    let (place, backend) = (Place::new(), Backend::http("well met"));
    let kept = Shape::new(backend.address).process("workers = 2");
    let removed = fresh_address();
    let both = kept.clone().section(&format!(
        "[[listener]]\nname = \"removed\"\nbind = [\"{removed}\"]\nbackend = \"app\"\n\
         certificates = [\"site.pem\"]\ndefer-accept = \"0s\"\n"
    ));
    let becket = start(&place, &both);
    let trust = Trust::new(&place);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&over);
        let visit = || -> Vec<io::Error> {
            let mut failures = Vec::new();
            while !over.load(SeqCst) {
                // A closed address rejects connections, but loses none.
                let Ok(mut client) = Client::begin(removed, &trust, "www.example.org") else {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                failures.extend(client.ask(REQUEST).err());
            }
            failures
        };
        let visitors = [(); 6].map(|()| scope.spawn(visit));
        for _ in 0..rounds() / 2 {
            eventually("visitors are served", || trust.visit(removed).is_ok());
            place.write("becket.toml", &kept.text());
            upgrade(&becket);
            eventually("the address is closed", || {
                TcpStream::connect(removed).is_err()
            });
            place.write("becket.toml", &both.text());
            upgrade(&becket);
        }
        over.store(true, SeqCst);
        for visitor in visitors {
            let failures = visitor.join().unwrap();
            assert!(failures.is_empty(), "{failures:?}\n{}", becket.log());
        }
    });
}
