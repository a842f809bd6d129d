//! The settings and options of hitch, up to 1.8.0.

use super::super::command_line::OptionValue::{self, Absent, Optional, Required};
use super::super::command_line::ProgramOption;
use super::super::setting::Setting;
use super::super::setting::ValueKind::{Block, Number, Switch, SwitchOff, Text, Words};

/// Settings in hitch.conf(5), and undocumented settings that hitch accepts.
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
    Setting::differs(Text, "pem-dir", "listener.certificates", "hidden files are not read"),
    Setting::same(Text, "pem-dir-glob", "listener.certificates"),
    Setting::differs(Switch, "match-global-certs", "listener.certificates", "the frontend's certificate wins if both have the name"),
    Setting::same(Switch, "sni-nomatch-abort", "listener.unknown-names"),
    Setting::same(Text, "alpn-protos", "listener.alpn"),
    Setting::same(Words, "tls-protos", "policy.versions"),
    Setting::differs(Switch, "tls", "policy.versions", "TLS 1.2 and 1.3 are enabled; older versions are not supported"),
    Setting::differs(Switch, "ssl", "policy.versions", "TLS 1.2 and 1.3 are enabled; SSL and older TLS versions are not supported"),
    Setting::same(Text, "ciphers", "policy.suites"),
    Setting::same(Text, "ciphersuites", "policy.suites"),
    Setting::differs(SwitchOff, "prefer-server-ciphers", "policy.suites", "the server's order is always used"),
    Setting::same(Text, "ecdh-curve", "policy.groups"),
    Setting::same(Words, "client-verify", "policy.client-certificates"),
    Setting::same(Text, "client-verify-ca", "policy.client-ca"),
    Setting::ignored(Text, "ssl-engine", "engines are not supported; AWS-LC does cryptography in software"),
    Setting::same(Text, "ocsp-resp-file", "listener.certificates.ocsp"),
    Setting::differs(Text, "ocsp-dir", "", "OCSP responses are not fetched, and responses that hitch left in this folder expire soon; use ocsp-resp-file to send a response fetched by another program"),
    Setting::ignored(Number, "ocsp-connect-tmo", "OCSP responses are not fetched"),
    Setting::ignored(Number, "ocsp-resp-tmo", "OCSP responses are not fetched"),
    Setting::ignored(Number, "ocsp-refresh-interval", "OCSP responses are not fetched"),
    Setting::ignored(Switch, "ocsp-verify-staple", "clients verify the signature of a response; becket always verifies that it belongs to the certificate"),
    Setting::same(Switch, "write-proxy", "backend.proxy-header"),
    Setting::same(Switch, "write-proxy-v1", "backend.proxy-header"),
    Setting::differs(Switch, "write-proxy-v2", "backend.proxy-header", "the header has more TLS data in TLVs; servers ignore TLVs that they do not know"),
    Setting::differs(SwitchOff, "proxy-tlv", "", "a header of version 2 always has TLVs with TLS data; servers ignore TLVs that they do not know"),
    Setting::differs(SwitchOff, "proxy-authority", "", "a header of version 2 always has the server name of the client's hello"),
    Setting::same(Switch, "proxy-client-cert", "backend.proxy-tlvs"),
    Setting::same(Switch, "write-ip", "backend.proxy-header"),
    Setting::differs(Switch, "proxy-proxy", "backend.proxy-header", "a connection without a complete header of version 1 is closed; every client may send a header, as before; listener.trusted-networks in becket.toml restricts the senders"),
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
    Setting::differs(Text, "chroot", "process.chroot", "files are read outside of it, also at each reload; a log outside of it is opened before the chroot, so rotate it with copytruncate"),
    Setting::differs(Switch, "daemon", "", "it runs in the background, as before; with becket.toml use a service manager"),
    Setting::same(Text, "pidfile", "process.pid-file"),
    Setting::differs(Number, "log-level", "log.level", "errors are logged at every level, warnings from level 1 on"),
    Setting::differs(Switch, "quiet", "log.level", "only errors are logged, unless log-level is set"),
    Setting::same(Text, "log-filename", "log.file"),
    Setting::same(Switch, "syslog", "log.syslog"),
    Setting::same(Text, "syslog-facility", "log.syslog-facility"),
    Setting::same(Number, "session-cache", "sessions.table-entries"),
    Setting::differs(Text, "shared-cache-listen", "", "sessions of hosts with hitch are not received; a [cluster] shares sessions between beckets"),
    Setting::differs(Text, "shared-cache-peer", "", "sessions are not sent to other hosts, so clients make full handshakes there; a [cluster] shares sessions between beckets"),
    Setting::differs(Text, "shared-cache-if", "", "sessions are not sent to other hosts, so clients make full handshakes there; a [cluster] shares sessions between beckets"),
    Setting::differs(Switch, "client", "listener.tls", "plain clients are connected to the backend with TLS; the backend's certificate is not verified, as before"),
    Setting::ignored(Number, "ring-slots", "there is no ring buffer"),
    Setting::ignored(Number, "ring-data-len", "there is no ring buffer"),
    Setting::ignored(Text, "dbg-listen", "only for tests of hitch"),
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

/// Options that hitch accepts, and options in its manual hitch(8).
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

/// Values of `sets` for options that perform an action instead of a setting.
pub(in super::super) const CONFIG: &str = "--config";
pub(in super::super) const TEST: &str = "--test";
pub(in super::super) const VERSION: &str = "--version";
pub(in super::super) const HELP: &str = "--help";
pub(in super::super) const DEFAULTS: &str = "--default-config";
