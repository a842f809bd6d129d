//! stud: one `key = value` per line. hitch descends from stud, so most settings are equal.
//!
//! As in stud, a comment begins at the first character of a line, quotes around a value are
//! removed, a value ends at the first space, the last frontend wins, and an unknown key causes only
//! a warning.

use std::path::Path;

use super::hitch::{HitchTranslator, Value};
use super::invocation::{Invocation, InvocationStep};
use super::setting::Setting;
use super::setting::ValueKind::{Number, Switch, SwitchOff, Text};
use super::translation::Translation;
use becket_config::error::Problem;

/// Remark about an unknown setting, which stud ignores as well.
static UNKNOWN: Setting = Setting::ignored(Text, "unknown key", "not a setting of stud");

/// Settings of stud, in the order of the documentation page.
#[rustfmt::skip]
pub(super) const SETTINGS: &[Setting] = &[
    Setting::same(Text, "frontend", "listener.bind").option("f"),
    Setting::same(Text, "backend", "backend.server.address").option("b"),
    Setting::same(Text, "pem-file", "listener.certificates"),
    Setting::differs(Text, "tls", "policy.versions", "TLS 1.2 and 1.3 are enabled; older versions are not supported").option(""),
    Setting::differs(Text, "ssl", "policy.versions", "TLS 1.2 and 1.3 are enabled; SSL is not supported").option(""),
    Setting::same(Text, "ciphers", "policy.suites").option("c"),
    Setting::differs(SwitchOff, "prefer-server-ciphers", "policy.suites", "the server's order is always used").option("O"),
    Setting::ignored(Text, "ssl-engine", "engines are not supported; AWS-LC does cryptography in software").option("e"),
    Setting::same(Switch, "write-proxy", "backend.proxy-header").option(""),
    Setting::same(Switch, "write-ip", "backend.proxy-header").option(""),
    Setting::refused(Switch, "write-xff", "HTTP is not modified; use write-proxy to send the client's address").option(""),
    Setting::differs(Switch, "proxy-proxy", "backend.proxy-header", "a connection without a complete header of version 1 is closed; every client may send a header, as before; listener.trusted-networks in becket.toml restricts the senders").option(""),
    Setting::same(Number, "backlog", "listener.backlog").option("B"),
    Setting::same(Number, "keepalive", "listener.keepalive").option("k"),
    Setting::differs(Number, "workers", "process.workers", "workers are threads of one process").option("n"),
    Setting::same(Text, "user", "process.user").option("u"),
    Setting::same(Text, "group", "process.group").option("g"),
    Setting::differs(Text, "chroot", "", "process.sandbox limits files instead (Landlock, Linux 5.13); sockets of servers were inside: prefix their paths"),
    Setting::differs(Switch, "daemon", "", "it runs in the background, as before; with becket.toml use a service manager").option(""),
    Setting::differs(Switch, "quiet", "log.level", "only errors are logged").option("q"),
    Setting::same(Switch, "syslog", "log.syslog").option("s"),
    Setting::same(Text, "syslog-facility", "log.syslog-facility").option(""),
    Setting::same(Number, "shared-cache", "sessions.table-entries").option("C"),
    Setting::differs(Text, "shared-cache-listen", "cluster.listen", "sessions are shared with beckets alone; those of stud are not received").option("U"),
    Setting::differs(Text, "shared-cache-peer", "cluster.peers", "sessions are shared with beckets at these addresses, with a secret derived from the key of the last pem-file; none is sent to stud").option("P"),
    Setting::differs(Text, "shared-cache-if", "", "peers are found by their addresses (shared-cache-peer), not by multicast").option("M"),
    Setting::differs(Switch, "client", "listener.tls", "plain clients are connected to the backend with TLS; the backend's certificate is not verified, as before").option(""),
];

