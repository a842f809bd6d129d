//! Changes of `becket ctl --keep` are a file that is read with the configuration; all other changes end with a reload or an upgrade.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use becket_e2e::{
    Backend, Becket, Client, Key, Place, Shape, Signal, Trust, becket, becket_done, becket_program,
    ctl_done, eventually, finish, nobody, open_to_all,
};
use serde_json::{Value, json};

use crate::upgrades_lose_nothing::{TWO_WORKERS, children, launch, signal, start};

const FILE: &str = "becket.edits.toml";
const SET: [&str; 7] = [
    "certificates",
    "set",
    "web",
    "--chain",
    "new.pem",
    "--key",
    "new.pem",
];

#[track_caller]
fn keep(place: &Place, words: &[&str]) {
    let said = ctl_done(place, &[words, &["--keep"]].concat());
    assert!(
        said.contains(&format!("kept in {}", place.text(FILE))),
        "{said}"
    );
}

/// Each server and the log, as far as edits change them.
fn shown(becket: &Becket) -> Value {
    let mut status = becket.status();
    let servers = status["backends"][0]["servers"].as_array().unwrap().iter();
    let keys = [
        "name",
        "mode",
        "weight",
        "maxconn",
        "added",
        "kept",
        "addresses",
    ];
    let servers: Vec<Value> = servers.map(|it| json!(keys.map(|key| &it[key]))).collect();
    json!([
        servers,
        status["backends"][0]["removed"].take(),
        status["log"].take()
    ])
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_kept_edit_outlives_reload_upgrade_restart_and_a_killed_process_and_no_other_does() {
    let place = Place::new();
    let servers = ["one", "two", "six"].map(Backend::http);
    let shape = Shape::new(servers[0].address)
        .server(servers[1].address)
        .admin_keys("socket = \"admin.sock\"")
        .process(TWO_WORKERS);
    let mut process = start(&place, &shape);
    let trust = Trust::new(&place);
    let names = servers.each_ref().map(|it| format!("app/{}", it.address));
    let [first, second, third] = names.each_ref().map(String::as_str);
    let new = "new.example.org";
    place.issue("new.pem", &[new], Key::Ecdsa);
    keep(&place, &["servers", "drain", first]);
    keep(&place, &["servers", "add", third, "--weight", "9"]);
    keep(&place, &["servers", "remove", second]);
    keep(&place, &["log", "becket=debug"]);
    keep(&place, &SET);
    let text = place.read(FILE);
    assert!(!text.contains("BEGIN"), "{text}");
    let kept = shown(&process);
    let maxconn = format!("server {third}: maxconn 7");
    let is_kept = |process: &Becket| {
        assert_eq!(shown(process), kept, "{}", process.log());
        assert_eq!(process.status()["edits"]["temporary"], json!([]));
        assert!(trust.visit(process.web).unwrap().ends_with(b"six"));
        Client::connect_as(process.web, &trust, new).unwrap();
    };
    is_kept(&process);
    let asks: [&[&str]; 4] = [
        &["ctl", "reload"],
        &["reload"],
        &["ctl", "upgrade"],
        &["upgrade"],
    ];
    for ask in asks {
        ctl_done(&place, &["servers", "maxconn", third, "7"]);
        assert_eq!(process.status()["edits"]["temporary"], json!([maxconn]));
        let said = becket_done(&place, ask);
        assert!(said.ends_with(&format!("ed\nended: {maxconn}\n")), "{said}");
        is_kept(&process);
    }
    process.says("temporary change ended");
    eventually("one process is left", || children(&process).len() == 1);
    signal(process.child(), Signal::KILL);
    eventually("another process serves", || {
        let status = becket(&place, &["status", "--json"]).stdout;
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        status["restarts"] == 1
    });
    is_kept(&process);
    process.signal(Signal::TERM);
    assert_eq!(process.ended(), Some(0));
    process = launch(&place, &shape, None);
    is_kept(&process);
    let lines = process.status()["edits"]["kept"].clone();
    assert_eq!(lines.as_array().unwrap().len(), 5, "{lines}");
    for page in ["check", "status"] {
        let page = becket(&place, &[page]).stdout;
        assert!(
            page.contains(&format!("server {first}: mode drain")),
            "{page}"
        );
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_kept_edit_is_undone_by_the_same_command_or_with_the_file() {
    let (place, servers) = (Place::new(), ["one", "two"].map(Backend::http));
    let shape = Shape::new(servers[0].address).admin_keys("socket = \"admin.sock\"");
    let process = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    let names = servers.each_ref().map(|it| format!("app/{}", it.address));
    let [first, second] = names.each_ref().map(String::as_str);
    let new = "new.example.org";
    place.issue("new.pem", &[new], Key::Ecdsa);
    let both: [[&[&str]; 2]; 4] = [
        [
            &["servers", "weight", first, "7"],
            &["servers", "reset", first],
        ],
        [&["servers", "add", second], &["servers", "remove", second]],
        [&["log", "debug"], &["log", "--reset"]],
        [&SET, &["certificates", "remove", "web", new]],
    ];
    for commands in [both.map(|it| it[0]), both.map(|it| it[1])] {
        commands.iter().for_each(|words| keep(&place, words));
        // What came with the configuration ends with that.
        ctl_done(&place, &["reload"]);
    }
    assert_eq!(process.status()["edits"]["kept"], json!([]));
    assert_eq!(process.status()["log"], json!({"level": "info"}));
    assert!(Client::connect_as(process.web, &trust, new).is_err());
    keep(&place, &["servers", "weight", first, "7"]);
    fs::remove_file(place.path(FILE)).unwrap();
    ctl_done(&place, &["reload"]);
    let server = &process.status()["backends"][0]["servers"][0];
    assert_eq!(
        (&server["weight"], &server["kept"]),
        (&json!(1), &json!(false))
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn commands_at_once_lose_no_edit() {
    let (place, server) = (Place::new(), Backend::http("well met"));
    let shape = Shape::new(server.address).admin_keys("socket = \"admin.sock\"");
    let _process = Becket::start(&place, &shape);
    thread::scope(|scope| {
        for number in 1..=8 {
            let place = &place;
            scope.spawn(move || {
                keep(
                    place,
                    &["servers", "add", &format!("app/127.0.0.1:{number}")],
                )
            });
        }
    });
    let text = place.read(FILE);
    assert_eq!(text.matches("action = \"add\"").count(), 8, "{text}");
    let mut files = fs::read_dir(place.folder()).unwrap();
    assert!(!files.any(|it| it.unwrap().path().extension().is_some_and(|it| it == "new")));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn keep_is_refused_where_it_could_not_be_kept_and_nothing_is_asked() {
    let (place, server) = (Place::new(), Backend::http("well met"));
    place.write("token", "correct-horse-battery-staple\n");
    let shape =
        Shape::new(server.address).admin_keys("socket = \"admin.sock\"\ntoken-file = \"token\"");
    let process = Becket::start(&place, &shape);
    let admin = process.admin.to_string();
    fs::copy(place.path("becket.toml"), place.path("other.toml")).unwrap();
    let refused = |which: &[&str], words: &[&str], why: &str| {
        let mut command = Command::new(becket_program());
        command.arg("ctl").args(which).args(words).arg("--keep");
        let found = finish(command_in(command, &place), "");
        assert!(
            found.code != 0 && found.stderr.contains(why),
            "{}",
            found.all()
        );
    };
    let log = ["log", "debug"];
    refused(
        &["--admin", &admin, "--token-file", "token"],
        &log,
        "it needs becket's admin.socket",
    );
    refused(&["--socket", "admin.sock"], &log, "--config FILE");
    refused(
        &["--config", "other.toml"],
        &log,
        "is not the file of kept edits",
    );
    let pipe = [
        "certificates",
        "set",
        "web",
        "--chain",
        "site.pem",
        "--key",
        "/dev/stdin",
    ];
    refused(&["--config", "becket.toml"], &pipe, "regular file");
    place.write(
        FILE,
        "[[server]]\nbackend = \"app\"\naddress = \"a:1\"\nweight = 257\n",
    );
    refused(
        &["--config", "becket.toml"],
        &log,
        "line 4: server[0].weight = 257",
    );
    assert_eq!(process.status()["edits"]["temporary"], json!([]));
    assert_eq!(process.status()["log"], json!({"level": "info"}));
    assert!(
        !process.reload(),
        "a fault in the file is one of the configuration"
    );
    place.write(FILE, "[[server]]\nbackend = \"gone\"\naddress = \"a:1\"\n");
    let checked = becket_done(&place, &["check"]);
    let warning = "line 1: server[0]: not used: there is no such backend";
    assert!(checked.contains(warning), "{checked}");
    assert!(process.reload());
}

fn command_in(mut command: Command, place: &Place) -> Command {
    command.current_dir(place.folder());
    command
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_certificate_is_kept_only_where_becket_can_read_its_files_again() {
    let Some(user) = nobody() else { return };
    let (place, server) = (Place::new(), Backend::http("well met"));
    let shape = Shape::new(server.address).admin_keys("socket = \"run/admin.sock\"");
    place.issue("new.pem", &["new.example.org"], Key::Ecdsa);
    // Root's folder, in which becket writes its logs and its socket.
    open_to_all(&place);
    fs::create_dir(place.path("run")).unwrap();
    for (name, mode) in [
        ("becket.log", 0o644),
        ("access.log", 0o644),
        ("site.pem", 0o600),
        ("run", 0o755),
    ] {
        let path = place.path(name);
        drop(fs::OpenOptions::new().create(true).append(true).open(&path));
        chown(&path, Some(user), None).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(place.path("new.pem"), Permissions::from_mode(0o600)).unwrap();
    let _process = Becket::start_as(&place, &shape, |command| {
        command.uid(user);
    });
    let set = |more: &[&str]| {
        let mut command = Command::new(becket_program());
        command
            .arg("ctl")
            .args(SET)
            .args(more)
            .args(["--config", "becket.toml"]);
        finish(command_in(command, &place), "")
    };
    assert_eq!(set(&[]).code, 0, "root reads the key");
    let refused = set(&["--keep"]);
    assert!(
        refused.stderr.contains("permission denied"),
        "{}",
        refused.all()
    );
    assert!(!place.path(FILE).exists());
    chown(place.path("new.pem"), Some(user), None).unwrap();
    assert_eq!(set(&["--keep"]).code, 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_file_that_another_user_can_change_is_refused() {
    let Some(user) = nobody() else { return };
    let (place, server) = (Place::new(), Backend::http("well met"));
    let shape = Shape::new(server.address).admin_keys("socket = \"admin.sock\"");
    let process = Becket::start(&place, &shape);
    let edit = "[[server]]\nbackend = \"app\"\naddress = \"127.0.0.1:9\"\naction = \"add\"\n";
    let file = place.write(FILE, edit);
    let given = |owner, mode| {
        chown(&file, Some(owner), None).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    };
    for (owner, mode) in [(user, 0o644), (0, 0o666), (0, 0o664)] {
        given(owner, mode);
        let checked = becket(&place, &["check"]);
        assert_eq!(checked.code, 2, "{}", checked.all());
        assert!(checked.stdout.contains("admin.edits"), "{}", checked.all());
        assert!(!process.reload());
        let kept = becket(&place, &["ctl", "log", "debug", "--keep"]);
        assert_eq!((kept.code, &*place.read(FILE)), (3, edit), "{}", kept.all());
    }
    given(0, 0o644);
    assert!(process.reload());
    assert_eq!(process.status()["backends"][0]["servers"][1]["kept"], true);
}
