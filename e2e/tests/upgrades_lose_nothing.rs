//! `becket upgrade` replaces the program without loss: no client is rejected or reset, and no client makes an
//! additional full handshake. A program that fails to start changes nothing.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Client, Finished, Notices, PATIENCE, Place, REQUEST, Shape, Signal,
    Trust, becket_program, ctl, eventually, finish, give, nobody, open_to_all, read_head,
    read_proxy_header, read_to_end,
};
use rustix::process::{Pid, kill_process};
use rustls::HandshakeKind;
use rustls::version::{TLS12, TLS13};

/// A program that reports that it is ready and then does nothing.
pub(crate) const READY_AND_SILENT: &str =
    "printf '\\007\\0\\0\\0\\0\\0\\0\\0\"Ready\"' >&0; exec sleep 1000";

pub(crate) const TWO_WORKERS: &str = "workers = 2";

/// Installs the program that an upgrade starts.
pub(crate) fn install(place: &Place) {
    // Another process writes the file. If this process had it open for writing, a program started by a parallel test
    // would inherit the descriptor, and executing the file would fail with "text file busy".
    let mut copy = Command::new("cp");
    copy.arg(becket_program()).arg(place.path("next"));
    assert!(copy.status().unwrap().success());
    fs::rename(place.path("next"), place.path("becket")).unwrap();
}

/// Installs a script instead of the program.
pub(crate) fn install_script(place: &Place, lines: &str) {
    let write = "printf '%s\\n' '#!/bin/sh' \"$1\" > next";
    let mut script = Command::new("sh");
    script.args(["-c", write, "sh", lines]);
    let written = script.current_dir(place.folder()).status();
    assert!(written.unwrap().success());
    fs::set_permissions(place.path("next"), Permissions::from_mode(0o755)).unwrap();
    fs::rename(place.path("next"), place.path("becket")).unwrap();
}

pub(crate) fn start(place: &Place, shape: &Shape) -> Becket {
    install(place);
    place.write("becket.toml", &shape.text());
    launch(place, shape, None)
}

pub(crate) fn launch(place: &Place, shape: &Shape, user: Option<u32>) -> Becket {
    let program = place.path("becket");
    let mut command = Becket::command_of(&program, place, &["run", "--config", "becket.toml"]);
    user.map(|user| command.uid(user));
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    becket
}

/// Runs `becket upgrade` and returns its exit code and output.
fn ask(becket: &Becket) -> Finished {
    finish(upgrade_command(becket), "")
}

/// Runs `becket upgrade` in another thread.
pub(crate) fn asking(becket: &Becket) -> JoinHandle<Finished> {
    let command = upgrade_command(becket);
    thread::spawn(move || finish(command, ""))
}

fn upgrade_command(becket: &Becket) -> Command {
    let mut command = Command::new(becket_program());
    command.args(["upgrade", "--socket"]).arg(becket.socket());
    command
}

#[track_caller]
pub(crate) fn upgrade(becket: &Becket) {
    let asked = ask(becket);
    assert_eq!(asked.code, 0, "{}\n{}", asked.all(), becket.log());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn upgrades_and_reloads_can_be_requested_over_the_admin_socket() {
    let (place, backend) = (Place::new(), Backend::http("well met"));
    let shape = Shape::new(backend.address).process(TWO_WORKERS);
    let becket = start(&place, &shape);
    // Each process counts its own requests.
    for (task, said) in [
        ("reload", "reloaded\n"),
        ("upgrade", "upgraded\n"),
        ("reload", "reloaded\n"),
        ("reload", "reloaded\n"),
        ("upgrade", "upgraded\n"),
    ] {
        let asked = ctl(&place, &[task]);
        assert_eq!(&*asked.stdout, said, "{}\n{}", asked.all(), becket.log());
    }
    assert_eq!(becket.status()["upgrades"]["done"], 2);
    install_script(&place, "exit 1");
    let refused = ctl(&place, &["upgrade"]);
    assert_eq!(refused.code, 3, "{}", refused.all());
    assert!(
        refused.stderr.contains("upgrade failed, nothing changed"),
        "{}",
        refused.stderr
    );
    Trust::new(&place).visit(becket.web).unwrap();
}

/// Process IDs of becket's processes other than the main one.
pub(crate) fn children(becket: &Becket) -> Vec<u32> {
    let pid = becket.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let numbers = children.split_whitespace().map(|pid| pid.parse().unwrap());
    numbers.collect()
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).expect("the process is there");
}