pub(super) fn translate(invocation: &Invocation, text: &[u8], folder: &Path) -> Translation {
    let mut reader = HitchTranslator::new(folder, "stud", SETTINGS, "v1");
    for step in &invocation.steps {
        match step {
            InvocationStep::Set(name, value) => take(&mut reader, name, None, value),
            InvocationStep::File => {
                let text = String::from_utf8_lossy(text);
                for (number, line) in text.lines().enumerate() {
                    self::line(&mut reader, number + 1, line);
                }
            }
        }
    }
    reader.finish()
}

fn line(reader: &mut HitchTranslator, number: usize, line: &str) {
    if line.starts_with('#') {
        return;
    }
    let Some(begin) = line.find(|c: char| c.is_ascii_alphabetic()) else {
        return;
    };
    let key = &line[begin..];
    let key = &key[..key
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .unwrap_or(key.len())];
    let Some((_, value)) = line.split_once('=') else {
        let problem = Problem::new("", "no '=' found").line(number).text(line);
        return reader
            .out
            .problem(problem.accepted("KEY = VALUE, or # and a comment"));
    };
    let value = value.split_whitespace().next().unwrap_or_default();
    take(reader, key, Some(number), value.trim_matches(['"', '\'']));
}

fn take(reader: &mut HitchTranslator, key: &str, line: Option<usize>, value: &str) {
    let Some(setting) = SETTINGS.iter().find(|setting| setting.theirs == key) else {
        reader.out.note(&UNKNOWN, line, key);
        return;
    };
    let value = match key {
        "frontend" | "backend" | "shared-cache-listen" => {
            if key == "frontend" {
                reader.frontends.clear();
            }
            bracketed(value)
        }
        _ => value.to_owned(),
    };
    reader.take_global(setting, line, &Value::Text(value));
}

