//! Sections, directives and options of haproxy.cfg, up to HAProxy 3.2. A row may list alternative names, separated by
//! `|`.

use super::super::setting::Setting;
use super::super::setting::ValueKind::{
    Choice, Const, Flag, List, Mark, Millis, Number, Own, Path, Seconds, Text,
};

const HTTP: &str = "becket does not read HTTP: leave it to the server behind becket";
const TO_HTTPS: &str = "becket does not read HTTP: leave it to the server behind becket, or redirect all of a listener to https (listener.redirect)";
const ROUTES: &str = "clients are chosen by server name and ALPN: write a [[listener.route]], with *.NAME for -m end";
const OLD: &str = "SSL and TLS before 1.2 do not exist in becket";
const RECLAIM: &str = "a connection is one for client and server: backend.idle-reclaim ends idle ones while clients wait";
const STICK: &str = "clients are known again by their address or their TLS session: backend.stick";
const CHECKS: &str = "a check connects to the server as a client does: backend.health";
const BALANCE: &str = "round-robin instead: becket knows the client's address and server name";
const LOG: &str = "log.syslog is one socket or address, and log.access has one format";
const PAGES: &str = "/metrics, /status and /healthz are at admin.address";

pub(super) static TUNE: Setting = Setting::ignored(Own, "tune.*", "becket sizes this itself");
pub(super) static CRT_LIST_ENTRY: Setting =
    Setting::same(Own, "certificate", "listener.certificates");

#[rustfmt::skip]
pub(super) const SECTIONS: &[Setting] = &[
    Setting::same(Own, "global|defaults", ""),
    Setting::same(Own, "frontend", "listener"),
    Setting::same(Own, "backend", "backend"),
    Setting::same(Own, "listen", "listener, backend"),
    Setting::ignored(Own, "resolvers", "the system's resolver is asked, again after each backend.resolve-interval"),
    Setting::ignored(Own, "traces", "log.level is enough"),
    Setting::lost(Own, "peers", "beckets share TLS sessions and stick entries by [cluster]: becket secret FILE makes its secret"),
    Setting::lost(Own, "program", "start it as a service"),
    Setting::lost(Own, "userlist|cache|http-errors|fcgi-app", HTTP),
    Setting::lost(Own, "ring|log-forward|log-profile", LOG),
    Setting::lost(Own, "mailers", "alert on becket_server_up in /metrics"),
    Setting::lost(Own, "crt-store", "name its files in listener.certificates, as chain and key"),
    Setting::lost(Own, "acme", "write [acme]: see docs/guide/acme.md"),
];

