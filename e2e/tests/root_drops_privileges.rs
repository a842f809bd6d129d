//! If started as root, becket serves as another user and can still reload, because the supervisor keeps root's privileges.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Client, Key, Place, REQUEST, Shape, Signal, Trust, eventually,
    fresh_host, give, nobody, until,
};

/// Returns this line of `/proc/PID/status` for every thread.
fn of_all_threads(becket: &Becket, key: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", becket.child())).unwrap();
    let line = |task: &Path| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with(key));
        line.unwrap_or_default().to_owned()
    };
    tasks.map(|task| line(&task.unwrap().path())).collect()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn low_ports_are_bound_and_the_worker_process_has_no_privileges() {
    let Some(user) = nobody() else { return };
    let place = Place::new();
    give(&place, user);
    let backend = Backend::http("well met");
    let mut shape = Shape::new(backend.address).process(AS_NOBODY);
    shape.web = SocketAddr::from((fresh_host(), 443));
    let becket = Becket::start(&place, &shape);
    give(&place, user);
    let ids = format!("Uid:\t{user}\t{user}\t{user}\t{user}");
    for line in of_all_threads(&becket, "Uid:") {
        assert_eq!(line, ids);
    }
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        for line in of_all_threads(&becket, set) {
            assert_eq!(line, format!("{set}:\t0000000000000000"));
        }
    }
    for line in of_all_threads(&becket, "NoNewPrivs:") {
        assert_eq!(line, "NoNewPrivs:\t1");
    }
    let trust = Trust::new(&place);
    assert!(
        Client::connect(becket.web, &trust)
            .unwrap()
            .ask(REQUEST)
            .is_ok()
    );

    // A reload loads the renewed certificate and binds another low port.
    place.issue("site.pem", &["www.example.org"], Key::Ecdsa);
    give(&place, user);
    let more = SocketAddr::from((fresh_host(), 993));
    let second = format!(
        "[[listener]]\nname = \"second\"\nbind = [\"{more}\"]\ncertificates = [\"site.pem\"]\n\
         backend = \"app\""
    );
    place.write("becket.toml", &shape.section(&second).text());
    assert!(becket.reload(), "{}", becket.log());
    eventually("the second listener serves", || {
        Client::connect(more, &trust).is_ok()
    });

    // Logs belong to the user, also after a rotation.
    fs::rename(place.path("access.log"), place.path("access.log.1")).unwrap();
    becket.signal(Signal::USR1);
    until("a new access log", || {
        place.path("access.log").exists().then_some(())
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn core_dumps_are_off_unless_enabled() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let core = |pid: &str| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        line.unwrap().to_owned()
    };
    let off = "Max core file size 0 0 bytes";
    for (process, is_off) in [
        ("workers = 1", true),
        ("workers = 1\ncore-dumps = true", false),
    ] {
        let becket = Becket::start(&place, &Shape::new(backend.address).process(process));
        let theirs = core(&becket.child().to_string());
        let words: Vec<&str> = theirs.split_whitespace().collect();
        if is_off {
            assert_eq!(words.join(" "), off);
        } else {
            assert_eq!(theirs, core("self"), "the inherited limit");
        }
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn memory_is_locked_if_enabled() {
    if nobody().is_none() {
        return;
    }
    let place = Place::new();
    let backend = Backend::http("well met");
    for (process, locked) in [("", false), ("lock-memory = true", true)] {
        let becket = Becket::start(&place, &Shape::new(backend.address).process(process));
        let status = fs::read_to_string(format!("/proc/{}/status", becket.child())).unwrap();
        assert_eq!(!status.contains("VmLck:\t       0 kB"), locked, "{status}");
    }
}