/// Converts `HOST,PORT` to `[HOST]:PORT`.
fn bracketed(address: &str) -> String {
    match address.rsplit_once(',') {
        Some((host, port)) if !address.starts_with('[') => format!("[{host}]:{port}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::NO_PARTS;
    use super::super::migration::migrate;
    use super::super::{Dialect, DialectCommand, MigrationSource, SettingSupport};
    use super::*;
    use becket_config::file::File;
    use becket_config::read::read;

    fn translated(text: &str) -> Translation {
        let invocation = Invocation::of_file("stud.conf");
        Dialect::Stud.translate(&invocation, text.as_bytes(), Path::new("/srv"), &NO_PARTS)
    }

    const EVERYTHING: &str = "\
# comment
frontend = \"[*]:1\"
frontend = 127.0.0.1,8443
backend = '[127.0.0.1]:80'
pem-file = \"/etc/a.pem\"
pem-file = b.pem # the last one
tls = on
ssl = on
ciphers = \"HIGH\"
prefer-server-ciphers = on
ssl-engine = \"aesni\"
write-proxy = on
write-ip = off
write-xff = off
proxy-proxy = off
backlog = 200
keepalive = 60
workers = 2
user = \"nobody\"
group = nogroup
daemon = on
quiet = on
syslog = on
syslog-facility = daemon
shared-cache = 1000
shared-cache-listen = \"[127.0.0.1]:9\"
shared-cache-peer = \"[127.0.0.1]:10\"
shared-cache-if = eth0,1
unheard-of = 5
";

    #[test]
    fn every_setting_is_translated_as_its_table_says() {
        let translation = translated(EVERYTHING);
        let migration = migrate(
            MigrationSource::DropIn(Dialect::Stud),
            "stud.conf",
            &translation,
        );
        let toml = migration
            .toml
            .unwrap_or_else(|| panic!("{:?}", migration.errors));
        let file = File::parse(&toml).unwrap();
        assert_eq!(Some(&file), read("", &translation.table).file.as_ref());
        for line in [
            "bind = [\"127.0.0.1:8443\"]  # stud.conf:3 frontend",
            "    \"/etc/a.pem\",  # stud.conf:5 pem-file\n    \"/srv/b.pem\",",
            "proxy-header = \"v1\"",
            "level = \"error\"",
            "syslog = \"/dev/log\"  # stud.conf:23 syslog",
            "syslog-tag = \"stud\"",
            "table-entries = 1000",
            "listen = \"127.0.0.1:9\"  # stud.conf:26 shared-cache-listen",
            "peers = [\"127.0.0.1:10\"]  # stud.conf:27 shared-cache-peer",
            "secret-from-key = \"/srv/b.pem\"",
        ] {
            assert!(toml.contains(line), "{line} is not in {toml}");
        }
        assert!(translation.is_daemon);
        let stranger = translation.report.last().unwrap();
        assert_eq!(
            (stranger.verdict, stranger.line),
            (SettingSupport::Ignored, Some(29))
        );
        for setting in SETTINGS
            .iter()
            .filter(|setting| !["chroot", "client"].contains(&setting.theirs))
        {
            let is_there = translation
                .report
                .iter()
                .any(|remark| remark.theirs == setting.theirs);
            assert!(is_there, "{} is not tried", setting.theirs);
        }
    }

    /// Compares command lines with the resulting keys of `[cluster]`, or with the reason why
    /// sessions are not shared.
    #[test]
    fn peers_are_named_in_the_notations_of_stud() {
        let shared = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let DialectCommand::Run(invocation) = Dialect::Stud.command(&words).unwrap() else {
                panic!("{line}");
            };
            let translation =
                Dialect::Stud.translate(&invocation, b"", Path::new("/srv"), &NO_PARTS);
            let cluster = translation.table.get("cluster");
            let of = |key| cluster.and_then(|it| it.get(key)).map(ToString::to_string);
            let mut said: Vec<String> = translation
                .problems
                .iter()
                .map(ToString::to_string)
                .collect();
            said.extend(translation.remarks("stud.conf"));
            (of("listen"), of("peers"), said.join("\n"))
        };
        for (line, listen, peers) in [
            (
                "-U 10.0.3.20,8888 -P 10.0.0.17",
                "10.0.3.20:8888",
                r#"["10.0.0.17:8888"]"#,
            ),
            (
                "-U [10.0.3.20]:8888 -P [10.0.0.17] -P [fe80::1]:9 -P one.example,7",
                "10.0.3.20:8888",
                r#"["10.0.0.17:8888", "[fe80::1]:9", "one.example:7"]"#,
            ),
        ] {
            let found = shared(&format!("{line} a.pem"));
            assert_eq!(found.0.unwrap(), format!("{listen:?}"), "{line}");
            assert_eq!(found.1.as_deref(), Some(peers), "{line}");
        }
        for (line, said) in [
            ("-P 10.0.0.17 a.pem", "without shared-cache-listen"),
            (
                "-U *,8888 -P 10.0.0.17 a.pem",
                "without an address of this host",
            ),
            (
                "-U ,8888 -P 10.0.0.17 a.pem",
                "without an address of this host",
            ),
            (
                "-U 10.0.3.20,8888 -P 239.0.0.1 a.pem",
                "not shared by multicast",
            ),
            (
                "-U 10.0.3.20,8888 -P *,8888 a.pem",
                "not an address of a host",
            ),
            ("-U 10.0.3.20,8888 -P 10.0.0.17", "without a pem-file"),
            ("-U 10.0.3.20 -P 10.0.0.17 a.pem", "not an address"),
        ] {
            let (_, peers, all) = shared(line);
            assert_eq!(peers, None, "{line}");
            assert!(all.contains(said), "{line}: {all}");
        }
    }

    #[test]
    fn faults_report_their_lines() {
        let text = "frontend = *:443\nnothing\nworkers = many\nwrite-xff = yes\n";
        let found: Vec<String> = translated(text)
            .problems
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "line 1: frontend = \"*:443\": not an address",
            "line 2: \"nothing\": no '=' found",
            "line 3: workers = \"many\": invalid value",
            "line 4: write-xff = \"yes\": HTTP is not modified",
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
        assert!(
            Dialect::Stud
                .command(&["--write-proxy-v2".to_owned()])
                .is_err()
        );
    }
}
