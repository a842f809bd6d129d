//! SIGTERM drains: becket accepts no new clients and waits for the others. It exits with 0, or with 3 after the time limit. SIGINT
//! stops immediately.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, kill_process};

use becket_e2e::{
    Backend, Becket, Client, Notices, PATIENCE, Place, Shape, Signal, Trust, eventually, finish,
    fresh_address, holds_for, http_get, now, read_to_end, until,
};

/// Connects a client and waits for its first echo.
fn talk(becket: &Becket, trust: &Trust) -> Client {
    let mut client = Client::connect(becket.web, trust).unwrap();
    echo(&mut client);
    client
}

fn echo(client: &mut Client) {
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn requested_pages_are_sent_before_the_process_exits() {
    let (place, backend) = (Place::new(), Backend::echo());
    let mut becket = Becket::start(&place, &Shape::new(backend.address));
    // When becket continues, it finds all requests and the signal at once.
    becket.signal(Signal::STOP);
    let asked: Vec<_> = (0..2)
        .map(|_| {
            let mut client = TcpStream::connect(becket.admin).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client
                .write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            client
        })
        .collect();
    becket.signal(Signal::INT);
    becket.signal(Signal::CONT);
    for mut client in asked {
        let mut page = String::new();
        client.read_to_string(&mut page).unwrap();
        assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    }
    assert_eq!(becket.ended(), Some(0));
}

#[test]
fn a_drain_lets_connections_finish_and_exits_with_0() {
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address).timeouts("drain-idle = \"10m\"");
    let mut becket = Becket::start(&place, &shape);
    let mut client = talk(&becket, &Trust::new(&place));
    becket.signal(Signal::TERM);
    until("new clients are refused", || {
        let refused = TcpStream::connect(becket.web).err()?;
        (refused.kind() == io::ErrorKind::ConnectionRefused).then_some(())
    });
    let (status, _) = http_get(becket.admin, "/healthz").unwrap();
    assert_eq!(status, 503);
    assert_eq!(becket.metrics().sum("becket_draining", &[]) as u64, 1);
    assert_eq!(becket.status()["state"], "draining");
    for _ in 0..3 {
        echo(&mut client);
    }
    client.close_notify().unwrap();
    let (_, end) = read_to_end(&mut client);
    end.unwrap();
    drop(client);
    assert_eq!(becket.ended(), Some(0));
    // The attempts of new clients may have left lines as well.
    let lines = becket.access();
    let finished = lines.iter().filter(|line| line["reason"] == "finished");
    assert_eq!(
        finished.count(),
        1,
        "the last line is written before the end"
    );
}

