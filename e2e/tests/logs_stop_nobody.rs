//! A log that is not read or cannot be written loses lines and has no other effect: clients are
//! served, signals are handled, and becket exits when requested.

use std::fs::OpenOptions;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use becket_e2e::{
    Backend, Becket, Client, Key, PATIENCE, Place, REQUEST, Shape, Signal, Trust, eventually,
    http_get, until,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Pid, kill_process};

/// Number of clients that exceeds the queue of the access log.
const MANY: usize = 6000;

/// Fills a pipe through a separate descriptor, so that the other descriptors stay in blocking mode.
fn fill(pipe: &Path) {
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let mut pipe = options
        .write(true)
        .custom_flags(nonblock)
        .open(pipe)
        .unwrap();
    let full = loop {
        if let Err(error) = pipe.write(&[b'\n'; 512]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
}

/// Connects clients that send no TLS. Each one causes a log line.
fn garbage(becket: &Becket, clients: usize) {
    for _ in 0..clients {
        let mut client = TcpStream::connect(becket.web).unwrap();
        // Becket may have closed the connection already.
        client.write_all(b"nonsense").ok();
    }
}

/// Checks that becket serves new clients and pages, reloads, reopens its logs, and exits after SIGTERM.
#[track_caller]
fn lives_and_ends(mut becket: Becket, place: &Place) {
    let trust = Trust::new(place);
    for _ in 0..4 {
        let answer = Client::connect(becket.web, &trust).unwrap().ask(REQUEST);
        assert!(answer.is_ok());
    }
    place.issue("site.pem", &["www.example.org"], Key::Ecdsa);
    assert!(becket.reload());
    becket.signal(Signal::USR1);
    assert!(matches!(http_get(becket.admin, "/healthz"), Ok((200, _))));
    becket.signal(Signal::TERM);
    assert_eq!(becket.ended(), Some(0));
}

/// Starts becket with logs that go to a full pipe without a reader. Returns both ends of the pipe, which keep it open.
fn with_full_stderr(
    place: &Place,
    shape: &Shape,
    logs: &[&str],
) -> (Becket, (PipeReader, PipeWriter)) {
    let (reader, writer) = std::io::pipe().unwrap();
    let text = logs.iter().fold(shape.text(), |text, log| {
        text.replace(&format!("{log:?}"), "\"stderr\"")
    });
    place.write("becket.toml", &text);
    let mut command = Becket::command(place, &["run", "--config", "becket.toml"]);
    command.stderr(writer.try_clone().unwrap());
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    fill(Path::new(&format!("/proc/self/fd/{}", writer.as_raw_fd())));
    (becket, (reader, writer))
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_full_stderr_pipe_stops_no_client() {
    let (place, backend) = (Place::new(), Backend::http("well met"));
    let shape = Shape::new(backend.address);
    let (becket, _pipe) = with_full_stderr(&place, &shape, &["becket.log", "access.log"]);
    garbage(&becket, 300);
    lives_and_ends(becket, &place);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_full_stderr_pipe_stops_neither_the_supervisor_nor_a_new_process() {
    let (place, backend) = (Place::new(), Backend::http("well met"));
    let shape = Shape::new(backend.address);
    let (becket, _pipe) = with_full_stderr(&place, &shape, &["becket.log"]);
    let killed = Pid::from_raw(becket.child().cast_signed()).unwrap();
    kill_process(killed, Signal::KILL).unwrap();
    until("another process serves", || {
        matches!(http_get(becket.admin, "/healthz"), Ok((200, _))).then_some(())
    });
    lives_and_ends(becket, &place);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_full_fifo_stops_no_client_and_later_shows_the_number_of_dropped_lines() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let [mut log, mut access] = ["becket.pipe", "access.pipe"].map(|name| {
        let path = place.path(name);
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(nonblock)
            .open(path)
            .unwrap()
    });
    let shape = Shape::new(backend.address).process("workers = 1");
    let text = shape.text().replace("\"becket.log\"", "\"becket.pipe\"");
    let text = text.replace("\"access.log\"", "\"access.pipe\"");
    place.write("becket.toml", &text);
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    for name in ["becket.pipe", "access.pipe"] {
        fill(&place.path(name));
    }
    garbage(&becket, MANY);
    eventually("dropped records are counted", || {
        becket
            .metrics()
            .sum("becket_access_lines_dropped_total", &[])
            > 0.0
    });
    let (mut text, mut lines) = (Vec::new(), Vec::new());
    eventually("the number of dropped lines is logged", || {
        // Ignore errors: becket may not have written the lines yet.
        log.read_to_end(&mut text).ok();
        access.read_to_end(&mut lines).ok();
        String::from_utf8_lossy(&text).contains("log lines dropped")
    });
    becket.queues_are_whole();
    lives_and_ends(becket, &place);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_full_disk_drops_lines_and_counts_them() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let text = shape.text().replace("\"becket.log\"", "\"/dev/full\"");
    let text = text.replace("\"access.log\"", "\"/dev/full\"");
    place.write("becket.toml", &text);
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    garbage(&becket, 50);
    for name in [
        "becket_log_lines_dropped_total",
        "becket_access_lines_dropped_total",
    ] {
        eventually(name, || becket.metrics().sum(name, &[]) > 0.0);
    }
    lives_and_ends(becket, &place);
}

/// Receives messages until one contains this text.
fn wait_for(daemon: &UnixDatagram, text: &str) -> String {
    let mut message = [0; 16 * 1024];
    loop {
        let length = daemon.recv(&mut message).unwrap();
        let message = String::from_utf8_lossy(&message[..length]);
        if message.contains(text) {
            return message.into_owned();
        }
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_syslog_daemon_receives_every_line_and_stops_no_client_when_it_reads_none() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let at = place.path("syslog");
    let daemon = UnixDatagram::bind(&at).unwrap();
    daemon.set_read_timeout(Some(PATIENCE)).unwrap();
    let shape = Shape::new(backend.address);
    let text = shape.text().replace(
        "[log]\n",
        &format!("[log]\nsyslog = {at:?}\nsyslog-facility = \"local3\"\nsyslog-tag = \"edge\"\n"),
    );
    place.write("becket.toml", &text);
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    // Priority 158 is local3, informational.
    let message = wait_for(&daemon, "serving");
    assert!(message.starts_with("<158>edge["), "{message}");
    // The line is also in the log file.
    becket.says("serving");
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send_to(b"full", &at).is_ok() {}
    eventually("dropped lines are counted", || {
        garbage(&becket, 50);
        let name = "becket_syslog_lines_dropped_total";
        becket.metrics().sum(name, &[]) > 0.0
    });
    // Replace the daemon, as a restart would.
    drop(daemon);
    std::fs::remove_file(&at).unwrap();
    let daemon = UnixDatagram::bind(&at).unwrap();
    daemon.set_nonblocking(true).unwrap();
    // Lines of a kind have a rate limit, which the earlier lines may have used up.
    eventually("the new daemon receives lines", || {
        garbage(&becket, 1);
        let mut message = [0; 16 * 1024];
        let lengths = std::iter::from_fn(|| daemon.recv(&mut message).ok());
        lengths.count() > 0
    });
    lives_and_ends(becket, &place);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_failed_start_prints_the_reason_although_logs_go_to_a_file() {
    let place = Place::new();
    let shape = Shape::new("127.0.0.1:1");
    let _rival = std::net::TcpListener::bind(shape.web).unwrap();
    place.write("becket.toml", &shape.text());
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let mut becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    assert_eq!(becket.ended(), Some(2), "{}", becket.logs());
    assert!(place.read("stderr.log").contains("listener[web].bind"));
}
