//! The settings and options of hitch, up to 1.8.0.

use super::super::command_line::OptionValue::{self, Absent, Optional, Required};
use super::super::command_line::ProgramOption;
use super::super::setting::Setting;
use super::super::setting::ValueKind::{Block, Number, Switch, SwitchOff, Text, Words};

/// What hitch.conf(5) knows, and what hitch reads beside it.
#[rustfmt::skip]
pub(in super::super) const SETTINGS: &[Setting] = &[
    Setting::same(Block, "frontend", "listener.bind"),
    Setting::same(Text, "host", "listener.bind"),
    Setting::same(Text, "port", "listener.bind"),
    Setting::same(Text, "backend", "backend.server.address"),
    Setting::same(Number, "backend-refresh", "backend.resolve-interval"),
    Setting::same(Block, "pem-file", "listener.certificates"),
    Setting::same(Text, "cert", "listener.certificates.chain"),
    Setting::same(Text, "private-key", "listener.certificates.key"),
    Setting::differs(Text, "pem-dir", "listener.certificates", "hidden files are left alone"),
    Setting::same(Text, "pem-dir-glob", "listener.certificates"),
    Setting::differs(Switch, "match-global-certs", "listener.certificates", "a name that is in both gets the certificate of the frontend"),
    Setting::same(Switch, "sni-nomatch-abort", "listener.unknown-names"),
    Setting::same(Text, "alpn-protos", "listener.alpn"),
    Setting::same(Words, "tls-protos", "policy.versions"),
    Setting::differs(Switch, "tls", "policy.versions", "TLS 1.2 and 1.3 are served, older versions do not exist here"),
    Setting::differs(Switch, "ssl", "policy.versions", "TLS 1.2 and 1.3 are served, SSL and older versions of TLS do not exist here"),
    Setting::same(Text, "ciphers", "policy.suites"),
    Setting::same(Text, "ciphersuites", "policy.suites"),
    Setting::differs(SwitchOff, "prefer-server-ciphers", "policy.suites", "the order is always the server's"),
    Setting::same(Text, "ecdh-curve", "policy.groups"),
    Setting::same(Words, "client-verify", "policy.client-certificates"),
    Setting::same(Text, "client-verify-ca", "policy.client-ca"),
    Setting::ignored(Text, "ssl-engine", "there are no engines: cryptography is that of AWS-LC, in software"),
    Setting::same(Text, "ocsp-resp-file", "listener.certificates.ocsp"),
    Setting::differs(Text, "ocsp-dir", "", "OCSP responses are not fetched, and what hitch left in this folder is soon over; ocsp-resp-file sends one that something else fetches"),
    Setting::ignored(Number, "ocsp-connect-tmo", "OCSP responses are not fetched"),
    Setting::ignored(Number, "ocsp-resp-tmo", "OCSP responses are not fetched"),
    Setting::ignored(Number, "ocsp-refresh-interval", "OCSP responses are not fetched"),
    Setting::ignored(Switch, "ocsp-verify-staple", "clients verify who signed a response; that it is for the certificate is always verified here"),
    Setting::same(Switch, "write-proxy", "backend.proxy-header"),
    Setting::same(Switch, "write-proxy-v1", "backend.proxy-header"),
    Setting::differs(Switch, "write-proxy-v2", "backend.proxy-header", "the header says more of TLS, as TLVs; who does not know one passes over it"),
    Setting::differs(SwitchOff, "proxy-tlv", "", "a header of version 2 always says what TLS knows of the client; who does not know a TLV passes over it"),
    Setting::differs(SwitchOff, "proxy-authority", "", "a header of version 2 always says the server name that the client asked for"),
    Setting::same(Switch, "proxy-client-cert", "backend.proxy-tlvs"),
    Setting::same(Switch, "write-ip", "backend.proxy-header"),
    Setting::differs(Switch, "proxy-proxy", "backend.proxy-header", "what is no whole header of version 1 ends the connection; whoever connects is believed, as there, and in becket.toml listener.trusted-networks can name the proxies"),
    Setting::same(Number, "backlog", "listener.backlog"),
    Setting::same(Number, "keepalive", "listener.keepalive"),
    Setting::same(Number, "recv-bufsize", "listener.receive-buffer"),
    Setting::same(Number, "send-bufsize", "listener.send-buffer"),
    Setting::same(Switch, "tcp-fastopen", "listener.fast-open"),
    Setting::same(Number, "ssl-handshake-timeout", "timeouts.handshake"),
    Setting::same(Number, "backend-connect-timeout", "timeouts.connect"),
    Setting::differs(Number, "workers", "process.workers", "workers are threads of one process"),
    Setting::same(Text, "user", "process.user"),
    Setting::same(Text, "group", "process.group"),
    Setting::differs(Text, "chroot", "process.chroot", "files are opened outside of it at each reload, too; a log outside of it is opened before, and rotated by a copy (copytruncate)"),
    Setting::differs(Switch, "daemon", "", "it goes into the background as there; with becket.toml a service manager keeps it"),
    Setting::same(Text, "pidfile", "process.pid-file"),
    Setting::differs(Number, "log-level", "log.level", "errors are logged at every level, warnings from 1 on"),
    Setting::differs(Switch, "quiet", "log.level", "warnings and errors are logged, or errors alone"),
    Setting::same(Text, "log-filename", "log.file"),
    Setting::same(Switch, "syslog", "log.syslog"),
    Setting::same(Text, "syslog-facility", "log.syslog-facility"),
    Setting::same(Number, "session-cache", "sessions.table-entries"),
    Setting::differs(Text, "shared-cache-listen", "cluster.stud-listen", "TLS 1.2 sessions of hosts that run the other program are taken, if becket would have made them alike; refused if the last pem-file has no RSA key, since they are sealed with a key that everybody knows"),
    Setting::differs(Text, "shared-cache-peer", "", "sessions are not sent to other hosts, where their clients make full handshakes; a [cluster] shares them among beckets"),
    Setting::differs(Text, "shared-cache-if", "", "sessions are not sent to other hosts, where their clients make full handshakes; a [cluster] shares them among beckets"),
    Setting::differs(Switch, "client", "listener.tls", "bytes of plain clients go through TLS to the backend, whose certificate nobody verifies, as there"),
    Setting::ignored(Number, "ring-slots", "there is no ring of buffers to size"),
    Setting::ignored(Number, "ring-data-len", "there is no ring of buffers to size"),
    Setting::ignored(Text, "dbg-listen", "it is for tests of hitch"),
];

