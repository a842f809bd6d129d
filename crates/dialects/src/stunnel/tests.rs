//! Tests each setting and each error.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::super::fixture::{errors, migration, outcome};
use super::super::migration::migrate;
use super::super::{
    Dialect, DialectCommand, Invocation, MigrationSource, SettingSupport, Translation,
};
use super::SETTINGS;
use becket_config::file::File;
use becket_config::parts::{IncludedFiles, TOO_LARGE};
use becket_config::read::read;

fn translated(text: &str) -> Translation {
    let parts = [
        ("conf.d/10-times.conf", "TIMEOUTidle = 60\n"),
        ("conf.d/05-first.conf", "TIMEOUTidle = 50\n"),
        ("conf.d/20-more/not-looked-at", "nonsense\n"),
    ];
    translated_with(text, &parts)
}

fn translated_with(text: &str, parts: &[(&str, &str)]) -> Translation {
    let invocation = Invocation::of_file("stunnel.conf");
    let parts = parts.iter().map(|(path, text)| {
        let path = Path::new("/srv").join(path);
        (path, text.as_bytes().to_vec())
    });
    let parts: BTreeMap<PathBuf, Vec<u8>> = parts.collect();
    Dialect::Stunnel.translate(&invocation, text.as_bytes(), Path::new("/srv"), &parts)
}