#[rustfmt::skip]
pub(super) const DIRECTIVES: &[Setting] = &[
    Setting::same(Text, "user", "process.user"),
    Setting::same(Text, "group", "process.group"),
    Setting::differs(Own, "chroot", "", "process.sandbox limits files instead (Landlock, Linux 5.13); sockets of servers were inside: prefix their paths"),
    Setting::same(Path, "pidfile", "process.pid-file"),
    Setting::same(Number, "nbthread", "process.workers"),
    Setting::same(Number, "maxconn", "limits.connections"),
    Setting::same(Number, "maxsslrate", "admission.full-handshakes-per-second"),
    Setting::same(Number, "tune.ssl.cachesize", "sessions.table-entries"),
    Setting::same(Seconds, "tune.ssl.lifetime", "sessions.id-lifetime"),
    Setting::same(Millis, "hard-stop-after", "timeouts.drain"),
    Setting::differs(Text, "stats socket", "admin.socket", "for becket ctl, which has other commands; admin.socket-mode, -owner and -group say who may open it"),
    Setting::same(Own, "log", "log.syslog"),
    Setting::same(Own, "ca-base|crt-base|ssl-default-bind-options|default-server", ""),
    Setting::same(Own, "ssl-default-bind-ciphers|ssl-default-bind-ciphersuites", "policy.suites"),
    Setting::same(Own, "ssl-default-bind-curves", "policy.groups"),
    Setting::same(Own, "ssl-server-verify", "backend.tls.verify"),
    Setting::ignored(Own, "daemon|master-worker|nbproc", "a service manager runs becket, which has its own supervisor and threads"),
    Setting::ignored(Own, "cpu-map", "workers are pinned: process.pin"),
    Setting::ignored(Own, "ulimit-n", "becket raises the limit of descriptors itself"),
    Setting::ignored(Own, "ssl-dh-param-file", "there is no DHE"),
    Setting::ignored(Own, "stats timeout|node|description|localpeer|id|set-dumpable|zero-warning|strict-limits|unix-bind|server-state-file|server-state-base|load-server-state-from-file", "it is for statistics, peers and the process of HAProxy"),
    Setting::lost(Own, "default-path", "relative paths start in the current directory: start becket migrate in this one"),
    Setting::lost(Own, "uid|gid", "name them: process.user, process.group"),
    Setting::lost(Own, "lua-load|lua-load-per-thread", HTTP),
    Setting::lost(Own, "setenv|presetenv|resetenv", "variables are not read"),
    Setting::lost(Own, "maxconnrate|rate-limit", "limit handshakes: admission.full-handshakes-per-second"),
    Setting::lost(Own, "ssl-default-server-options|ssl-default-server-ciphers|ssl-default-server-ciphersuites|ssl-default-server-curves", "set backend.tls.versions; becket chooses the suites towards servers"),

    Setting::differs(Own, "mode", "", "every byte passes as it is, also HTTP"),
    Setting::same(Own, "bind", "listener.bind"),
    Setting::same(Own, "server", "backend.server"),
    Setting::partly(Own, "server-template", "backend.server", "one server, whose addresses are tried in order, with one maxconn for all: write a server for each address"),
    Setting::same(Own, "default_backend", "listener.backend"),
    Setting::partly(Own, "use_backend|acl", "listener.route", ROUTES),
    Setting::partly(Own, "redirect|http-request", "listener.redirect", TO_HTTPS),
    Setting::lost(Own, "http-response|http-after-response|http-error|compression|capture|filter|unique-id-format", HTTP),
    Setting::lost(Own, "tcp-request|tcp-response", "limit clients by listener.allow, listener.deny and [admission]"),
    Setting::partly(Choice(BALANCES), "balance", "backend.balance", BALANCE),
    Setting::ignored(Own, "hash-type", "few clients change their server when servers change"),
    Setting::ignored(Own, "http-reuse", "a connection to a server is one client's"),
    Setting::same(Number, "retries", "backend.retries"),
    Setting::same(Number, "backlog", "listener.backlog"),
    Setting::same(List, "source", "backend.source"),
    Setting::ignored(Own, "fullconn", "it is for minconn"),
    Setting::same(Own, "disabled|enabled", ""),
    Setting::lost(Own, "errorfile|errorloc|errorloc302|errorloc303|errorfiles", "becket sends no errors of HTTP: a client that no server can serve is closed"),
    Setting::lost(Own, "cookie|stick|appsession", STICK),
    Setting::lost(Own, "log-format|log-format-sd|error-log-format", LOG),
    Setting::lost(Own, "monitor-uri|monitor|stats|stats enable|stats uri", PAGES),
    Setting::lost(Own, "no|default", "defaults are not turned off: take the directive out of them"),

    Setting::same(Millis, "timeout client|timeout server|timeout tunnel", "timeouts.idle"),
    Setting::same(Millis, "timeout connect", "timeouts.connect"),
    Setting::same(Millis, "timeout client-fin|timeout server-fin", "timeouts.half-closed"),
    Setting::same(Millis, "timeout queue", "backend.queue-timeout"),
    Setting::same(Millis, "timeout check", "backend.health.timeout"),
    Setting::differs(Own, "timeout http-request", "", "timeouts.hello and timeouts.handshake limit silent clients"),
    Setting::differs(Own, "timeout http-keep-alive|option http-server-close|option httpclose|option http-keep-alive", "", RECLAIM),
    Setting::differs(Own, "option tcplog|option httplog", "log.access", "in becket's own format, a line for each connection"),
    Setting::ignored(Own, "option dontlognull", "their reason is health-check"),
    Setting::same(Own, "option log-health-checks|option redispatch", ""),
    Setting::same(Flag, "option abortonclose", "backend.abort-on-close"),
    Setting::lost(Own, "option forwardfor", "the server reads the client's address from a PROXY header: backend.proxy-header"),
    Setting::differs(Const("2h"), "option tcpka|option clitcpka", "listener.keepalive", "of clients, after 2 hours"),
    Setting::ignored(Own, "option splice-auto|option splice-request|option splice-response", "becket splices where it can"),
    Setting::same(Own, "option httpchk", "backend.health.check"),
    Setting::same(Own, "option ssl-hello-chk", "backend.health.check"),
    Setting::differs(Own, "option tcp-check|option mysql-check|option pgsql-check|option redis-check|option smtpchk|option ldap-check", "", "a check is a connection, without the protocol"),
    Setting::same(Own, "http-check send", "backend.health.path"),
    Setting::partly(Own, "http-check expect", "backend.health.expect", "a check expects statuses"),
    Setting::lost(Own, "http-check|tcp-check|external-check", CHECKS),
    Setting::partly(Choice(&[("src", "source"), ("ssl_fc_session_id", "tls-session")]), "stick on|stick match|stick store-request", "backend.stick", STICK),
    Setting::differs(Own, "stick-table", "", "100000 clients, for 30 minutes: set backend.stick-entries and backend.stick-lifetime; counters are limits of [admission]"),
];