/// Clients that connect repeatedly, each with a session, until the test is over.
struct Visitors {
    over: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Visitors {
    fn start(becket: &Becket, trusts: Vec<Trust>) -> Self {
        let (over, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let web = becket.web;
        let threads = trusts.into_iter().map(|trust| {
            let (over, served) = (Arc::clone(&over), Arc::clone(&served));
            let visit = move || -> Result<HandshakeKind, String> {
                let mut client = Client::connect(web, &trust).map_err(|e| format!("{e:?}"))?;
                let answer = client.ask(REQUEST).map_err(|e| format!("{e:?}"))?;
                assert!(answer.ends_with(b"well met"));
                Ok(client.tls.handshake_kind().unwrap())
            };
            thread::spawn(move || {
                let mut failures = Vec::new();
                let first = visit().unwrap();
                assert_eq!(first, HandshakeKind::Full);
                while !over.load(SeqCst) {
                    match visit() {
                        Ok(HandshakeKind::Resumed) => drop(served.fetch_add(1, SeqCst)),
                        Ok(kind) => failures.push(format!("{kind:?}")),
                        Err(failure) => failures.push(failure),
                    }
                }
                failures
            })
        });
        Self {
            threads: threads.collect(),
            over,
            served,
        }
    }

    /// Waits until another ten connections are served.
    #[track_caller]
    fn more(&self) {
        let before = self.served.load(SeqCst);
        eventually("visitors are served", || {
            self.served.load(SeqCst) > before + 10
        });
    }

    /// Stops the clients and returns their failures.
    fn end(self) -> Vec<String> {
        self.over.store(true, SeqCst);
        let failures = self
            .threads
            .into_iter()
            .map(|thread| thread.join().unwrap());
        failures.flatten().collect()
    }
}

/// Number of upgrades per test: 8, or the value of `BECKET_UPGRADES`.
pub(crate) fn rounds() -> usize {
    let asked = std::env::var("BECKET_UPGRADES").ok();
    asked.map_or(8, |text| text.parse().unwrap())
}

#[test]
#[ignore = "slow: .ci/run test"]
fn clients_are_served_and_resume_during_upgrades() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    open_to_all(&place);
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).process(AS_NOBODY);
    let becket = start(&place, &shape);
    let trusts = [&TLS13, &TLS12, &TLS13].map(|version| Trust::only(&place, version));
    let visitors = Visitors::start(&becket, trusts.to_vec());
    let pid = becket.status()["pid"].clone();
    for round in 1..=rounds() {
        visitors.more();
        // The number of workers changes, so sockets move between workers.
        let workers = format!("workers = {}\nuser = \"nobody\"", [3, 1, 4, 2][round % 4]);
        place.write("becket.toml", &shape.clone().process(&workers).text());
        upgrade(&becket);
        let status = becket.status();
        assert_eq!(status["upgrades"]["done"], round);
        assert_eq!(status["pid"], pid, "the main process stays");
    }
    visitors.more();
    assert_eq!(visitors.end(), [""; 0], "{}", becket.log());
    eventually("replaced processes have ended", || {
        children(&becket).len() == 1
    });
    // The supervisor runs the new program as well, and restarts the worker process from it.
    let inode = |path: &str| fs::metadata(path).unwrap().ino();
    install(&place);
    upgrade(&becket);
    let program = inode(&place.text("becket"));
    eventually("the main process runs the new program", || {
        inode(&format!("/proc/{}/exe", becket.pid())) == program
    });
    let reload = || becket.reload();
    assert!(reload(), "{}", becket.log());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn sessions_with_early_data_resume_only_in_the_process_that_made_them() {
    let backend = Backend::new(|mut stream| {
        read_proxy_header(&mut stream)?;
        read_head(&mut stream)?;
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nwell met")
    });
    let policy = "[[policy]]\nname = \"web\"\nversions = [\"1.3\"]\nearly-data = \"17KiB\"\n";
    let shape = Shape::new(backend.address)
        .backend("proxy-header = \"v2\"")
        .section(policy);
    let place = Place::new();
    let becket = start(&place, &shape.process(TWO_WORKERS));
    let trust = Trust::only(&place, &TLS13);
    let kind = || {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        assert!(client.ask(REQUEST).unwrap().ends_with(b"well met"));
        client.tls.handshake_kind().unwrap()
    };
    assert_eq!(
        [kind(), kind()],
        [HandshakeKind::Full, HandshakeKind::Resumed]
    );
    upgrade(&becket);
    assert_eq!(
        [kind(), kind()],
        [HandshakeKind::Full, HandshakeKind::Resumed]
    );
}

#[test]
fn connections_continue_and_clients_in_the_backlog_are_served_by_the_new_process() {
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address)
        .process(TWO_WORKERS)
        .listener("defer-accept = \"0s\"")
        .timeouts("drain = \"10m\"\ndrain-idle = \"10m\"")
        .limits("connections = 1");
    let becket = start(&place, &shape);
    let trust = Trust::new(&place);
    let echo = |client: &mut Client| {
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    };
    let mut old = Client::connect(becket.web, &trust).unwrap();
    echo(&mut old);
    // The kernel completes these connections, and becket accepts none because of its limit.
    let waiting: Vec<TcpStream> = (0..8)
        .map(|_| TcpStream::connect(becket.web).unwrap())
        .collect();
    // The new program has one worker and takes over the sockets of two.
    place.write(
        "becket.toml",
        &shape
            .process("workers = 1")
            .limits("handshakes = 100")
            .text()
            .replace("connections = 1\n", ""),
    );
    upgrade(&becket);
    for socket in waiting {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Client::begin(becket.web, &trust, "www.example.org").unwrap();
        client.socket = socket;
        echo(&mut client);
    }
    assert_eq!(children(&becket).len(), 2, "the old process drains");
    echo(&mut old);
    old.close_notify().unwrap();
    read_to_end(&mut old).1.unwrap();
    drop(old);
    eventually("the old process ends with its last connection", || {
        children(&becket).len() == 1
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_program_that_fails_to_start_changes_nothing() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).process(TWO_WORKERS);
    let becket = start(&place, &shape);
    let visitors = Visitors::start(&becket, vec![Trust::new(&place)]);
    let started = becket.status()["started"].clone();
    let refused = |reason: &str| {
        let asked = ask(&becket);
        assert_eq!(asked.code, 1, "{}", asked.all());
        assert!(asked.all().contains(reason), "{reason}: {}", asked.all());
        assert_eq!(becket.status()["started"], started);
        visitors.more();
    };
    install_script(&place, "exit 1");
    refused("exit status: 1");
    install_script(&place, "echo this is rubbish >&0; exec sleep 1000");
    refused("cannot replace a running one");
    fs::remove_file(place.path("becket")).unwrap();
    refused("/becket: No such file");
    install(&place);
    place.write("becket.toml", "this is no TOML [");
    refused("exit status: 2");
    place.write(
        "becket.toml",
        &shape.clone().certificates("[\"gone.pem\"]").text(),
    );
    refused("gone.pem");
    // A program that hangs is stopped, before and after the old process stopped accepting.
    place.write(
        "becket.toml",
        &shape.clone().timeouts("upgrade = \"1s\"").text(),
    );
    for script in ["exec sleep 1000", READY_AND_SILENT] {
        install_script(&place, script);
        refused("timeouts.upgrade");
        assert_eq!(children(&becket).len(), 1);
    }
    install(&place);
    place.write("becket.toml", &shape.text());
    assert_eq!(becket.status()["upgrades"]["refused"], 7);
    upgrade(&becket);
    assert_eq!(visitors.end(), [""; 0], "{}", becket.log());
    let first =
        "upgrade failed, nothing changed: the new process exited before it served (exit status: 1)";
    assert_eq!(becket.log().matches(first).count(), 1, "{}", becket.log());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn upgrades_work_without_root() {
    let Some(user) = nobody() else { return };
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let shape = shape.process(&format!("{TWO_WORKERS}\npid-file = \"becket.pid\""));
    install(&place);
    place.write("becket.toml", &shape.text());
    give(&place, user);
    let mut becket = launch(&place, &shape, Some(user));
    let trust = Trust::new(&place);
    let pid = format!("{}\n", becket.pid());
    // The worker process accepts connections a moment before the supervisor learns of it.
    eventually("the supervisor writes its process ID", || {
        place.path("becket.pid").exists()
    });
    for _ in 0..2 {
        assert_eq!(place.read("becket.pid"), pid);
        assert!(trust.visit(becket.web).is_ok());
        upgrade(&becket);
    }
    becket.signal(Signal::TERM);
    assert_eq!(becket.ended(), Some(0), "{}", becket.logs());
    assert!(!place.path("becket.pid").exists());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn root_executes_only_what_root_alone_can_change() {
    let Some(user) = nobody() else { return };
    for process in [AS_NOBODY, TWO_WORKERS] {
        let place = Place::new();
        open_to_all(&place);
        let backend = Backend::http("well met");
        let becket = start(&place, &Shape::new(backend.address).process(process));
        std::os::unix::fs::chown(place.path("becket"), Some(user), None).unwrap();
        let asked = ask(&becket);
        assert_eq!(asked.code, 1, "{}", asked.all());
        assert!(
            asked.all().contains("a user other than root"),
            "{}",
            asked.all()
        );
        std::os::unix::fs::chown(place.path("becket"), Some(0), None).unwrap();
        fs::set_permissions(place.path("becket"), Permissions::from_mode(0o777)).unwrap();
        assert_eq!(ask(&becket).code, 1);
        fs::set_permissions(place.path("becket"), Permissions::from_mode(0o755)).unwrap();
        upgrade(&becket);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_main_process_notifies_systemd_of_an_upgrade() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let notices = Notices::bind(&place);
    let shape = Shape::new(backend.address).process(TWO_WORKERS);
    install(&place);
    place.write("becket.toml", &shape.text());
    let program = place.path("becket");
    let mut command = Becket::command_of(&program, &place, &["run", "--config", "becket.toml"]);
    notices.of(&mut command);
    let mut becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    notices.next("READY=1");
    becket.ready();
    becket.signal(Signal::USR2);
    notices.next("RELOADING=1");
    assert!(!notices.next("READY=1").contains("refused"));
    notices.next("WATCHDOG=1");
    install_script(&place, "exit 1");
    becket.signal(Signal::USR2);
    notices.next("RELOADING=1");
    assert!(notices.next("READY=1").contains("upgrade failed"));
    becket.signal(Signal::TERM);
    notices.next("STOPPING=1");
    assert_eq!(becket.ended(), Some(0), "{}", becket.logs());
}
