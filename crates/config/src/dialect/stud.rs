//! stud: one `key = value` per line, and the settings of hitch as they were before hitch.
//!
//! As stud has it: a comment begins at the first character of a line, quotes around a value are dropped, a value ends at the
//! first blank, of two frontends the last counts, and a key that nobody knows is passed over with a warning.

use std::path::Path;

use super::getopt::{Argument, Opt};
use super::hitch::{CONFIG, DEFAULTS, HELP, Reader, TEST, VERSION, Written, command_of};
use super::setting::Kind::{Number, Switch, SwitchOff, Text};
use super::setting::Setting;
use super::{Command, Invocation, Step, Translation};
use crate::error::Problem;

/// What stud knows.
#[rustfmt::skip]
pub(super) const SETTINGS: &[Setting] = &[
    Setting::same(Text, "frontend", "listener.bind"),
    Setting::same(Text, "backend", "backend.server.address"),
    Setting::same(Text, "pem-file", "listener.certificates"),
    Setting::differs(Text, "tls", "policy.versions", "TLS 1.2 and 1.3 are served, older versions do not exist here"),
    Setting::differs(Text, "ssl", "policy.versions", "TLS 1.2 and 1.3 are served, SSL does not exist here"),
    Setting::same(Text, "ciphers", "policy.suites"),
    Setting::differs(SwitchOff, "prefer-server-ciphers", "policy.suites", "the order is always the server's"),
    Setting::ignored(Text, "ssl-engine", "there are no engines: cryptography is that of AWS-LC, in software"),
    Setting::same(Switch, "write-proxy", "backend.proxy-header"),
    Setting::refused(Switch, "write-ip", "an address in bytes of its own is not sent; write-proxy tells the same"),
    Setting::refused(Switch, "write-xff", "nothing is written into HTTP; write-proxy tells the same"),
    Setting::refused(Switch, "proxy-proxy", "headers are not passed on from whoever sends one; in becket.toml, listener.accept-proxy takes them from proxies that are named, and backend.proxy-header sends them"),
    Setting::same(Number, "backlog", "listener.backlog"),
    Setting::same(Number, "keepalive", "listener.keepalive"),
    Setting::differs(Number, "workers", "process.workers", "workers are threads of one process"),
    Setting::same(Text, "user", "process.user"),
    Setting::same(Text, "group", "process.group"),
    Setting::refused(Text, "chroot", "there is no chroot; a service manager has one (RootDirectory= of systemd), and the process that serves has no rights but those of its user"),
    Setting::differs(Switch, "daemon", "", "it goes into the background as there; with becket.toml a service manager keeps it"),
    Setting::differs(Switch, "quiet", "log.level", "errors alone are logged"),
    Setting::differs(Switch, "syslog", "", "the log goes to standard error, which journald takes, and not to syslog"),
    Setting::ignored(Text, "syslog-facility", "the log does not go to syslog"),
    Setting::same(Number, "shared-cache", "sessions.table-entries"),
    Setting::differs(Text, "shared-cache-listen", "", "sessions of other hosts are not taken, and their clients make full handshakes here; cluster.receive-stud takes them in becket.toml"),
    Setting::differs(Text, "shared-cache-peer", "", "sessions are not sent to other hosts; a [cluster] shares them in becket.toml"),
    Setting::differs(Text, "shared-cache-if", "", "sessions are not sent to other hosts; a [cluster] shares them in becket.toml"),
    Setting::differs(Switch, "client", "listener.tls", "bytes of plain clients go through TLS to the backend, whose certificate nobody verifies, as there"),
];

#[rustfmt::skip]
pub(super) const OPTIONS: &[Opt] = &{
    use Argument::{Needed, No};
    const fn option(long: &'static str, short: Option<char>, argument: Argument, sets: &'static str) -> Opt {
        Opt { long, short, argument, sets }
    }
    [
        option("config", None, Needed, CONFIG),
        option("test", Some('t'), No, TEST),
        option("version", Some('V'), No, VERSION),
        option("help", Some('h'), No, HELP),
        option("default-config", None, No, DEFAULTS),
        option("tls", None, No, "tls"),
        option("ssl", None, No, "ssl"),
        option("client", None, No, "client"),
        option("ciphers", Some('c'), Needed, "ciphers"),
        option("ssl-engine", Some('e'), Needed, "ssl-engine"),
        option("prefer-server-ciphers", Some('O'), No, "prefer-server-ciphers"),
        option("backend", Some('b'), Needed, "backend"),
        option("frontend", Some('f'), Needed, "frontend"),
        option("workers", Some('n'), Needed, "workers"),
        option("backlog", Some('B'), Needed, "backlog"),
        option("shared-cache", Some('C'), Needed, "shared-cache"),
        option("session-cache", None, Needed, "shared-cache"),
        option("shared-cache-listen", Some('U'), Needed, "shared-cache-listen"),
        option("shared-cache-peer", Some('P'), Needed, "shared-cache-peer"),
        option("shared-cache-if", Some('M'), Needed, "shared-cache-if"),
        option("keepalive", Some('k'), Needed, "keepalive"),
        option("chroot", Some('r'), Needed, "chroot"),
        option("user", Some('u'), Needed, "user"),
        option("group", Some('g'), Needed, "group"),
        option("quiet", Some('q'), No, "quiet"),
        option("syslog", Some('s'), No, "syslog"),
        option("syslog-facility", None, Needed, "syslog-facility"),
        option("daemon", None, No, "daemon"),
        option("write-ip", None, No, "write-ip"),
        option("write-proxy", None, No, "write-proxy"),
        option("write-xff", None, No, "write-xff"),
        option("proxy-proxy", None, No, "proxy-proxy"),
    ]
};

