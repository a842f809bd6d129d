//! With `process.chroot` the worker process sees one folder. The supervisor outside passes it the files that a reload needs.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Client, Key, Place, REQUEST, Shape, Signal, Trust, eventually,
    fresh_address, give, nobody, open_to_all,
};

use crate::upgrades_lose_nothing::{children, install, upgrade};

/// Writes a configuration whose logs are in the chroot.
fn write(place: &Place, shape: &Shape) {
    let text = shape.text();
    let text = text.replace("\"becket.log\"", "\"jail/becket.log\"");
    let text = text.replace("\"access.log\"", "\"jail/access.log\"");
    place.write("becket.toml", &text);
}

/// Makes configuration and certificate readable for root only.
fn close(place: &Place) {
    for name in ["becket.toml", "site.pem"] {
        fs::set_permissions(place.path(name), Permissions::from_mode(0o600)).unwrap();
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_process_in_a_chroot_serves_reloads_and_reopens_its_logs() {
    let Some(user) = nobody() else { return };
    let place = Place::new();
    open_to_all(&place);
    fs::create_dir(place.path("jail")).unwrap();
    let backend = Backend::http("well met");
    let process = format!("{AS_NOBODY}\nchroot = \"jail\"");
    let shape = Shape::new(backend.address).process(&process);
    write(&place, &shape);
    close(&place);
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    let root = fs::read_link(format!("/proc/{}/root", becket.child())).unwrap();
    assert_eq!(root, fs::canonicalize(place.path("jail")).unwrap());
    let trust = Trust::new(&place);
    let serial = || {
        let mut client = Client::connect(becket.web, &trust.without_tickets()).unwrap();
        assert!(client.ask(REQUEST).unwrap().ends_with(b"well met"));
        client.tls.peer_certificates().unwrap()[0].to_vec()
    };
    let before = serial();
    place.issue("site.pem", &["www.example.org"], Key::Ecdsa);
    close(&place);
    assert!(becket.reload(), "{}", place.read("jail/becket.log"));
    eventually("the renewed certificate is served", || serial() != before);
    let (log, old) = (place.path("jail/access.log"), place.path("jail/old"));
    fs::rename(&log, old).unwrap();
    becket.signal(Signal::USR1);
    eventually("a new log file exists", || log.exists());
    // Root does not open files that other users may change, and the child cannot open them.
    give(&place, user);
    assert!(!becket.reload());
    let said = place.read("jail/becket.log");
    assert!(said.contains("out of reach in process.chroot"), "{said}");
    assert_eq!(serial().len(), serial().len(), "it continues to serve");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn logs_outside_the_chroot_cannot_be_reopened_and_stay_open() {
    if nobody().is_none() {
        return;
    }
    let place = Place::new();
    open_to_all(&place);
    fs::create_dir(place.path("jail")).unwrap();
    let backend = Backend::http("well met");
    let process = format!("{AS_NOBODY}\nchroot = \"jail\"");
    let shape = Shape::new(backend.address).process(&process);
    place.write("becket.toml", &shape.text());
    close(&place);
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    let trust = Trust::new(&place);
    let mut client = Client::connect(becket.web, &trust.without_tickets()).unwrap();
    assert!(client.ask(REQUEST).unwrap().ends_with(b"well met"));
    drop(client);
    eventually("the connection is logged", || {
        !place.read("access.log").is_empty()
    });
    // The process in the chroot cannot open the path again.
    fs::rename(place.path("becket.log"), place.path("old.log")).unwrap();
    becket.signal(Signal::USR1);
    eventually("becket reports that it keeps the old log", || {
        place
            .read("old.log")
            .contains("cannot reopen the log file; keeping the old one")
    });
    assert!(!place.path("becket.log").exists());
    assert!(!place.path("jail/becket.log").exists());
    assert!(becket.reload());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn files_are_served_from_a_chroot_without_proc() {
    if nobody().is_none() {
        return;
    }
    let place = Place::new();
    open_to_all(&place);
    fs::create_dir_all(place.path("jail/www")).unwrap();
    place.write("jail/www/a.txt", "alpha");
    let [plain, admin] = [(); 2].map(|()| fresh_address());
    let text = format!(
        "[[listener]]\nname = 'plain'\nbind = ['{plain}']\ntls = false\nbackend = 'site'\n\
         [[backend]]\nname = 'site'\nfiles = '/www'\n[process]\n{AS_NOBODY}\nchroot = 'jail'\n\
         [admin]\naddress = '{admin}'\n[log]\nfile = 'stderr'\n"
    );
    place.write("becket.toml", &text);
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), plain, admin);
    becket.ready();
    let mut client = TcpStream::connect(plain).unwrap();
    client.write_all(b"GET /a.txt HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("alpha"), "{answer}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_new_process_has_the_same_chroot_after_an_upgrade() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    open_to_all(&place);
    fs::create_dir(place.path("jail")).unwrap();
    let backend = Backend::http("well met");
    let process = format!("{AS_NOBODY}\nchroot = \"jail\"");
    let shape = Shape::new(backend.address).process(&process);
    install(&place);
    write(&place, &shape);
    close(&place);
    let program = place.path("becket");
    let command = Becket::command_of(&program, &place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    let trust = Trust::new(&place);
    let jail = fs::canonicalize(place.path("jail")).unwrap();
    for _ in 0..2 {
        assert!(trust.visit(becket.web).is_ok());
        let old = becket.child();
        upgrade(&becket);
        eventually("the old process has exited", || {
            children(&becket).len() == 1 && becket.child() != old
        });
        let root = fs::read_link(format!("/proc/{}/root", becket.child())).unwrap();
        assert_eq!(root, jail);
    }
    assert!(becket.reload(), "{}", place.read("jail/becket.log"));
    assert!(trust.visit(becket.web).is_ok());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn only_root_can_start_with_a_chroot() {
    let Some(user) = nobody() else { return };
    let place = Place::new();
    fs::create_dir(place.path("jail")).unwrap();
    let process = format!("{AS_NOBODY}\nchroot = \"jail\"");
    let shape = Shape::new("127.0.0.1:1").process(&process);
    let refused = |act: &dyn Fn(&mut std::process::Command)| {
        let mut command = Becket::command(&place, &["run", "--config", "becket.toml"]);
        act(&mut command);
        let mut becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
        assert_eq!(becket.ended(), Some(2), "{}", becket.logs());
        place.read("stderr.log") + &place.read("jail/becket.log")
    };
    write(&place, &shape);
    give(&place, user);
    std::os::unix::fs::chown(place.path("jail"), Some(user), None).unwrap();
    let said = refused(&|command| {
        command.uid(user);
    });
    assert!(said.contains("only root can enter a chroot"), "{said}");
}
