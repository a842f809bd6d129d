//! Tests each setting and each error.

use std::path::Path;

use super::super::NO_PARTS;
use super::super::fixture::{errors, migration, outcome};
use super::super::migration::migrate;
use super::super::{Dialect, Invocation, MigrationSource, SettingSupport, Translation};
use super::SETTINGS;
use becket_config::choices::{ClientCertificates, DefaultCertificate};
use becket_config::file::File;
use becket_config::read::read;
use becket_config::suites::ServedVersion;

fn translated(text: &str) -> Translation {
    let invocation = Invocation::of_file("hitch.conf");
    Dialect::Hitch.translate(&invocation, text.as_bytes(), Path::new("/srv"), &NO_PARTS)
}

fn faults(translation: &Translation) -> Vec<String> {
    translation
        .problems
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// Returns a valid configuration as a file of becket, and its parsed form.
#[track_caller]
fn migrated(text: &str) -> (String, File) {
    let translation = translated(text);
    let migration = migrate(
        MigrationSource::DropIn(Dialect::Hitch),
        "hitch.conf",
        &translation,
    );
    let toml = migration
        .toml
        .unwrap_or_else(|| panic!("{:?} of\n{text}", migration.errors));
    let written = File::parse(&toml).unwrap_or_else(|problems| panic!("{problems:?} of\n{toml}"));
    let meant = read("", &translation.table).file.unwrap();
    assert_eq!(written, meant, "{toml}");
    (toml, meant)
}

const EVERYTHING: &str = r#"
# Each setting that is not refused.
frontend = "[*]:443"
frontend = "[127.0.0.1]:444+/etc/own.pem"
frontend = {
    host = "::1"
    port = "445"
    pem-file = { cert = "a.pem" private-key = "a.key" ocsp-resp-file = "a.ocsp" ocsp-verify-staple = on }
    match-global-certs = on
    sni-nomatch-abort = on
    tls-protos = TLSv1.3
    ciphersuites = "TLS_AES_128_GCM_SHA256"
    client-verify = optional
    client-verify-ca = "/etc/ca.pem"
    prefer-server-ciphers = off
}
backend = "[app.test]:80"
backend-refresh = 30
pem-dir = "/etc/certs/"
pem-dir-glob = "*.crt"
pem-file = "/etc/last.pem"
alpn-protos = "h2, http/1.1"
tls-protos = TLSv1.0 TLSv1.2 TLSv1.3
ciphers = "EECDH+AESGCM"
ecdh-curve = "X25519:secp521r1:prime256v1"
client-verify = none
ssl-engine = "rdrand"
ocsp-dir = "/var/lib/hitch"
ocsp-connect-tmo = 4
ocsp-resp-tmo = 10
ocsp-refresh-interval = 1800
write-proxy-v2 = on
proxy-tlv = off
proxy-authority = on
proxy-client-cert = on
write-ip = off
proxy-proxy = "off"
write-proxy = off
write-proxy-v1 = off
backlog = 200
keepalive = 60
recv-bufsize = 8192
send-bufsize = 16384
tcp-fastopen = on
ssl-handshake-timeout = 7
backend-connect-timeout = 8
workers = 4
user = nobody
group = "nogroup"
daemon = yes
pidfile = "/run/hitch.pid"
log-level = 2
quiet = off
log-filename = "hitch.log"
syslog = on
syslog-facility = "daemon"
session-cache = 1000
shared-cache-listen = "[127.0.0.1]:1"
shared-cache-peer = "[127.0.0.1]:2"
shared-cache-if = "eth0,1"
ring-slots = 1
ring-data-len = 2
chroot = "/srv"
"#;

#[test]
fn every_setting_is_translated_as_its_table_says() {
    let (toml, _) = migrated(EVERYTHING);
    let expected = include_str!("everything.toml");
    assert_eq!(toml, expected);
    let translation = translated(EVERYTHING);
    assert!(translation.is_daemon);
    for setting in SETTINGS {
        let elsewhere = ["tls", "ssl", "client", "dbg-listen"].contains(&setting.theirs);
        let is_there = translation
            .report
            .iter()
            .any(|remark| remark.theirs == setting.theirs);
        assert!(is_there || elsewhere, "{} is not tried", setting.theirs);
    }
}

#[test]
fn missing_settings_have_the_defaults_of_hitch() {
    let (toml, file) = migrated("pem-file = \"/a.pem\"");
    let expected = [
        "bind = [\":8443\"]",
        "backlog = 100",
        "keepalive = \"1h\"",
        "certificates = [\"/a.pem\"]",
        "address = \"127.0.0.1:8000\"",
        "workers = 1",
        "idle = \"365d\"",
        "drain = \"1ms\"",
        "level = \"warn\"",
    ];
    for line in expected {
        assert!(toml.contains(line), "{line} is not in {toml}");
    }
    assert!(file.process.user.is_none() && file.policy.len() == 1);
}

#[test]
fn a_certificate_defines_how_its_clients_are_verified() {
    let (_, file) = migrated(
        "client-verify = optional\nclient-verify-ca = \"/ca.pem\"\npem-file = \"/first.pem\"\n\
         pem-file = { cert = \"/own.pem\" client-verify = required client-verify-ca = \"/own-ca.pem\" }\n\
         pem-file = { cert = \"/open.pem\" client-verify = none }\n\
         frontend = { port = \"1\" tls-protos = TLSv1.3 match-global-certs = on pem-file = \"/last.pem\" }\n",
    );
    let policies = file.listener[0].certificates.iter().map(|it| it.policy());
    let names = [None, Some("frontend-1-2"), Some("frontend-1-3"), None];
    assert_eq!(policies.collect::<Vec<_>>(), names);
    let of = |name: &str| file.policy.iter().find(|it| &*it.name == name).unwrap();
    for (name, verify, ca) in [
        ("frontend-1", ClientCertificates::Optional, Some("/ca.pem")),
        (
            "frontend-1-2",
            ClientCertificates::Required,
            Some("/own-ca.pem"),
        ),
        ("frontend-1-3", ClientCertificates::Off, None),
    ] {
        let policy = of(name);
        assert_eq!(policy.client_certificates, verify, "{name}");
        assert_eq!(policy.client_ca.as_deref(), ca, "{name}");
        assert_eq!(policy.versions, [ServedVersion::Tls13], "{name}");
    }
}

#[test]
fn the_first_file_of_a_folder_is_the_default_if_nothing_else_is_listed() {
    let default = |text: &str| migrated(text).1.listener[0].default_certificate;
    let folder = "pem-dir = \"/certs\"\n";
    assert_eq!(default(folder), DefaultCertificate::First);
    let other = format!("{folder}pem-file = \"/a.pem\"\n");
    assert_eq!(default(&other), DefaultCertificate::Last);
    let own = format!("{folder}frontend = \"[*]:1+/own.pem\"\n");
    assert_eq!(default(&own), DefaultCertificate::Last);
}

#[test]
fn an_error_has_its_line_and_all_errors_are_found() {
    let text = "\
backend = \"127.0.0.1:80\"
workers = many
foo = 1
bakend = \"[a]:1\"
tls-protos = SSLv3
tls-protos = TLSv1.2
ciphers = \"RC4:AES256-SHA\"
frontend = \"*:443\"
frontend = { host = \"::1\" }
frontend = { port = \"1\" backlog = 3 }
pem-file = { private-key = \"a\" }
write-ip = perhaps
client-verify = perhaps
daemon = { }
";
    let found = faults(&translated(text));
    let expected = [
        "line 1: backend = \"127.0.0.1:80\": not an address; accepted: [HOST]:PORT, with the brackets",
        "line 2: workers = \"many\": invalid value; accepted: a whole number",
        "line 3: foo: unknown, or not allowed here; accepted: ",
        "line 4: bakend: unknown, or not allowed here (did you mean backend?); accepted: ",
        "line 5: tls-protos = \"SSLv3\": none of these versions is supported; accepted: ",
        "line 6: tls-protos = \"TLSv1.2\": the versions are given already; accepted: ",
        "line 7: ciphers = \"RC4:AES256-SHA\": none of these suites is supported; accepted: ",
        "line 8: frontend = \"*:443\": not an address; accepted: [HOST]:PORT or [HOST]:PORT+CERT",
        "line 9: frontend = \"{ .. }\": without a port; accepted: ",
        "line 10: backlog: unknown, or not allowed here",
        "line 11: pem-file = \"{ .. }\": without cert; accepted: ",
        "line 12: write-ip = \"perhaps\": invalid value; accepted: on or off",
        "line 13: client-verify = \"perhaps\": not one of the choices; accepted: none, optional or required",
        "line 14: daemon: a block; accepted: a value",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for expected in expected {
        assert!(
            found.iter().any(|found| found.starts_with(expected)),
            "no {expected} in {found:#?}"
        );
    }
}

#[test]
fn reading_ends_at_the_first_fault_of_the_grammar() {
    for (text, fault) in [
        ("backlog =\nuser = a", "line 2: \"user\": no value"),
        (
            "pem-file = /etc/a.pem",
            "line 1: \"/etc/a.pem\": characters that need quotes",
        ),
        (
            "user = a\nlog-filename = \"a\n",
            "line 2: \"\\\"a\": unterminated quotes",
        ),
        ("user", "line 1: \"user\": not NAME = VALUE"),
        (
            "frontend = { port = \"1\"\n",
            "line 2: \"\": not NAME = VALUE",
        ),
        ("a = { b = { c = { d = 1 } } }", "line 1: \"{\": no value"),
        ("}", "line 1: \"}\": not NAME = VALUE"),
        ("# nothing", "no setting"),
    ] {
        let found = faults(&translated(text));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(fault), "{found:?} is not {fault}");
    }
}

#[test]
fn a_problem_of_a_key_is_reported_for_the_setting() {
    let translation =
        translated("\n\npem-file = \"a.pem\"\npem-file = \"b.pem\"\nkeepalive = 99999\n");
    let mut reading = read("", &translation.table);
    let problem = reading.problems.first_mut().unwrap();
    translation.place(problem);
    assert_eq!(
        problem.to_string(),
        "line 5: keepalive = \"99999s\": not in range; accepted: 1s to 9h6m7s, or \"off\""
    );
    let mut problem = becket_config::error::Problem::new("listener[main].certificates[1]", "gone");
    translation.place(&mut problem);
    assert_eq!(problem.to_string(), "line 4: pem-file = \"b.pem\": gone");
    let mut problem = becket_config::error::Problem::new("listener[main].certificates", "missing");
    translated("workers = 1").place(&mut problem);
    assert_eq!(problem.to_string(), "pem-file: missing");
}

#[test]
fn quotes_commas_comments_and_empty_values_are_parsed_as_by_hitch() {
    let text = "frontend = '[*]:1';\n";
    // An address needs quotes; a word does not.
    assert!(!faults(&translated(text)).is_empty());
    let text = "user = 'nobody'; group = staff, pem-file = \"/a.pem\"\nkeepalive = 5 # = 6\npidfile = \"\"";
    let (toml, _) = migrated(text);
    assert!(
        toml.contains("user = \"nobody\"") && toml.contains("group = \"staff\""),
        "{toml}"
    );
    assert!(toml.contains("keepalive = \"5s\""), "{toml}");
}

#[test]
fn options_and_file_apply_in_their_order() {
    let line = "-u first --workers=2 --config f -q -f [::1]:7 --tls-protos TLSv1.3 a.pem b.pem";
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let Ok(super::DialectCommand::Run(invocation)) = Dialect::Hitch.command(&words) else {
        panic!("not understood");
    };
    let text = b"user = \"second\"\npem-file = \"c.pem\"\nlog-level = 2\n";
    let translation = Dialect::Hitch.translate(&invocation, text, Path::new("/srv"), &NO_PARTS);
    assert_eq!(faults(&translation), [] as [&str; 0]);
    let file = read("", &translation.table).file.unwrap();
    assert_eq!(file.process.user.as_deref(), Some("second"));
    assert_eq!(file.process.workers, Some(2));
    let bind: Vec<&str> = file.listener[0].bind.iter().map(|it| &*it.text).collect();
    assert_eq!(bind, ["[::1]:7"]);
    let shown: Vec<String> = file.listener[0]
        .certificates
        .iter()
        .map(|it| format!("{it:?}"))
        .collect();
    assert_eq!(
        shown,
        [
            "Path(\"/srv/c.pem\")",
            "Path(\"/srv/a.pem\")",
            "Path(\"/srv/b.pem\")"
        ]
    );
    assert_eq!(file.policy[0].versions.len(), 1);
    let refused = Dialect::Hitch.command(&["--bogus".to_owned()]).unwrap_err();
    assert!(refused.to_string().contains("'--bogus'"), "{refused}");
}

#[test]
fn a_migration_leaves_out_frontends_with_faults() {
    let text = "\
pem-file = \"/etc/a.pem\"
frontend = \"[*]:443\"
frontend = \"*:444\"
frontend = {
    port = \"445\"
    ciphers = \"RC4\"
}
";
    let source = MigrationSource::DropIn(Dialect::Hitch);
    let partial = migration(source, text, &[]);
    let file = File::parse(partial.toml.as_deref().unwrap()).unwrap();
    assert_eq!((file.listener.len(), file.listener[0].bind.len()), (1, 1));
    for (line, said) in [
        (3, "left out: line 3: frontend = \"*:444\": not an address"),
        (4, "left out: line 6: ciphers = \"RC4\": none"),
    ] {
        let (support, why) = outcome(&partial, "frontend", line);
        assert_eq!(support, SettingSupport::Lost);
        assert!(why.starts_with(said), "{why}");
    }
    let elsewhere = errors(source, &format!("{text}workers = many\n"));
    assert_eq!(elsewhere.len(), 3, "{elsewhere:?}");
    let all = errors(source, "pem-file = \"/etc/a.pem\"\nfrontend = \"*:444\"\n");
    assert_eq!(all.len(), 1, "{all:?}");
}
