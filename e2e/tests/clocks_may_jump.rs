//! Changes of the wall clock by days in either direction close no connection and reject no client.
//!
//! The test changes the clock of a guest, because the clock of this machine is shared.

use std::fs;
use std::io::{Read, Write};
use std::process::Command;

use becket_e2e::{
    Backend, Becket, Client, Place, Shape, Signal, Trust, UserModeLinux, eventually, is_inside_uml,
    unix_now,
};

#[test]
#[ignore = "slow: .ci/run test"]
fn clock_jumps_in_user_mode_linux_do_not_affect_clients() {
    let Some(linux) = UserModeLinux::find() else {
        return;
    };
    let place = Place::new();
    let Some(ran) = linux.run(&place, "clocks_may_jump::inside") else {
        return;
    };
    let report = fs::read_to_string(place.path("report")).unwrap_or_default();
    assert_eq!(report, "all\n", "{ran}");
}

/// Runs within a guest only.
#[test]
#[ignore = "slow: .ci/run test"]
fn inside() {
    if !is_inside_uml() {
        return;
    }
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address)
        .process("workers = 1\npin = false")
        .timeouts("idle = '1h'");
    let mut becket = Becket::start(&place, &shape);
    let ways = Trust::ways(&place, None);
    let known: Vec<_> = ways.iter().map(|(_, trust)| trust).collect();
    let mut there = Client::connect(becket.web, known[0]).unwrap();
    for days in [1, -3, 400, -800, 402] {
        let set = unix_now().saturating_add_signed(days * DAY);
        let clock = Command::new("date")
            .arg("-s")
            .arg(format!("@{set}"))
            .output();
        assert!(clock.unwrap().status.success());
        echo(&mut there);
        for trust in &known {
            // Resume earlier sessions as well as the ones created now.
            (0..2).for_each(|_| echo(&mut Client::connect(becket.web, trust).unwrap()));
        }
    }
    echo(&mut there);
    eventually("only one connection is open", || {
        becket.metrics().open() == 1
    });
    drop(there);
    becket.idle();
    becket.signal(Signal::TERM);
    assert_eq!(becket.ended(), Some(0));
    fs::write("report", "all\n").unwrap();
}

fn echo(client: &mut Client) {
    let mut answer = [0; 5];
    client.write_all(b"hello").unwrap();
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

const DAY: i64 = 24 * 60 * 60;