/// Returns the state of a process as shown by `ps`.
fn state(pid: Pid) -> char {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.chars().next().unwrap()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_drain_right_after_a_reload_lets_connections_finish() {
    let place = Place::new();
    let backend = Backend::echo();
    let notices = Notices::bind(&place);
    let shape = Shape::new(backend.address).timeouts("drain-idle = \"10m\"");
    let mut becket = Becket::start_as(&place, &shape, |command| notices.of(command));
    let mut client = talk(&becket, &Trust::new(&place));
    let [main, serving] =
        [becket.pid(), becket.child()].map(|pid| Pid::from_raw(pid as i32).unwrap());
    kill_process(serving, Signal::STOP).unwrap();
    becket.signal(Signal::HUP);
    notices.next("RELOADING=1");
    eventually("the supervisor has notified the child", || {
        state(main) == 'S'
    });
    // The supervisor finds the child's answer and the signal at once, and may process them in any order.
    kill_process(main, Signal::STOP).unwrap();
    kill_process(serving, Signal::CONT).unwrap();
    eventually("the child answers", || {
        becket.log().contains("configuration reloaded")
    });
    becket.signal(Signal::TERM);
    kill_process(main, Signal::CONT).unwrap();
    until("new clients are refused", || {
        TcpStream::connect(becket.web).err()
    });
    echo(&mut client);
    client.close_notify().unwrap();
    read_to_end(&mut client).1.unwrap();
    drop(client);
    assert_eq!(becket.ended(), Some(0));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn another_becket_can_start_while_one_drains() {
    let backend = Backend::echo();
    let place = Place::new();
    let made = finish(Becket::command(&place, &["secret", "secret"]), "");
    assert_eq!(made.code, 0, "{}", made.all());
    let share = |to: &Place| fs::copy(place.path("secret"), to.path("secret")).unwrap();
    // The node also binds a UDP address for replication.
    let at = fresh_address().to_string();
    let cluster = format!("[cluster]\nnode = 1\nsecret = \"secret\"\nlisten = {at:?}");
    let shape = Shape::new(backend.address)
        .timeouts("drain-idle = \"10m\"")
        .section(&cluster);
    let mut first = Becket::start(&place, &shape);
    let mut client = talk(&first, &Trust::new(&place));
    let (other, mut third) = (Place::new(), shape.clone());
    share(&other);
    third.web = fresh_address();
    let text = third.text().replace(&at, &fresh_address().to_string());
    other.write("becket.toml", &text);
    let command = Becket::command(&other, &["run", "--config", "becket.toml"]);
    let mut third = Becket::spawn(command, other.folder(), third.web, third.admin);
    assert_eq!(third.ended(), Some(2), "two do not share the pages");
    assert!(third.logs().contains("admin.address"), "{}", third.logs());
    first.signal(Signal::TERM);
    until("the address of clients is free", || {
        TcpStream::connect(first.web).err()
    });
    let beside = Place::new();
    share(&beside);
    let second = Becket::start(&beside, &shape);
    assert_eq!(second.status()["cluster"]["node"], 1);
    for _ in 0..20 {
        assert_eq!(second.status()["state"], "serving", "the pages are its own");
    }
    echo(&mut client);
    drop(client);
    assert_eq!(first.ended(), Some(0));
    assert_eq!(second.status()["state"], "serving");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn remaining_connections_are_closed_at_the_deadline_with_exit_code_3() {
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address).timeouts("drain = \"500ms\"");
    let mut becket = Becket::start(&place, &shape);
    let mut client = talk(&becket, &Trust::new(&place));
    let start = now();
    becket.signal(Signal::TERM);
    let end = client.read(&mut [0]);
    assert!(end.is_err(), "the cut looks like a regular end: {end:?}");
    assert_eq!(becket.ended(), Some(3));
    assert!(
        start.elapsed() >= Duration::from_millis(450),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(becket.next_reason(), "stopped");
    assert!(becket.log().contains("timeouts.drain"), "{}", becket.log());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_reload_during_a_drain_opens_no_listener() {
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address).timeouts("drain-idle = \"10m\"");
    let mut becket = Becket::start(&place, &shape);
    let mut client = talk(&becket, &Trust::new(&place));
    // The configuration file is a FIFO, so that the reload blocks until the test writes to it.
    let file = place.path("becket.toml");
    fs::remove_file(&file).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&file)
            .status()
            .unwrap()
            .success()
    );
    becket.signal(Signal::HUP);
    let mut writer = OpenOptions::new().write(true).open(&file).unwrap();
    becket.signal(Signal::TERM);
    eventually("becket drains", || becket.log().contains("draining"));
    let late = fresh_address();
    let listener = format!(
        "[[listener]]\nname = \"late\"\nbind = [\"{late}\"]\n\
         certificates = [\"site.pem\"]\nbackend = \"app\""
    );
    let text = shape.section(&listener).text();
    writer.write_all(text.as_bytes()).unwrap();
    drop(writer);
    holds_for(
        Duration::from_secs(1),
        "the late listener stays closed",
        || TcpStream::connect_timeout(&late, Duration::from_millis(100)).is_err(),
    );
    echo(&mut client);
    client.close_notify().unwrap();
    drop(client);
    assert_eq!(becket.ended(), Some(0));
    assert!(becket.log().contains("reload skipped"), "{}", becket.log());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn sigint_stops_immediately() {
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address).timeouts("drain = \"10m\"");
    let mut becket = Becket::start(&place, &shape);
    let mut client = talk(&becket, &Trust::new(&place));
    becket.signal(Signal::INT);
    assert_eq!(becket.ended(), Some(0));
    assert!(
        client.read(&mut [0]).is_err(),
        "the cut looks like a regular end"
    );
    assert_eq!(becket.next_reason(), "stopped");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn clients_in_the_accept_queue_are_served_when_a_drain_begins() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).listener("defer-accept = \"0s\"");
    let mut becket = Becket::start(&place, &shape);
    let (web, trust) = (becket.web, Trust::new(&place));
    let visitors: Vec<_> = (0..4)
        .map(|_| {
            let trust = trust.clone();
            std::thread::spawn(move || {
                loop {
                    let visit = Client::connect(web, &trust)
                        .and_then(|mut client| client.ask(b"GET / HTTP/1.0\r\n\r\n"));
                    if let Err(error) = visit {
                        return error;
                    }
                }
            })
        })
        .collect();
    eventually("visitors are served", || backend.served() > 20);
    becket.signal(Signal::TERM);
    for visitor in visitors {
        let error = visitor.join().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error:?}");
    }
    assert_eq!(becket.ended(), Some(0));
}
