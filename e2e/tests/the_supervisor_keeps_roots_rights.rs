//! Becket consists of two processes. If root starts it with `user` set, the supervisor opens root's files and holds the
//! sockets, and the worker process has no privileges of root.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Client, Key, Notices, Place, REQUEST, Shape, Signal, Tool, Trust,
    becket_program, eventually, finish, fresh_host, give, holds_for, http_get, nobody, now,
    open_to_all, read_to_end, until,
};
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, kill_process, pidfd_getfd, pidfd_open};

/// Number of certificates in the test of descriptor limits.
const MANY: usize = 400;
const MEBIBYTE: usize = 1024 * 1024;

fn mode(place: &Place, name: &str, mode: u32) {
    fs::set_permissions(place.path(name), Permissions::from_mode(mode)).unwrap();
}

fn run(place: &Place, shape: &Shape) -> Becket {
    let command = Becket::command(place, &["run", "--config", "becket.toml"]);
    Becket::spawn(command, place.folder(), shape.web, shape.admin)
}

fn check(place: &Place) -> (i32, String) {
    let command = Becket::command(place, &["check", "--config", "becket.toml"]);
    let checked = finish(command, "");
    (checked.code, place.read("stdout.log") + &checked.stdout)
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).expect("the process is there");
}

fn is_gone(pid: u32) -> bool {
    !fs::exists(format!("/proc/{pid}")).unwrap()
}

/// Starts becket with files that only root can read.
fn start(place: &Place, shape: &Shape) -> Becket {
    place.write("becket.toml", &shape.text());
    for name in ["becket.toml", "site.pem"] {
        mode(place, name, 0o600);
    }
    mode(place, "", 0o755);
    let becket = run(place, shape);
    becket.ready();
    becket
}