fn faults(text: &str) -> Vec<String> {
    let migration = migrate(SOURCE, "stunnel.conf", &translated(text));
    migration.errors.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn migrated(text: &str) -> (String, File) {
    let translation = translated(text);
    let migration = migrate(SOURCE, "stunnel.conf", &translation);
    let toml = migration
        .toml
        .unwrap_or_else(|| panic!("{:?} of\n{text}", migration.errors));
    let written = File::parse(&toml).unwrap_or_else(|problems| panic!("{problems:?} of\n{toml}"));
    let meant = read("", &translation.table).file.unwrap();
    assert_eq!(written, meant, "{toml}");
    (toml, meant)
}

const GLOBAL: &str = "\
# each setting that is not refused
chroot = /var
cert = /etc/site.pem
pid = /run/stunnel.pid
output = /var/log/stunnel.log
log = append
syslog = no
debug = daemon.4
foreground = quiet
setuid = nobody
setgid = nogroup
service = stunnel
compression = zlib
EGD = /dev/urandom
RNDbytes = 64
RNDfile = /dev/urandom
RNDoverwrite = no
engine = auto
engineCtrl = X
engineDefault = ALL
fips = no
";

const SERVER: &str = "\
accept = 443
connect = 80
connect = /run/app.sock
key = /etc/site.key
failover = prio
local = 127.0.0.1
ciphers = ECDHE+AESGCM
ciphersuites = TLS_AES_128_GCM_SHA256
curves = X25519:P-256:X448
sslVersionMin = TLSv1
sslVersionMax = all
options = NO_SSLv2
options = -NO_SSLv3
options = SINGLE_ECDH_USE
securityLevel = 2
verifyChain = yes
requireCert = yes
verifyPeer = no
CAfile = ca.pem
CRLfile = crl.pem
checkHost = *.clients.test
checkIP = 192.0.2.1
checkEmail = a@clients.test
TIMEOUTbusy = 20
TIMEOUTclose = 0
TIMEOUTconnect = 3
include = conf.d
sessionCacheSize = 500
sessionCacheTimeout = 400
sessionResume = yes
sessiond = host:1
ticketKeySecret = 00
ticketMacSecret = 00
socket = l:SO_KEEPALIVE=1
socket = a:TCP_KEEPIDLE=30
socket = r:TCP_NODELAY=1
socket = r:SO_OOBINLINE=yes
transparent = none
logId = unique
delay = yes
retry = no
reset = yes
renegotiation = no
stack = 65536
libwrap = no
OCSPaia = no
OCSPflag = NOCHAIN
OCSPnonce = no
pty = no
protocol = proxy
client = no
";

const OTHERS: &str = "\
[child]
sni = https:b.test
cert = /etc/b.pem
connect = 81
verify = 1
CAfile = ca.pem
[mail]
accept = :::143
protocol = imap
connect = 10.0.0.1:1143
sslVersion = TLSv1.2
[out]
client = yes
accept = 127.0.0.1:25
connect = mail.test:465
verifyChain = yes
CAfile = ca.pem
checkHost = other.test
sni = third.test
[blind]
client = YES
accept = localhost:26
connect = ::1:465
protocol = SMTP
sni =
[pinned]
client = yes
accept = 127.0.0.1:27
connect = pinned.test:465
verifyPeer = yes
CAfile = pins.pem
[peers]
accept = 127.0.0.1:28
connect = 127.0.0.1:82
verify = 4
CApath = /certs/peers
[hashed]
accept = 127.0.0.1:29
connect = 127.0.0.1:83
verifyChain = yes
CApath = /certs/cas
CRLpath = /certs/lists
";

#[test]
fn every_setting_is_translated_as_its_table_says() {
    let text = format!("{GLOBAL}[https]\n{SERVER}{OTHERS}");
    let (toml, file) = migrated(&text);
    assert_eq!(toml, include_str!("everything.toml"));
    assert_eq!(file.listener.len(), 7);
    let translation = translated(&text);
    assert!(!translation.is_daemon);
    for setting in SETTINGS
        .iter()
        .filter(|setting| setting.verdict != SettingSupport::Refused)
    {
        let is_there = translation
            .report
            .iter()
            .any(|remark| remark.theirs == setting.theirs);
        assert!(is_there, "{} is not tried", setting.theirs);
    }
}

#[test]
fn faults_have_their_lines_and_the_words_of_the_file() {
    let text = "\
foreground = yes
pid = a.pid
foo = 1
[x]
accept = here
exec = /bin/sh
verify = 3
sslVersion = TLSv1
retry = maybe
foreground = yes
nonsense
[y]
client = yes
accept = 1
connect = 2
protocol = nntp
verifyChain = yes
[z]
accept = 127.0.0.1:1
connect = 3
cert = z.pem
ciphers = RC4
sni = nobody:z.test
redirect = 5
";
    let found = faults(text);
    let expected = [
        "line 3: foo: not valid here",
        "line 4: connect: missing: each service must define two endpoints; accepted: ",
        "line 4: cert: missing: a TLS server needs a certificate; accepted: cert = FILE",
        "line 5: accept = \"here\": not an address; accepted: [HOST:]PORT",
        "line 6: exec = \"/bin/sh\": programs are not started",
        "line 7: verify = \"3\": no trusted certificates: neither CAfile",
        "line 8: sslVersion = \"TLSv1\": none of these versions is supported",
        "line 9: retry = \"maybe\": invalid value; accepted: yes or no",
        "line 10: foreground: not valid here; accepted: the settings of stunnel(8), global ones before",
        "line 11: \"nonsense\": no '=' found",
        "line 16: protocol = \"nntp\": not supported; accepted: smtp, imap, pop3 or pgsql",
        "line 17: verifyChain = \"yes\": no trusted certificates: neither CAfile",
        "line 22: ciphers = \"RC4\": none of these suites is supported",
        "line 23: sni = \"nobody:z.test\": no service has this name",
        "line 24: redirect = \"5\": clients that do not authenticate are rejected",
    ];
    for expected in expected {
        assert!(
            found.iter().any(|found| found.starts_with(expected)),
            "no {expected} in {found:#?}"
        );
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    assert_eq!(faults("cert = a\n").len(), 1);
}

const SOURCE: MigrationSource = MigrationSource::DropIn(Dialect::Stunnel);

#[test]
fn a_migration_leaves_out_services_with_faults() {
    let text = "\
cert = a.pem
[a]
accept = 1
connect = 2
[b]
accept = 3
exec = /bin/sh
[of-b]
sni = b:b.test
connect = 4
";
    let partial = migration(SOURCE, text, &[]);
    assert!(partial.has_lost(), "{}", partial.page());
    let toml = partial.toml.as_deref().unwrap();
    let file = File::parse(toml).unwrap();
    let names = file.listener.iter().map(|it| it.name.to_string());
    assert_eq!(names.collect::<Vec<_>>(), ["a"]);
    assert_eq!(file.backend.len(), 1);
    assert!(toml.contains("# Lost, line 5: section = b: left out: line 5: connect: missing"));
    let (_, why) = outcome(&partial, "section", 5);
    assert!(why.contains("line 7: exec"), "{why}");
    let (_, why) = outcome(&partial, "section", 8);
    assert!(why.contains("no service has this name"), "{why}");
    // A fault outside of services, and one of all services.
    let outside = errors(SOURCE, &format!("fips = yes\n{text}"));
    assert!(outside[0].starts_with("line 1: fips"), "{outside:?}");
    let all = errors(SOURCE, "[a]\naccept = 1\nexec = /bin/sh\ncert = a.pem\n");
    assert!(all[0].contains("connect: missing"), "{all:?}");
}

#[test]
fn the_report_has_the_key_that_each_value_becomes_and_fits_the_screen() {
    let text = format!("{GLOBAL}[https]\n{SERVER}socket = l:TCP_NODELAY=1\n{OTHERS}");
    let found = migration(SOURCE, &text, &[("conf.d/1", "")]);
    let becomes = |theirs: &str, value: &str| {
        let mut all = found.settings.iter();
        all.find(|it| it.theirs == theirs && it.value == value)
            .unwrap()
            .ours
    };
    assert_eq!(becomes("socket", "l:TCP_NODELAY=1"), "");
    assert_eq!(becomes("socket", "a:TCP_KEEPIDLE=30"), "listener.keepalive");
    assert_eq!(becomes("protocol", "proxy"), "backend.proxy-header");
    assert_eq!(becomes("protocol", "imap"), "listener.starttls");
    let page = found.page();
    assert!(
        page.lines().all(|line| line.chars().count() <= 120),
        "{page}"
    );
}

#[test]
fn included_files_are_read_in_place_in_the_order_of_their_names() {
    let text = "cert = a.pem\n[a]\naccept = 1\ninclude = conf.d/\n[z]\naccept = 3\nconnect = 3\n";
    let parts = [
        ("conf.d/20", "[b]\naccept = 2\nconnect = b.test:2\n"),
        ("conf.d/10", "; still of a\nconnect = a.test:1\n"),
    ];
    let translation = translated_with(text, &parts);
    let migration = migrate(SOURCE, "stunnel.conf", &translation);
    let page = migration.page();
    let toml = migration.toml.unwrap_or_else(|| panic!("{page}"));
    let file = File::parse(&toml).unwrap();
    let names = file.listener.iter().map(|it| it.name.to_string());
    assert_eq!(names.collect::<Vec<_>>(), ["a", "b", "z"]);
    let from = "\"a.test:1\"\n";
    let table = "[[backend.server]]  # conf.d/10:2 connect\n";
    assert!(toml.contains(from) && toml.contains(table), "{toml}");
    assert!(page.contains("conf.d/20:3  connect = b.test:2"), "{page}");
}

#[test]
fn errors_in_included_files_have_their_file_and_line() {
    let found = |parts: &[(&str, &str)], text: &str| {
        let translation = translated_with(text, parts);
        let migration = migrate(SOURCE, "stunnel.conf", &translation);
        let found = migration.errors.iter().map(ToString::to_string);
        found.collect::<Vec<_>>()
    };
    let whole = "cert = a.pem\n[a]\naccept = 1\nconnect = 2\n";
    let parts = [("conf.d/10", "\nfoo = 1\n[b]\naccept = here\n")];
    let several = found(
        &parts,
        &format!("include = nowhere\n{whole}include = conf.d\n"),
    );
    for (found, expected) in several.iter().zip([
        "line 1: include = \"nowhere\": no such folder; accepted: a folder with parts",
        "conf.d/10:2: foo: not valid here",
        "conf.d/10:3: connect: missing: each service must define two endpoints",
        "conf.d/10:4: accept = \"here\": not an address",
    ]) {
        assert!(found.starts_with(expected), "{several:#?}");
    }
    assert_eq!(several.len(), 4, "{several:#?}");
    // Two included files that include their own folder would be read endlessly.
    let loops = [
        ("conf.d/1", "include = conf.d"),
        ("conf.d/2", "include = conf.d"),
    ];
    let all = found(&loops, &format!("include = conf.d\n{whole}"));
    assert!(all[0].contains("included too deep"), "{all:#?}");
    assert!(all.len() <= 100);
}

/// Counts reads of folders and files.
struct Counted {
    names: usize,
    bytes: usize,
    lists: Cell<usize>,
    texts: Cell<usize>,
}

impl IncludedFiles for Counted {
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        self.lists.set(self.lists.get() + 1);
        Ok((0..self.names)
            .map(|name| folder.join(name.to_string()))
            .collect())
    }

    fn text(&self, _: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.texts.set(self.texts.get() + 1);
        if self.bytes as u64 > most {
            Err(io::Error::other(TOO_LARGE))
        } else {
            Ok(Some(vec![b'\n'; self.bytes]))
        }
    }
}

#[test]
fn included_files_are_bounded_in_count_and_bytes_before_reading() {
    // Number of names per folder, bytes per file, and `include` lines; the expected error, and the
    // number of files and folders read.
    for (names, bytes, lines, said, texts, lists) in [
        (4096, 0, 1, "too many parts", 0, 1),
        (4095, 0, 2, "too many parts", 4095, 1),
        (0, 0, 5000, "too many parts", 0, 4096),
        (3, 6 << 20, 1, "too large", 3, 1),
    ] {
        let parts = Counted {
            names,
            bytes,
            lists: Cell::new(0),
            texts: Cell::new(0),
        };
        let text = "include = conf.d\n".repeat(lines);
        let invocation = Invocation::of_file("stunnel.conf");
        let translation =
            Dialect::Stunnel.translate(&invocation, text.as_bytes(), Path::new("/srv"), &parts);
        let faults: Vec<String> = translation
            .problems
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(
            faults.iter().any(|fault| fault.contains(said)),
            "{faults:#?}"
        );
        assert_eq!(
            (parts.texts.get(), parts.lists.get()),
            (texts, lists),
            "{said}"
        );
    }
}

#[test]
fn a_command_line_names_one_file_only() {
    let command = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        super::command(&words)
    };
    let run = |file| Some(DialectCommand::Run(Invocation::of_file(file)));
    assert_eq!(command("a.conf").ok(), run("a.conf"));
    assert_eq!(command("").ok(), run("/etc/stunnel/stunnel.conf"));
    assert_eq!(command("-fd 0").ok(), run("-"));
    assert_eq!(command("-version").ok(), Some(DialectCommand::Version));
    assert!(
        command("-bogus")
            .unwrap_err()
            .to_string()
            .contains("Invalid configuration file name")
    );
    assert!(command("a b").is_err());
}
