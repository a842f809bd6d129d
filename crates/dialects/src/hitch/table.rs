//! The settings and options of hitch, up to 1.8.0.

use super::super::command_line::OptionValue::{self, Absent, Optional, Required};
use super::super::command_line::ProgramOption;
use super::super::setting::Setting;
use super::super::setting::ValueKind::{Block, Number, Switch, SwitchOff, Text, Words};

/// Settings in hitch.conf(5), and undocumented settings that hitch accepts.
#[rustfmt::skip]
pub(in super::super) const SETTINGS: &[Setting] = &[
    Setting::same(Block, "frontend", "listener.bind").option("f"),
    Setting::same(Text, "host", "listener.bind"),
    Setting::same(Text, "port", "listener.bind"),
    Setting::same(Text, "backend", "backend.server.address").option("b"),
    Setting::same(Number, "backend-refresh", "backend.resolve-interval").option(""),
    Setting::same(Block, "pem-file", "listener.certificates"),
    Setting::same(Text, "cert", "listener.certificates.chain"),
    Setting::same(Text, "private-key", "listener.certificates.key"),
    Setting::differs(Text, "pem-dir", "listener.certificates", "hidden files are not read"),
    Setting::same(Text, "pem-dir-glob", "listener.certificates"),
    Setting::differs(Switch, "match-global-certs", "listener.certificates", "the frontend's certificate wins if both have the name"),
    Setting::same(Switch, "sni-nomatch-abort", "listener.unknown-names").option(""),
    Setting::same(Text, "alpn-protos", "listener.alpn").option(""),
    Setting::same(Words, "tls-protos", "policy.versions").option(""),
    Setting::differs(Switch, "tls", "policy.versions", "TLS 1.2 and 1.3 are enabled; older versions are not supported").option(""),
    Setting::differs(Switch, "ssl", "policy.versions", "TLS 1.2 and 1.3 are enabled; SSL and older TLS versions are not supported").option(""),
    Setting::same(Text, "ciphers", "policy.suites").option("c"),
    Setting::same(Text, "ciphersuites", "policy.suites").option(""),
    Setting::differs(SwitchOff, "prefer-server-ciphers", "policy.suites", "the server's order is always used").option("O"),
    Setting::same(Text, "ecdh-curve", "policy.groups"),
    Setting::same(Words, "client-verify", "policy.client-certificates"),
    Setting::same(Text, "client-verify-ca", "policy.client-ca"),
    Setting::ignored(Text, "ssl-engine", "engines are not supported; AWS-LC does cryptography in software").option("e"),
    Setting::same(Text, "ocsp-resp-file", "listener.certificates.ocsp"),
    Setting::differs(Text, "ocsp-dir", "", "OCSP responses are not fetched, and responses that hitch left in this folder expire soon; use ocsp-resp-file to send a response fetched by another program").option("o"),
    Setting::ignored(Number, "ocsp-connect-tmo", "OCSP responses are not fetched"),
    Setting::ignored(Number, "ocsp-resp-tmo", "OCSP responses are not fetched"),
    Setting::ignored(Number, "ocsp-refresh-interval", "OCSP responses are not fetched"),
    Setting::ignored(Switch, "ocsp-verify-staple", "clients verify the signature of a response; becket always verifies that it belongs to the certificate"),
    Setting::same(Switch, "write-proxy", "backend.proxy-header").option(""),
    Setting::same(Switch, "write-proxy-v1", "backend.proxy-header").option(""),
    Setting::differs(Switch, "write-proxy-v2", "backend.proxy-header", "the header has more TLS data in TLVs; servers ignore TLVs that they do not know").option(""),
    Setting::differs(SwitchOff, "proxy-tlv", "", "a header of version 2 always has TLVs with TLS data; servers ignore TLVs that they do not know"),
    Setting::differs(SwitchOff, "proxy-authority", "", "a header of version 2 always has the server name of the client's hello"),
    Setting::same(Switch, "proxy-client-cert", "backend.proxy-tlvs"),
    Setting::same(Switch, "write-ip", "backend.proxy-header").option(""),
    Setting::differs(Switch, "proxy-proxy", "backend.proxy-header", "a connection without a complete header of version 1 is closed; every client may send a header, as before; listener.trusted-networks in becket.toml restricts the senders").option(""),
    Setting::same(Number, "backlog", "listener.backlog").option("B"),
    Setting::same(Number, "keepalive", "listener.keepalive").option("k"),
    Setting::same(Number, "recv-bufsize", "listener.receive-buffer").option(""),
    Setting::same(Number, "send-bufsize", "listener.send-buffer").option(""),
    Setting::same(Switch, "tcp-fastopen", "listener.fast-open"),
    Setting::same(Number, "ssl-handshake-timeout", "timeouts.handshake").option(""),
    Setting::same(Number, "backend-connect-timeout", "timeouts.connect").option(""),
    Setting::differs(Number, "workers", "process.workers", "workers are threads of one process").option("n"),
    Setting::same(Text, "user", "process.user").option("u"),
    Setting::same(Text, "group", "process.group").option("g"),
    Setting::differs(Text, "chroot", "", "process.sandbox limits files instead (Landlock, Linux 5.13); sockets of servers were inside: prefix their paths"),
    Setting::differs(Switch, "daemon", "", "it runs in the background, as before; with becket.toml use a service manager").option(""),
    Setting::same(Text, "pidfile", "process.pid-file").option("p"),
    Setting::differs(Number, "log-level", "log.level", "errors are logged at every level, warnings from level 1 on").option("L"),
    Setting::differs(Switch, "quiet", "log.level", "only errors are logged, unless log-level is set").option("q"),
    Setting::same(Text, "log-filename", "log.file").option("l"),
    Setting::same(Switch, "syslog", "log.syslog").option("s"),
    Setting::same(Text, "syslog-facility", "log.syslog-facility").option(""),
    Setting::same(Number, "session-cache", "sessions.table-entries").option("C"),
    Setting::differs(Text, "shared-cache-listen", "", "sessions of hosts with hitch are not received; a [cluster] shares sessions between beckets").option("U"),
    Setting::differs(Text, "shared-cache-peer", "", "sessions are not sent to other hosts, so clients make full handshakes there; a [cluster] shares sessions between beckets").option("P"),
    Setting::differs(Text, "shared-cache-if", "", "sessions are not sent to other hosts, so clients make full handshakes there; a [cluster] shares sessions between beckets").option("M"),
    Setting::differs(Switch, "client", "listener.tls", "plain clients are connected to the backend with TLS; the backend's certificate is not verified, as before").option(""),
    Setting::ignored(Number, "ring-slots", "there is no ring buffer"),
    Setting::ignored(Number, "ring-data-len", "there is no ring buffer"),
    Setting::ignored(Text, "dbg-listen", "only for tests of hitch").option(""),
];