pub(in super::super) const fn option(
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

/// What hitch(8) knows: with the names that the program registers, and those that its manual prints.
#[rustfmt::skip]
pub(in super::super) const OPTIONS: &[ProgramOption] = &[
    option("config", None, Required, CONFIG),
    option("test", Some('t'), Absent, TEST),
    option("version", Some('V'), Absent, VERSION),
    option("help", Some('h'), Absent, HELP),
    option("default-config", None, Absent, DEFAULTS),
    option("tls", None, Absent, "tls"),
    option("ssl", None, Absent, "ssl"),
    option("client", None, Absent, "client"),
    option("tls-protos", None, Required, "tls-protos"),
    option("ciphers", Some('c'), Required, "ciphers"),
    option("ciphersuites", None, Required, "ciphersuites"),
    option("ssl-engine", Some('e'), Required, "ssl-engine"),
    option("prefer-server-ciphers", Some('O'), Optional, "prefer-server-ciphers"),
    option("backend", Some('b'), Required, "backend"),
    option("frontend", Some('f'), Required, "frontend"),
    option("recv-bufsize", None, Required, "recv-bufsize"),
    option("send-bufsize", None, Required, "send-bufsize"),
    option("workers", Some('n'), Required, "workers"),
    option("backlog", Some('B'), Required, "backlog"),
    option("keepalive", Some('k'), Required, "keepalive"),
    option("backendrefresh", Some('R'), Required, "backend-refresh"),
    option("backend-refresh", None, Required, "backend-refresh"),
    option("enable-tcp-fastopen", None, Optional, "tcp-fastopen"),
    option("chroot", Some('r'), Required, "chroot"),
    option("user", Some('u'), Required, "user"),
    option("group", Some('g'), Required, "group"),
    option("quiet", Some('q'), Optional, "quiet"),
    option("log-level", Some('L'), Required, "log-level"),
    option("log-filename", Some('l'), Required, "log-filename"),
    option("syslog", Some('s'), Optional, "syslog"),
    option("syslog-facility", None, Required, "syslog-facility"),
    option("daemon", None, Optional, "daemon"),
    option("write-ip", None, Optional, "write-ip"),
    option("write-proxy-v1", None, Optional, "write-proxy-v1"),
    option("write-proxy-v2", None, Optional, "write-proxy-v2"),
    option("write-proxy", None, Optional, "write-proxy"),
    option("proxy-proxy", None, Optional, "proxy-proxy"),
    option("sni-nomatch-abort", None, Optional, "sni-nomatch-abort"),
    option("alpn-protos", None, Required, "alpn-protos"),
    option("ocsp-dir", Some('o'), Required, "ocsp-dir"),
    option("pidfile", Some('p'), Required, "pidfile"),
    option("backend-connect-timeout", None, Required, "backend-connect-timeout"),
    option("ssl-handshake-timeout", None, Required, "ssl-handshake-timeout"),
    option("session-cache", Some('C'), Required, "session-cache"),
    option("shared-cache", None, Required, "session-cache"),
    option("shared-cache-listen", Some('U'), Required, "shared-cache-listen"),
    option("shared-cache-peer", Some('P'), Required, "shared-cache-peer"),
    option("shared-cache-if", Some('M'), Required, "shared-cache-if"),
    option("dbg-listen", None, Required, "dbg-listen"),
];

/// What options do that give no setting.
pub(in super::super) const CONFIG: &str = "--config";
pub(in super::super) const TEST: &str = "--test";
pub(in super::super) const VERSION: &str = "--version";
pub(in super::super) const HELP: &str = "--help";
pub(in super::super) const DEFAULTS: &str = "--default-config";