/// Reads a command line of stud.
pub(super) fn command(arguments: &[String]) -> Result<Command, String> {
    command_of("stud", OPTIONS, arguments)
}

/// Reads a configuration of stud.
pub(super) fn translate(invocation: &Invocation, text: &[u8], folder: &Path) -> Translation {
    let mut reader = Reader::new(folder, SETTINGS, "v1");
    for step in &invocation.steps {
        match step {
            Step::Set(name, value) => take(&mut reader, name, None, value),
            Step::File => {
                let text = String::from_utf8_lossy(text);
                for (number, line) in text.lines().enumerate() {
                    self::line(&mut reader, number + 1, line);
                }
            }
        }
    }
    reader.finish()
}

fn line(reader: &mut Reader, number: usize, line: &str) {
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
        let problem = Problem {
            line: Some(number),
            ..Problem::new("", "a line without =").text(line)
        };
        return reader
            .draft
            .problem(problem.accepted("KEY = VALUE, or # and a comment"));
    };
    let value = value.split_whitespace().next().unwrap_or_default();
    take(reader, key, Some(number), value.trim_matches(['"', '\'']));
}

fn take(reader: &mut Reader, key: &str, line: Option<usize>, value: &str) {
    let Some(setting) = SETTINGS.iter().find(|setting| setting.theirs == key) else {
        return reader.draft.unknown(key, line);
    };
    let value = match key {
        "frontend" | "backend" => {
            if key == "frontend" {
                reader.forget_frontends();
            }
            bracketed(value)
        }
        _ => value.to_owned(),
    };
    reader.take_global(setting, line, &Written::Text(value));
}

/// `HOST,PORT` as `[HOST]:PORT`.
fn bracketed(address: &str) -> String {
    match address.rsplit_once(',') {
        Some((host, port)) if !address.starts_with('[') => format!("[{host}]:{port}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::migration::migrate;
    use super::super::{Dialect, Verdict};
    use super::*;
    use crate::file::File;
    use crate::read::read;

    fn translated(text: &str) -> Translation {
        let invocation = Invocation::of_file("stud.conf");
        Dialect::Stud.translate(&invocation, text.as_bytes(), Path::new("/srv"))
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
    fn every_setting_becomes_what_its_table_says() {
        let translation = translated(EVERYTHING);
        let migration = migrate(Dialect::Stud, "stud.conf", &translation);
        let toml = migration
            .toml
            .unwrap_or_else(|| panic!("{:?}", migration.errors));
        let file = File::parse(&toml).unwrap();
        assert_eq!(Some(&file), read("", &translation.table).file.as_ref());
        for line in [
            "bind = [\"127.0.0.1:8443\"]  # stud.conf: frontend, line 3",
            "    \"/etc/a.pem\",  # stud.conf: pem-file, line 5\n    \"/srv/b.pem\",",
            "proxy-header = \"v1\"",
            "level = \"error\"",
            "table-entries = 1000",
        ] {
            assert!(toml.contains(line), "{line} is not in {toml}");
        }
        assert!(translation.is_daemon);
        let stranger = translation.report.last().unwrap();
        assert_eq!(
            (stranger.verdict, stranger.line),
            (Verdict::Ignored, Some(29))
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

    #[test]
    fn faults_have_their_lines() {
        let text =
            "frontend = *:443\nnothing\nworkers = many\nwrite-xff = yes\nchroot = /var/empty\n";
        let found: Vec<String> = translated(text)
            .problems
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "line 1: frontend = \"*:443\": not an address",
            "line 2: \"nothing\": a line without =",
            "line 3: workers = \"many\": not of the shape that is needed",
            "line 4: write-xff = \"yes\": nothing is written into HTTP",
            "line 5: chroot = \"/var/empty\": there is no chroot",
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
        assert!(command(&["--write-proxy-v2".to_owned()]).is_err());
    }
}
