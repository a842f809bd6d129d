//! An operator queries and changes a running becket over a Unix socket: servers, connections, log, keys, sessions.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::process::Command;

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Client, Place, REQUEST, Shape, Signal, Trust, becket_program, ctl,
    ctl_done, eventually, finish, nobody, read_to_end, until,
};
use rustix::process::{Pid, kill_process};
use rustls::version::TLS12;
use serde_json::Value;

#[track_caller]
fn json(place: &Place, words: &[&str]) -> Value {
    let text = ctl_done(place, &[words, &["--json"]].concat());
    serde_json::from_str(&text).unwrap()
}

/// Starts two servers that answer with their names.
fn two() -> [Backend; 2] {
    ["one", "two"].map(Backend::http)
}

/// Returns how many of ten requests reach the second server. Each worker uses the servers in rotation.
fn at_the_second(becket: &Becket, trust: &Trust) -> usize {
    let visit = |_: &usize| trust.visit(becket.web).unwrap().ends_with(b"two");
    (0..10).filter(visit).count()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_drained_server_receives_no_clients_until_a_reload() {
    let (place, servers) = (Place::new(), two());
    let shape = Shape::new(servers[0].address).server(servers[1].address);
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let second = format!("app/{}", servers[1].address);
    assert!(at_the_second(&becket, &trust) > 0);
    let said = ctl_done(&place, &["servers", "drain", &second]);
    assert!(said.contains("drain, weight 1, no limit"), "{said}");
    assert_eq!(at_the_second(&becket, &trust), 0);
    let server = &becket.status()["backends"][0]["servers"][1];
    assert_eq!(server["in_file"], serde_json::json!({"mode": "ready"}));
    let table = ctl_done(&place, &["servers"]);
    assert!(table.contains("mode (ready)"), "{table}");
    assert!(becket.reload());
    assert!(at_the_second(&becket, &trust) > 0);
    ctl_done(&place, &["servers", "maintenance", &second]);
    assert_eq!(at_the_second(&becket, &trust), 0);
    let said = ctl_done(&place, &["servers", "reset", &second]);
    assert!(said.ends_with("as in the file\n"), "{said}");
    assert!(at_the_second(&becket, &trust) > 0);
    // The log shows each change with the user.
    eventually("the change is logged", || {
        let log = becket.log();
        log.contains("change requested over the admin socket") && log.contains("\"by\":\"uid ")
    });
}

#[test]
fn weight_address_and_limit_of_a_server_change_immediately() {
    let (place, servers) = (Place::new(), two());
    let becket = Becket::start(&place, &Shape::new(servers[0].address));
    let trust = Trust::new(&place);
    let first = format!("app/{}", servers[0].address);
    let other = servers[1].address.to_string();
    ctl_done(&place, &["servers", "address", &first, &other]);
    assert_eq!(at_the_second(&becket, &trust), 10);
    ctl_done(&place, &["servers", "maxconn", &first, "7"]);
    ctl_done(&place, &["servers", "weight", &first, "20"]);
    let server = &json(&place, &["servers"])[0]["servers"][0];
    assert_eq!(
        (&server["maxconn"], &server["weight"]),
        (&7.into(), &20.into())
    );
    assert_eq!(server["addresses"][0], *other);
    let changed: Vec<&String> = server["in_file"].as_object().unwrap().keys().collect();
    assert_eq!(changed, ["addresses", "maxconn", "weight"]);
    // An invalid change is rejected with the accepted values and has no effect.
    for (words, accepted) in [
        (["weight", &first, "257"], "0 to 256"),
        (["weight", "app/a:1", "1"], &*servers[0].address.to_string()),
        (["weight", "else/a:1", "1"], "app"),
        (["address", &first, "a.test:80"], "IP:PORT"),
    ] {
        let found = ctl(&place, &[&["servers"][..], &words].concat());
        assert_eq!(found.code, 3, "{}", found.all());
        assert!(found.stderr.contains(accepted), "{}", found.stderr);
    }
    assert_eq!(json(&place, &["servers"])[0]["servers"][0]["weight"], 20);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn servers_can_be_added_and_removed_until_a_reload() {
    let (place, servers) = (Place::new(), two());
    let becket = Becket::start(&place, &Shape::new(servers[0].address));
    let trust = Trust::new(&place);
    let [first, second] = [0, 1].map(|at| format!("app/{}", servers[at].address));
    ctl_done(&place, &["servers", "maxconn", &first, "7"]);
    let mut client = Client::connect(becket.web, &trust).unwrap();
    eventually("the client is at its server", || {
        becket.status()["backends"][0]["servers"][0]["in_use"] == 1
    });
    let said = ctl_done(&place, &["servers", "add", &second, "--weight", "9"]);
    assert!(
        said.contains("weight 9") && said.contains("added"),
        "{said}"
    );
    eventually("the server has clients", || {
        at_the_second(&becket, &trust) > 0
    });
    eventually("the visits have ended", || {
        becket.status()["backends"][0]["servers"][0]["in_use"] == 1
    });
    let said = ctl_done(&place, &["servers", "remove", &first]);
    assert!(
        said.ends_with("removed, 1 connections continue\n"),
        "{said}"
    );
    assert_eq!(
        becket.status()["temporary"],
        serde_json::json!([
            format!("server {second}: added"),
            format!("server {first}: removed")
        ])
    );
    eventually("the first server has no new clients", || {
        at_the_second(&becket, &trust) == 10
    });
    assert!(client.ask(REQUEST).unwrap().ends_with(b"one"));
    let table = ctl_done(&place, &["servers"]);
    assert!(
        table.contains(&format!("removed until the next reload: {first}")),
        "{table}"
    );
    let refused = ctl(&place, &["servers", "remove", &second]);
    assert_eq!(refused.code, 3, "{}", refused.all());
    assert!(
        refused.stderr.contains("the last server"),
        "{}",
        refused.stderr
    );
    // The removal keeps temporary changes of other servers; a reload resets them.
    ctl_done(&place, &["servers", "add", &first]);
    ctl_done(&place, &["servers", "weight", &second, "3"]);
    ctl_done(&place, &["servers", "remove", &first]);
    assert_eq!(json(&place, &["servers"])[0]["servers"][0]["weight"], 3);
    assert!(becket.reload());
    eventually("servers are those of the file", || {
        at_the_second(&becket, &trust) == 0
    });
    let server = &json(&place, &["servers"])[0]["servers"][0];
    assert!(
        server["in_file"].is_null() && server["added"] == false,
        "{server}"
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn open_connections_are_listed_and_closed_by_their_properties() {
    let place = Place::new();
    let backend = Backend::echo();
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let trust = Trust::new(&place);
    let names = ["www.example.org", "localhost", "internal.example.org"];
    let mut clients = names.map(|name| {
        let mut client = Client::connect_as(becket.web, &trust, name).unwrap();
        client.write_all(b"hello").unwrap();
        client
    });
    let rows = until("all connections are listed", || {
        let list = json(&place, &["connections", "--phase", "relaying"]);
        let rows = list["connections"].as_array().unwrap().clone();
        (rows.len() == 3).then_some(rows)
    });
    for row in &rows {
        assert_eq!(row["server"], *backend.address.to_string());
        assert_eq!(
            (&row["listener"], &row["backend"]),
            (&"web".into(), &"app".into())
        );
    }
    let few = json(&place, &["connections", "--limit", "2"]);
    assert_eq!(few["connections"].as_array().unwrap().len(), 2);
    assert_eq!(few["complete"], false);
    let top = json(&place, &["connections", "top"]);
    assert_eq!(top["sources"][0]["connections"], 3);
    assert_eq!(top["names"].as_array().unwrap().len(), 3);
    let server = format!("app/{}", backend.address);
    let of_server = json(&place, &["connections", "--server", &server]);
    assert_eq!(of_server["connections"].as_array().unwrap().len(), 3);
    for task in [&["connections"][..], &["connections", "kill"]] {
        let refused = ctl(&place, &[task, &["--server", "app/a:1"]].concat());
        assert_eq!(refused.code, 3, "{}", refused.all());
        assert!(refused.stderr.contains(&server), "{}", refused.stderr);
    }
    let ended = ctl_done(&place, &["connections", "kill", "--sni", names[1]]);
    assert_eq!(ended, "1 connection closed\n");
    assert_eq!(becket.next_reason(), "killed");
    assert!(
        read_to_end(&mut clients[1]).1.is_err(),
        "the cut looks like a regular end"
    );
    assert_eq!(
        ctl(&place, &["connections", "kill"]).code,
        3,
        "no connection is selected"
    );
    assert_eq!(json(&place, &["connections", "kill", "--all"])["killed"], 2);
    becket.idle();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn sessions_can_be_removed_keys_rotated_and_the_log_level_set() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let trust = Trust::only(&place, &TLS12).without_tickets();
    let resumed = || {
        trust.visit(becket.web).unwrap();
        becket.next_access()["handshake"].clone()
    };
    assert_eq!((resumed(), resumed()), ("full".into(), "id".into()));
    assert!(ctl_done(&place, &["sessions"]).starts_with("1 of "));
    assert_eq!(json(&place, &["sessions", "forget"])["sessions"], 1);
    assert_eq!((resumed(), resumed()), ("full".into(), "id".into()));
    // A second rotation within a second is rejected.
    for epoch in [1, 2] {
        let rotated = until("the keys are rotated", || {
            let found = ctl(&place, &["tickets", "rotate", "--json"]);
            (found.code == 0).then_some(found.stdout)
        });
        let rotated: Value = serde_json::from_str(&rotated).unwrap();
        assert_eq!(rotated["epoch"], epoch);
    }
    assert_eq!(becket.status()["tickets"]["epoch"], 2);
    let level = |words: &[&str]| ctl_done(&place, &[&["log"], words].concat());
    assert_eq!(level(&[]), "info, as in the file\n");
    assert_eq!(
        level(&["debug"]),
        "debug until the next reload; info in the file\n"
    );
    assert_eq!(
        becket.status()["temporary"],
        serde_json::json!(["log level: debug"])
    );
    assert!(becket.reload());
    assert_eq!(level(&[]), "info, as in the file\n");
    assert_eq!(ctl(&place, &["log", "loud"]).code, 3);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_commands_reload_and_drain_wait_for_the_result() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let mut becket = Becket::start(&place, &shape);
    assert_eq!(ctl_done(&place, &["reload"]), "reloaded\n");
    let (reload, text) = (&["reload", "--socket", "admin.sock"], shape.text());
    place.write(
        "becket.toml",
        &text.replace("[[backend]]", "[[backend]]\nbalance = \"best\""),
    );
    let refused = ctl(&place, reload);
    assert_eq!(refused.code, 3, "{}", refused.all());
    for part in ["reload refused, nothing changed", "balance"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    place.write("becket.toml", &text);
    assert_eq!(
        json(&place, reload),
        serde_json::json!({"reloaded": true, "ended": []})
    );
    assert_eq!(becket.status()["reloads"]["done"], 2);
    // Without clients the drain ends immediately, and the command still receives its answer.
    assert_eq!(
        json(&place, &["drain"]),
        serde_json::json!({"draining": true, "ended": []})
    );
    // No signal requested the exit, so the exit code makes a service manager restart becket.
    assert_eq!(becket.ended(), Some(4));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn changes_and_client_lists_are_rejected_over_tcp() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let becket = Becket::start(&place, &Shape::new(backend.address));
    let admin = becket.admin.to_string();
    let over_tcp = |words: &[&str]| ctl(&place, &[&["--admin", &admin], words].concat());
    for words in [&["log", "debug"][..], &["connections"]] {
        let refused = over_tcp(words);
        assert_eq!(refused.code, 3, "{}", refused.all());
        assert!(
            refused.stderr.contains("admin.socket"),
            "{}",
            refused.stderr
        );
    }
    // Read-only pages are available over TCP.
    assert_eq!(over_tcp(&["servers"]).code, 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_admin_socket_is_private_exclusive_and_removed_at_exit() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address).timeouts("drain-idle = \"10m\"");
    let mut becket = Becket::start(&place, &shape);
    let socket = place.path("admin.sock");
    let mode = || fs::metadata(&socket).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(), 0o600);
    // Another becket cannot use the socket.
    let other = Shape::new(backend.address);
    place.write("other.toml", &other.text());
    let run = || {
        let mut command = Command::new(becket_program());
        command.args(["run", "--config", "other.toml"]);
        command.current_dir(place.folder());
        command
    };
    let refused = finish(run(), "");
    assert_eq!(refused.code, 2, "{}", refused.all());
    assert!(
        refused.stderr.contains("admin.socket"),
        "{}",
        refused.stderr
    );
    // While the first one drains, another can replace the socket, and the exit of the first does not remove it.
    let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
    assert_eq!(ctl_done(&place, &["drain"]), "draining\n");
    eventually("the socket is free for another process", || {
        mode() & 0o1000 != 0
    });
    let inode = fs::metadata(&socket).unwrap().ino();
    let next = Becket::spawn(run(), place.folder(), other.web, other.admin);
    next.ready();
    assert_ne!(fs::metadata(&socket).unwrap().ino(), inode);
    client.ask(REQUEST).unwrap();
    drop(client);
    // No signal requested the exit, so the exit code makes a service manager restart becket.
    assert_eq!(becket.ended(), Some(4));
    assert_eq!(json(&place, &["servers"]), next.status()["backends"]);
    next.signal(Signal::INT);
    eventually("the socket is removed", || !socket.exists());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_supervisor_creates_the_socket_and_keeps_it_when_a_child_dies() {
    let Some(_) = nobody() else { return };
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let shape = shape.process(AS_NOBODY);
    place.write("becket.toml", &shape.text());
    let closed = |name: &str, mode| {
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    closed("becket.toml", 0o600);
    closed("", 0o755);
    let command = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let becket = Becket::spawn(command, place.folder(), shape.web, shape.admin);
    becket.ready();
    let socket = fs::symlink_metadata(place.path("admin.sock")).unwrap();
    assert!(socket.file_type().is_socket());
    assert_eq!((socket.uid(), socket.mode() & 0o777), (0, 0o600));
    assert_eq!(json(&place, &["log", "debug"])["level"], "debug");
    let child = becket.child();
    let pid = Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    until("another child serves", || {
        let found = ctl(&place, &["log"]);
        (found.stdout == "info, as in the file\n").then_some(())
    });
    assert_eq!(ctl_done(&place, &["reload"]), "reloaded\n");
    // The upgrade may fail or succeed, but the command receives a result.
    let upgrade = ctl(&place, &["upgrade"]);
    assert!([0, 3].contains(&upgrade.code), "{}", upgrade.all());
    assert_eq!(ctl_done(&place, &["drain"]), "draining\n");
    eventually("the socket is removed", || {
        !place.path("admin.sock").exists()
    });
}
