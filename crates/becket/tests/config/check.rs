//! What `becket check` finds, prints and returns.

use std::net::TcpListener;
use std::time::Duration;

use becket::check::{Findings, check};
use becket_prepare::flags::Flags;
use becket_prepare::source::Source;
use rustls_pki_types::UnixTime;

use crate::common::{Folder, NOW, site};

fn run(folder: &Folder, text: &str) -> Findings {
    folder.write("becket.toml", text);
    let flags = Flags {
        config: Some("becket.toml".into()),
        ..Flags::default()
    };
    let source = Source::at(flags, folder.path().to_owned());
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
    check(&source, &Default::default(), now, false)
}

#[test]
fn a_sound_configuration_is_fine_and_shown() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test", "*.a.test"]);
    let free = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .unwrap();
    let findings = run(
        &folder,
        &site("['a.pem']").replace("127.0.0.1:8443", &free.to_string()),
    );
    let table = findings.to_string();
    assert_eq!(findings.exit_code(true), 0, "{table}");
    for part in [
        &format!("[[listener]]\nname = \"web\"\nbind = [\"{free}\"]\n"),
        "certificate *.a.test of web: ecdsa, until 2025-01-01T",
        "policy web: digest ",
        "[[backend]]\nname = \"app\"\n",
        "balance = \"round-robin\"\n",
        "address = \"127.0.0.1:8080\"\n",
        "becket.toml: fine\n",
    ] {
        assert!(table.contains(part), "{part} is not in {table}");
    }
    let json = serde_json::to_value(&findings).unwrap();
    assert_eq!(json["certificates"][0]["name"], "*.a.test");
    let digest = json["digests"]["web"].as_str().unwrap();
    assert_eq!(digest.len(), 64);
}

#[test]
fn an_address_in_use_is_a_warning() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let text = site("['a.pem']").replace("127.0.0.1:8443", &address);
    let findings = run(&folder, &text);
    assert_eq!(findings.exit_code(true), 1);
    assert_eq!(findings.exit_code(false), 0);
    let warning = findings.warnings[0].to_string();
    let expected =
        format!("listener[web].bind = \"{address}\": in use, perhaps by a running becket");
    assert_eq!(warning, expected);
}

#[test]
fn errors_leave_nothing_to_show_but_themselves() {
    let folder = Folder::new();
    let findings = run(&folder, &site("['a.pem']"));
    assert_eq!(findings.exit_code(true), 2);
    let json = serde_json::to_value(&findings).unwrap();
    assert_eq!(json["errors"][0]["line"], 5);
    assert!(json.get("listener").is_none());
}

#[test]
fn sessions_that_end_with_the_process_are_named() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let free = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .unwrap();
    let text = site("['a.pem']")
        .replace("127.0.0.1:8443", &free.to_string())
        .replace("name = 'app'\n[[", "name = 'app'\nproxy-header = 'v2'\n[[")
        + "[[policy]]\nname = 'web'\nversions = ['1.3']\nearly-data = '17KiB'\n";
    let findings = run(&folder, &text);
    let table = findings.to_string();
    assert_eq!(findings.exit_code(true), 0, "{table}");
    let line = "policy web: sessions for early data open once, end with this process, and are not shared\n";
    assert!(table.contains(line), "{table}");
}

#[test]
fn a_listener_behind_a_proxy_is_rehearsed_without_one() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let free = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .unwrap();
    let text = site("['a.pem']")
        .replace("127.0.0.1:8443", &free.to_string())
        .replace(
            "backend = 'app'\n",
            "backend = 'app'\naccept-proxy = 'v2'\ntrusted-networks = ['198.51.100.1']\n",
        );
    let findings = run(&folder, &text);
    assert_eq!(findings.exit_code(true), 0, "{findings}");
    assert!(!findings.handshakes.is_empty());
}
