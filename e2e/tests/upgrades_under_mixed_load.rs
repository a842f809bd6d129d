//! Upgrades under every kind of load at once: no connection is lost, rejected, reset or corrupted, and each change through the
//! admin API is answered.
//!
//! `BECKET_SOAK_UPGRADES=50` is the full length; the default takes seconds. Every connection is counted: the access log has one
//! line for each, and the servers accepted as many connections as the clients completed.

mod clients;
mod edits;
mod stage;

use std::collections::VecDeque;
use std::{fs, thread};

use becket_e2e::{Over, Signal, eventually};

use self::clients::{Download, HalfDone, Load, Returning};
use self::edits::Edits;
use self::stage::Stage;
use crate::processes_of_an_upgrade_are_killed::{close_gate, open_gate, stop};
use crate::soak::number;
use crate::upgrades_lose_nothing::{asking, children, signal};

#[test]
#[ignore = "slow: .ci/run test"]
fn no_connection_is_lost_under_mixed_load() {
    let rounds = number("BECKET_SOAK_UPGRADES", 8) as usize;
    let stage = Stage::start();
    let load = Load::new(&stage);
    thread::scope(|scope| {
        let _over = Over(&load.over);
        load.start(scope);
        let edits = Edits::new(&stage);
        let mut downloads = VecDeque::new();
        for round in 1..=rounds {
            downloads.push_back(Download::begin(&load));
            load.everybody_is_served();
            upgrade(&stage, &load, &edits, round);
            if round > 1 {
                three_processes_live(&stage, &load);
                downloads.pop_front().unwrap().finish(&load);
            }
        }
        load.everybody_is_served();
        downloads
            .into_iter()
            .for_each(|download| download.finish(&load));
        edits.count(&load);
    });
    eventually("replaced processes have ended", || {
        children(&stage.becket).len() == 1
    });
    stage.becket.idle();
    load.adds_up(rounds);
}

/// Makes one upgrade, with clients that connect before, during and after it.
#[track_caller]
fn upgrade(stage: &Stage, load: &Load<'_>, edits: &Edits<'_>, round: usize) {
    let returning = Returning::come(load);
    let half_done = HalfDone::begin(load);
    // The new process waits at a gate, so the upgrade is in progress during the first edits.
    close_gate(&stage.place);
    let asked = asking(&stage.becket);
    let logged = |text: &str| {
        eventually(text, || stage.becket.log().matches(text).count() == round);
    };
    logged("the new process is loading");
    let last = edits.last();
    edits.add_server();
    let newcomer = load.newcomer(round);
    // The upgrade stops here while the supervisor is stopped.
    stop(stage.becket.pid());
    open_gate(&stage.place);
    logged("ready; waiting for the old process");
    edits.add_server();
    edits.make_until_answered(&asked, || {
        signal(stage.becket.pid(), Signal::CONT);
    });
    let asked = asked.join().unwrap();
    fs::remove_file(stage.place.path("gate")).unwrap();
    assert_eq!(asked.code, 0, "{}\n{}", asked.all(), stage.becket.log());
    half_done.finish(load);
    returning.come_again(load);
    newcomer.come_again(load);
    edits.have_ended(last);
    load.nothing_failed();
}

/// Fails unless three processes live: the downloads of this round and of the previous one each keep one alive.
#[track_caller]
fn three_processes_live(stage: &Stage, load: &Load<'_>) {
    let processes = children(&stage.becket);
    assert!(
        processes.len() >= 3,
        "{processes:?}\n{}",
        stage.becket.log()
    );
    load.add("moments with three processes", 1);
}