#[rustfmt::skip]
const BALANCES: &[(&str, &str)] = &[
    ("roundrobin", "round-robin"), ("static-rr", "round-robin"), ("leastconn", "least-connections"), ("first", "first"),
    ("source", "source-hash"), ("random", "two-random-choices"), ("random(2)", "two-random-choices"),
    ("hash ssl_fc_sni", "sni-hash"), ("hash req.ssl_sni", "sni-hash"),
];

#[rustfmt::skip]
pub(super) const BIND: &[Setting] = &[
    Setting::same(Mark, "ssl", "listener.tls"),
    Setting::same(Own, "crt|crt-list", "listener.certificates"),
    Setting::same(Own, "alpn", "listener.alpn"),
    Setting::same(Own, "ciphers|ciphersuites", "policy.suites"),
    Setting::same(Own, "curves|ecdhe", "policy.groups"),
    Setting::same(Own, "ssl-min-ver|ssl-max-ver", "policy.versions"),
    Setting::same(Mark, "no-tlsv12|no-tlsv13|force-tlsv12|force-tlsv13", "policy.versions"),
    Setting::ignored(Mark, "no-sslv3|no-tlsv10|no-tlsv11", OLD),
    Setting::lost(Mark, "force-sslv3|force-tlsv10|force-tlsv11", OLD),
    Setting::same(Choice(&[("none", ""), ("optional", "optional"), ("required", "required")]), "verify", "policy.client-certificates"),
    Setting::same(Path, "ca-file", "policy.client-ca"),
    Setting::same(Path, "crl-file", "policy.crl"),
    Setting::differs(Const("false"), "no-tls-tickets", "policy.tls12-tickets", "TLS 1.3 resumes by tickets alone"),
    Setting::same(Const("strict"), "strict-sni", "listener.unknown-names"),
    Setting::differs(Const("any"), "accept-proxy", "listener.accept-proxy", "from everywhere: set listener.trusted-networks to the proxies in front"),
    Setting::differs(Const("256"), "tfo", "listener.fast-open", "with a queue of 256"),
    Setting::same(Number, "backlog", "listener.backlog"),
    Setting::ignored(Mark, "defer-accept", "it is the default: listener.defer-accept"),
    Setting::ignored(Mark, "v4v6", "an address without a host is both families"),
    Setting::differs(Mark, "v6only", "", "an address without a host is both families"),
    Setting::differs(Mark, "prefer-client-ciphers", "", "becket's order of suites counts"),
    Setting::lost(Own, "interface|namespace", "bind the addresses of the interface"),
    Setting::lost(Own, "maxconn", "limits.connections counts all listeners together"),
    Setting::lost(Mark, "allow-0rtt", "policy.early-data needs versions = [\"1.3\"] and proxy-header = \"v2\""),
    Setting::lost(Own, "tls-ticket-keys", "hosts share tickets by [cluster]: becket secret FILE"),
    Setting::lost(Mark, "transparent", "becket does not take over addresses"),
    Setting::ignored(Own, "name|id|nice", "listeners have names, and are alike"),
    Setting::ignored(Own, "process|thread|shards", "every worker listens"),
];