const fn option(
    long: &'static str,
    short: Option<char>,
    value: OptionValue,
    sets: &'static str,
) -> ProgramOption {
    ProgramOption {
        long,
        short,
        value,
        sets,
    }
}

/// Returns the options of hitch or stud, whose settings are given.
pub(in super::super) fn options(settings: &[Setting]) -> Vec<ProgramOption> {
    let of_settings = settings.iter().filter_map(|setting| {
        let short = setting.option?.chars().next();
        let value = match setting.kind {
            _ if WITHOUT_VALUE.contains(&setting.theirs) => Absent,
            Switch | SwitchOff => Optional,
            _ => Required,
        };
        Some(option(setting.theirs, short, value, setting.theirs))
    });
    let has = |name: &str| settings.iter().any(|setting| setting.theirs == name);
    let others = OTHER_OPTIONS.iter().copied();
    let others = others.filter(|option| option.sets.starts_with("--") || has(option.sets));
    others.chain(of_settings).collect()
}

/// Options that perform an action, or have another name than their setting.
#[rustfmt::skip]
const OTHER_OPTIONS: &[ProgramOption] = &[
    option("config", None, Required, CONFIG),
    option("test", Some('t'), Absent, TEST),
    option("version", Some('V'), Absent, VERSION),
    option("help", Some('h'), Absent, HELP),
    option("default-config", None, Absent, DEFAULTS),
    option("backendrefresh", Some('R'), Required, "backend-refresh"),
    option("enable-tcp-fastopen", None, Optional, "tcp-fastopen"),
    option("chroot", Some('r'), Required, "chroot"),
    option("shared-cache", None, Required, "session-cache"),
    option("session-cache", None, Required, "shared-cache"),
];
/// Switches that a file sets to a value, but an option only turns on.
const WITHOUT_VALUE: [&str; 4] = ["tls", "ssl", "client", "write-xff"];

/// Values of `sets` for options that perform an action instead of a setting.
pub(in super::super) const CONFIG: &str = "--config";
pub(in super::super) const TEST: &str = "--test";
pub(in super::super) const VERSION: &str = "--version";
pub(in super::super) const HELP: &str = "--help";
pub(in super::super) const DEFAULTS: &str = "--default-config";