fn answer(at: SocketAddr, trust: &Trust) -> io::Result<Vec<u8>> {
    Client::connect(at, trust)?.ask(REQUEST)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn files_that_only_root_can_read_are_read_at_the_start_and_at_a_reload() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let backend = Backend::http("well met");
    let mut shape = Shape::new(backend.address).process(AS_NOBODY);
    shape.web = SocketAddr::from((fresh_host(), 443));
    // A directory of symbolic links as certbot makes it, and a file next to it.
    for folder in ["archive", "live"] {
        fs::create_dir(place.path(folder)).unwrap();
    }
    place.issue("archive/one.pem", &["one.example.org"], Key::Ecdsa);
    std::os::unix::fs::symlink("../archive/one.pem", place.path("live/one.pem")).unwrap();
    mode(&place, "archive/one.pem", 0o600);
    mode(&place, "archive", 0o700);
    mode(&place, "live", 0o700);
    let shape = shape.certificates("[\"live\", \"site.pem\"]");
    place.write("becket.toml", &shape.text());
    mode(&place, "site.pem", 0o600);
    mode(&place, "", 0o755);
    let (code, said) = check(&place);
    assert_eq!(code, 0, "{said}");
    let by_root = said.lines().find(|line| line.starts_with("read-by-root"));
    assert!(
        by_root.is_some_and(|line| line.contains("site.pem")),
        "{said}"
    );
    let becket = start(&place, &shape);
    let trust = Trust::new(&place);
    let shown = || {
        let fresh =
            trust.changed(|config| config.resumption = rustls::client::Resumption::disabled());
        let client = Client::connect(becket.web, &fresh).unwrap();
        client.tls.peer_certificates().unwrap()[0].to_vec()
    };
    let before = shown();
    place.issue("site.pem", &["www.example.org"], Key::Ecdsa);
    mode(&place, "site.pem", 0o600);
    let low = SocketAddr::from((fresh_host(), 993));
    let second = format!(
        "[[listener]]\nname = \"second\"\nbind = [\"{low}\"]\ncertificates = [\"site.pem\"]\n\
         backend = \"app\""
    );
    place.write("becket.toml", &shape.clone().section(&second).text());
    assert!(becket.reload(), "{}", becket.log());
    eventually("the renewed certificate is served", || shown() != before);
    assert!(answer(low, &trust).is_ok());
    // The log files are created in root's directory, and created again after rotation.
    fs::rename(place.path("access.log"), place.path("access.log.1")).unwrap();
    becket.signal(Signal::USR1);
    eventually("a new log file exists", || {
        place.path("access.log").exists()
    });
    // A rejected configuration changes nothing, and the log names the file.
    place.write("site.pem", "none");
    assert!(!becket.reload());
    becket.says("site.pem");
    assert!(answer(low, &trust).is_ok());
    place.write("becket.toml", &shape.text());
    place.issue("site.pem", &["www.example.org"], Key::Ecdsa);
    assert!(becket.reload(), "{}", becket.log());
    until("the second listener is closed", || {
        let refused = TcpStream::connect(low).err()?;
        (refused.kind() == io::ErrorKind::ConnectionRefused).then_some(())
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn more_certificates_than_descriptors_can_be_loaded_and_reloaded() {
    let (Some(_), Some(prlimit)) = (nobody(), Tool::find("prlimit")) else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("well met");
    let folder = place.path("certificates");
    fs::create_dir(&folder).unwrap();
    for number in 0..MANY {
        let name = format!("h{number}.example.org");
        place.issue(&format!("certificates/{number}.pem"), &[&name], Key::Ecdsa);
        mode(&place, &format!("certificates/{number}.pem"), 0o600);
    }
    let shape = Shape::new(backend.address)
        .process(AS_NOBODY)
        .limits("connections = 10")
        .certificates("[\"site.pem\", \"certificates/*.pem\"]");
    place.write("becket.toml", &shape.text());
    for name in ["becket.toml", "site.pem"] {
        mode(&place, name, 0o600);
    }
    mode(&place, "", 0o755);
    let descriptors = MANY / 2;
    let limit = format!("--nofile={descriptors}:{descriptors}");
    let launcher = [prlimit.path().to_string_lossy().into_owned(), limit];
    let becket = Becket::start_by(&place, &shape, &launcher);
    let trust = Trust::new(&place);
    let last = format!("h{}.example.org", MANY - 1);
    let visits = || Client::connect_as(becket.web, &trust, &last).is_ok();
    assert!(visits());
    assert!(becket.reload(), "{}", becket.log());
    becket.signal(Signal::USR2);
    eventually("another process serves", || {
        becket.status()["upgrades"]["done"] == 1
    });
    assert!(visits());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn root_does_not_read_files_that_another_user_could_choose() {
    let Some(user) = nobody() else { return };
    let (place, vault) = (Place::new(), Place::new());
    open_to_all(&vault);
    mode(&vault, "site.pem", 0o600);
    // Three cases: the user's configuration file, the user's link, and a directory that the user's group may write to.
    let shape = Shape::new("127.0.0.1:1").process(AS_NOBODY);
    let named = shape
        .clone()
        .certificates(&format!("[{:?}]", vault.text("site.pem")));
    place.write("becket.toml", &named.text());
    give(&place, user);
    let refused = |place: &Place, config: &str| {
        let arguments = |command| [command, "--config", config].map(str::to_owned);
        for command in ["run", "check"] {
            let arguments = arguments(command);
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let command = Becket::command(place, &words);
            let mut becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
            assert_eq!(becket.ended(), Some(2), "{}", becket.logs());
            let said = becket.logs();
            assert!(
                said.contains("permission denied: becket runs as nobody, and /"),
                "{said}"
            );
            assert!(
                said.contains("site.pem belongs to root, mode 0600"),
                "{said}"
            );
        }
    };
    refused(&place, "becket.toml");
    std::os::unix::fs::symlink(vault.path("site.pem"), place.path("link.pem")).unwrap();
    let linked = shape
        .clone()
        .certificates(&format!("[{:?}]", place.text("link.pem")));
    vault.write("becket.toml", &linked.text());
    refused(&vault, &vault.text("becket.toml"));
    vault.write("becket.toml", &named.text());
    chown(vault.folder(), None, Some(user)).unwrap();
    mode(&vault, "", 0o775);
    refused(&vault, &vault.text("becket.toml"));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_worker_process_that_dies_is_restarted_and_no_client_is_rejected() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address)
        .process(AS_NOBODY)
        .listener("defer-accept = \"0s\"");
    let becket = start(&place, &shape);
    let trust = Trust::new(&place);
    assert!(answer(becket.web, &trust).is_ok());
    let ask = |user: Option<u32>| {
        let mut command = Command::new(becket_program());
        command.args(["reload", "--socket"]).arg(becket.socket());
        user.map(|user| command.uid(user));
        finish(command, "")
    };
    assert_eq!(ask(None).code, 0);
    let refused = ask(nobody());
    assert_eq!(refused.code, 1);
    assert!(
        refused.all().contains("run this as root"),
        "{}",
        refused.all()
    );
    let first = becket.child();
    signal(first, Signal::KILL);
    // Clients connect at any time and are served in the end, because the supervisor holds the socket.
    let mut connects = 0;
    until("another child serves", || {
        let client = TcpStream::connect(becket.web).expect("the parent holds the address");
        drop(client);
        connects += 1;
        matches!(http_get(becket.admin, "/healthz"), Ok((200, _))).then_some(())
    });
    assert_ne!(becket.child(), first);
    assert!(answer(becket.web, &trust).is_ok());
    becket.says("started again");
    assert_eq!(becket.status()["restarts"], 1);
    assert_eq!(becket.metrics().sum("becket_restarts_total", &[]) as u64, 1);
    // The new worker process reloads as well.
    assert!(becket.reload(), "{}", becket.log());
    assert!(answer(becket.web, &trust).is_ok());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_worker_process_that_violates_the_protocol_is_replaced() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = start(&place, &Shape::new(backend.address).process(AS_NOBODY));
    let first = becket.child();
    let pid = Pid::from_raw(i32::try_from(first).unwrap()).unwrap();
    let child = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    // An answer to a reload that was never requested.
    let link = pidfd_getfd(child, 0, PidfdGetfdFlags::empty()).unwrap();
    let mut link = fs::File::from(link);
    link.write_all(b"\x0a\0\0\0\0\0\0\0\"Reloaded\"").unwrap();
    drop(link);
    eventually("the worker process is killed", || is_gone(first));
    until("a new worker process serves", || {
        matches!(http_get(becket.admin, "/healthz"), Ok((200, _))).then_some(())
    });
    assert!(becket.is_alive());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_worker_process_that_floods_the_supervisor_costs_it_little() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let becket = start(&place, &Shape::new("127.0.0.1:1").process(AS_NOBODY));
    let child = becket.child();
    let pid = Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let link = pidfd_getfd(pidfd, 0, PidfdGetfdFlags::empty()).unwrap();
    // A heartbeat, padded to the size of a page.
    let text = format!("{:4088}", "\"Alive\"");
    let sign = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let (began, mut sent) = (now(), 0);
    holds_for(Duration::from_secs(1), "the socket accepts data", || {
        // The next round sends the rest.
        while rustix::net::send(&link, &sign, SendFlags::DONTWAIT).is_ok() {
            sent += sign.len();
        }
        true
    });
    // The rate that security.md names, and the capacity of the socket.
    let periods = began.elapsed().as_millis() as usize / 25 + 1;
    let most = MEBIBYTE + 4096 * periods + MEBIBYTE;
    assert!(sent <= most, "{sent} bytes were read, not {most}");
    assert_eq!(becket.child(), child, "heartbeats are no violation");
    assert!(becket.reload(), "{}", becket.log());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_worker_process_that_keeps_opening_files_does_not_delay_signals() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let mut becket = start(&place, &Shape::new("127.0.0.1:1").process(AS_NOBODY));
    let child = becket.child();
    let pid = Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let link = pidfd_getfd(pidfd, 0, PidfdGetfdFlags::empty()).unwrap();
    let files = ["0"; 16].join(",");
    let text = format!("{{\"Open\":{{\"listing\":1,\"files\":[{files}]}}}}");
    let ask = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    while rustix::net::send(&link, &ask, SendFlags::DONTWAIT).is_ok() {}
    // The supervisor handles the signal before the rest of the requests.
    becket.signal(Signal::TERM);
    assert!(becket.ended().is_some(), "{}", becket.logs());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_worker_process_that_hangs_is_logged_and_killed_at_shutdown() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let shape = Shape::new("127.0.0.1:1").process(AS_NOBODY);
    let mut becket = start(&place, &shape.timeouts("drain = \"100ms\""));
    let child = becket.child();
    signal(child, Signal::STOP);
    becket.signal(Signal::HUP);
    eventually("the log mentions the reload", || {
        becket.logs().contains("reload-timeout")
    });
    assert_eq!(becket.child(), child, "a hanging process may only be busy");
    becket.signal(Signal::TERM);
    assert_eq!(becket.ended(), Some(1), "{}", becket.logs());
    assert!(is_gone(child));
    let said = becket.logs();
    assert!(said.contains("did not exit in time; killing it"), "{said}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_worker_process_without_its_supervisor_drains_and_exits() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address).process(AS_NOBODY);
    let mut becket = start(&place, &shape.timeouts("drain-idle = \"10m\""));
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    let child = becket.child();
    becket.signal(Signal::KILL);
    assert_eq!(becket.ended(), None);
    until("new clients are rejected", || {
        TcpStream::connect(becket.web).err()
    });
    // Established connections may finish.
    client.write_all(b"x").unwrap();
    io::Read::read_exact(&mut client, &mut [0]).unwrap();
    client.close_notify().unwrap();
    read_to_end(&mut client).1.unwrap();
    drop(client);
    eventually("the worker process has ended", || is_gone(child));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn signals_may_reach_both_processes_and_the_worker_sets_the_exit_code() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address).process(AS_NOBODY);
    let patient = shape.clone().timeouts("drain-idle = \"10m\"");
    let mut becket = start(&place, &patient);
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    let child = becket.child();
    // A service manager sends the signal to all processes of the service.
    for pid in [child, becket.pid()] {
        signal(pid, Signal::TERM);
    }
    until("new clients are rejected", || {
        TcpStream::connect(becket.web).err()
    });
    client.write_all(b"x").unwrap();
    io::Read::read_exact(&mut client, &mut [0]).unwrap();
    drop(client);
    assert_eq!(becket.ended(), Some(0), "{}", becket.logs());

    let mut becket = start(&place, &shape.timeouts("drain = \"200ms\""));
    let client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    becket.signal(Signal::TERM);
    assert_eq!(becket.ended(), Some(3), "{}", becket.logs());
    drop(client);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_supervisor_notifies_systemd() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let backend = Backend::http("well met");
    let notices = Notices::bind(&place);
    let shape = Shape::new(backend.address).process(AS_NOBODY);
    place.write("becket.toml", &shape.text());
    let mut command: Command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    notices.of(&mut command);
    let mut becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    notices.next("READY=1");
    notices.next("WATCHDOG=1");
    becket.signal(Signal::HUP);
    assert!(notices.next("RELOADING=1").contains("MONOTONIC_USEC="));
    notices.next("READY=1");
    place.write("becket.toml", "[");
    becket.signal(Signal::HUP);
    notices.next("RELOADING=1");
    assert!(notices.next("READY=1").contains("rejected"));
    becket.signal(Signal::TERM);
    notices.next("STOPPING=1");
    assert_eq!(becket.ended(), Some(0));
}