#[rustfmt::skip]
pub(super) const SERVER: &[Setting] = &[
    Setting::same(Number, "weight", "backend.server.weight"),
    Setting::same(Number, "maxconn", "backend.server.maxconn"),
    Setting::same(Flag, "backup", "backend.server.backup"),
    Setting::same(Flag, "disabled", "backend.server.disabled"),
    Setting::lost(Own, "maxqueue", "one queue for all servers of the backend: set backend.queue-length"),
    Setting::same(Mark, "check|check-ssl", "backend.health.check"),
    Setting::same(Millis, "inter", "backend.health.interval"),
    Setting::same(Millis, "fastinter", "backend.health.fast-interval"),
    Setting::same(Number, "rise", "backend.health.rise"),
    Setting::same(Number, "fall", "backend.health.fall"),
    Setting::same(Millis, "slowstart", "backend.health.slow-start"),
    Setting::same(Own, "observe|error-limit", "backend.health.passive-failures"),
    Setting::same(Choice(&[("shutdown-sessions", "close")]), "on-marked-down", "backend.connections-on-failure"),
    Setting::same(Const("v1"), "send-proxy", "backend.proxy-header"),
    Setting::same(Const("v2"), "send-proxy-v2|send-proxy-v2-ssl|send-proxy-v2-ssl-cn", "backend.proxy-header"),
    Setting::ignored(Mark, "check-send-proxy", "checks send a header where clients' connections have one"),
    Setting::same(Mark, "ssl", "backend.tls"),
    Setting::same(Own, "verify", "backend.tls.verify"),
    Setting::same(Own, "verifyhost", "backend.tls.name"),
    Setting::same(Path, "ca-file", "backend.tls.ca"),
    Setting::same(Path, "crl-file", "backend.tls.crl"),
    Setting::same(Path, "crt", "backend.tls.client-certificate"),
    Setting::same(Own, "sni", "backend.tls.sni"),
    Setting::same(List, "alpn", "backend.tls.alpn"),
    Setting::same(Own, "ssl-min-ver|ssl-max-ver", "backend.tls.versions"),
    Setting::same(List, "source", "backend.source"),
    Setting::ignored(Own, "id|downinter|on-error", "servers are named by their addresses, and checked alike"),
    Setting::ignored(Own, "init-addr|resolvers|resolve-prefer|resolve-opts", "names are looked up as the system does, while becket serves"),
    Setting::ignored(Own, "pool-max-conn|pool-purge-delay|pool-low-conn|max-reuse", "a connection to a server is one client's"),
    Setting::lost(Own, "cookie", STICK),
    Setting::lost(Own, "port|addr|track|agent-port|agent-addr|agent-inter", CHECKS),
    Setting::lost(Mark, "agent-check", CHECKS),
    Setting::lost(Own, "minconn", "maxconn does not vary with the load"),
    Setting::lost(Own, "proto|check-proto|ciphers|ciphersuites", "servers get the protocol that clients speak, and suites of becket's choice"),
];
