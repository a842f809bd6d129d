//! Directives of nginx.conf, up to nginx 1.29, and options on their lines. A row may list alternative names, separated
//! by `|`.

use super::super::setting::Setting;
use super::super::setting::ValueKind::{
    Choice, Const, Flag, Mark, Number, Own, Path, Seconds, Text,
};

/// Blocks that contain rows of values instead of directives.
pub(super) const ROWS: [&str; 5] = ["map", "geo", "split_clients", "types", "charset_map"];

pub(super) static ROW: Setting = Setting::same(Own, "row", "");
pub(super) static POOL_SERVER: Setting = Setting::same(Own, "server", "backend.server");

const HTTP: &str = "becket does not read HTTP: leave it to the server behind becket";
const CLIENT: &str =
    "the server reads the client's address and more from a PROXY header: backend.proxy-header";
const FILES: &str = "becket serves a folder by backend.files, with .index, .precompressed, .cache-control and .error-page";
const ONE_TIME: &str = "one time for all servers, the longest that is set";
const SIZES: &str = "becket sizes this itself";
const H2: &str =
    "becket does not translate HTTP/2: add h2 to listener.alpn if the servers speak it";
const RESPONDER: &str = "responses are not fetched: listener.certificates.ocsp is a file";
const PATHS: &str = "becket does not read paths: leave them to the server behind becket, or serve a folder (backend.files)";
const TO_HTTPS: &str = "becket does not read HTTP: leave it to the server behind becket, or redirect all of a listener to https";

#[rustfmt::skip]
pub(super) const DIRECTIVES: &[Setting] = &[
    Setting::same(Own, "include|events|http|stream", ""),
    Setting::same(Own, "server", "listener"),
    Setting::partly(Own, "upstream", "backend", "no server passes all its connections to it"),
    Setting::same(Text, "user", "process.user"),
    Setting::same(Own, "worker_processes", "process.workers"),
    Setting::same(Path, "pid", "process.pid-file"),
    Setting::same(Own, "error_log", "log.file"),
    Setting::differs(Own, "access_log", "log.access", "one file for all, in becket's own format, a line for each connection"),
    Setting::lost(Own, "log_format", "log.access has one format"),
    Setting::ignored(Own, "daemon|master_process", "a service manager runs becket, which has its own supervisor"),
    Setting::ignored(Own, "load_module", "becket has no modules"),
    Setting::ignored(Own, "worker_connections|worker_rlimit_nofile", "limits.connections is what descriptors allow, and becket raises their limit itself"),
    Setting::ignored(Own, "worker_cpu_affinity", "workers are pinned: process.pin"),
    Setting::ignored(Own, "use|multi_accept|accept_mutex", "becket uses epoll, and every worker accepts"),
    Setting::ignored(Own, "types|default_type|charset", "backend.files knows types of files"),
    Setting::ignored(Own, "sendfile|tcp_nopush|tcp_nodelay|aio|types_hash_max_size|server_names_hash_bucket_size|server_names_hash_max_size|variables_hash_max_size|proxy_buffering|proxy_buffer_size|proxy_buffers|proxy_busy_buffers_size|proxy_request_buffering|client_body_buffer_size|large_client_header_buffers|ssl_buffer_size|preread_buffer_size|zone", SIZES),
    Setting::ignored(Own, "server_tokens", "becket does not name itself"),
    Setting::ignored(Own, "resolver|resolver_timeout", "names are looked up as the system does, again after each backend.resolve-interval"),
    Setting::ignored(Own, "proxy_http_version", "every byte passes as it is"),
    Setting::ignored(Own, "keepalive|keepalive_requests", "a connection to a server is one client's"),

    Setting::same(Own, "listen", "listener.bind"),
    Setting::same(Own, "server_name", "listener.route.names"),
    Setting::same(Own, "ssl", ""),
    Setting::same(Own, "ssl_certificate", "listener.certificates"),
    Setting::same(Own, "ssl_certificate_key", "listener.certificates.key"),
    Setting::same(Own, "ssl_protocols", "policy.versions"),
    Setting::same(Own, "ssl_ciphers|ssl_conf_command Ciphersuites", "policy.suites"),
    Setting::lost(Own, "ssl_conf_command", "set policy.suites, .groups and .versions"),
    Setting::same(Own, "ssl_ecdh_curve", "policy.groups"),
    Setting::ignored(Own, "ssl_prefer_server_ciphers", "becket's order of suites always counts"),
    Setting::ignored(Own, "ssl_dhparam", "there is no DHE"),
    Setting::partly(Choice(&[("off", ""), ("on", "required"), ("optional", "optional")]), "ssl_verify_client", "policy.client-certificates", "client certificates are verified, or not requested"),
    Setting::same(Path, "ssl_client_certificate", "policy.client-ca"),
    Setting::same(Path, "ssl_crl", "policy.crl"),
    Setting::ignored(Own, "ssl_trusted_certificate", "it is for OCSP"),
    Setting::differs(Own, "ssl_verify_depth", "", "6 at most: set limits.chain-intermediates"),
    Setting::same(Choice(&[("on", ""), ("off", "false")]), "ssl_session_tickets", "policy.tls12-tickets"),
    Setting::differs(Own, "ssl_session_cache", "", "200000 sessions for all: set sessions.table-entries"),
    Setting::differs(Seconds, "ssl_session_timeout", "sessions.id-lifetime", ONE_TIME),
    Setting::lost(Own, "ssl_session_ticket_key", "hosts share tickets by [cluster]: becket secret FILE"),
    Setting::lost(Own, "ssl_early_data", "policy.early-data needs versions = [\"1.3\"] and proxy-header = \"v2\""),
    Setting::lost(Own, "ssl_stapling|ssl_stapling_verify|ssl_stapling_file|ssl_stapling_responder", RESPONDER),
    Setting::lost(Own, "ssl_password_file", "take the password off the key, and keep the file private"),
    Setting::same(Own, "ssl_reject_handshake", "listener.unknown-names"),
    Setting::same(Own, "ssl_preread", "listener.mode"),
    Setting::partly(Own, "map", "listener.route", "only a map of server names that proxy_pass names makes routes"),
    Setting::lost(Own, "split_clients", "balance by weight: backend.server.weight"),
    Setting::lost(Own, "geo|allow|deny", "set listener.allow and listener.deny"),
    Setting::lost(Own, "http2", H2),
    Setting::lost(Own, "http3|quic_retry", "becket does not speak QUIC"),
    Setting::same(Own, "set_real_ip_from", "listener.trusted-networks"),
    Setting::ignored(Own, "real_ip_header", "it is the PROXY header"),
    Setting::ignored(Own, "limit_conn_zone", "admission.connections-per-source has its own table"),
    Setting::partly(Own, "limit_conn", "admission.connections-per-source", "connections are limited by address over all listeners: set admission.connections-per-source"),
    Setting::lost(Own, "limit_req|limit_req_zone", "limit handshakes: admission.source-full-handshakes-per-second"),

    Setting::same(Own, "proxy_pass", "listener.backend"),
    Setting::same(Choice(&[("off", ""), ("on", "v1")]), "proxy_protocol", "backend.proxy-header"),
    Setting::differs(Seconds, "proxy_timeout|proxy_read_timeout|proxy_send_timeout|keepalive_timeout", "timeouts.idle", ONE_TIME),
    Setting::differs(Seconds, "proxy_connect_timeout", "timeouts.connect", ONE_TIME),
    Setting::same(Seconds, "ssl_handshake_timeout", "timeouts.handshake"),
    Setting::same(Own, "proxy_ssl", "backend.tls"),
    Setting::same(Own, "proxy_ssl_verify", "backend.tls.verify"),
    Setting::same(Path, "proxy_ssl_trusted_certificate", "backend.tls.ca"),
    Setting::same(Path, "proxy_ssl_crl", "backend.tls.crl"),
    Setting::same(Own, "proxy_ssl_name", "backend.tls.name"),
    Setting::same(Own, "proxy_ssl_server_name", "backend.tls.sni"),
    Setting::same(Own, "proxy_ssl_certificate|proxy_ssl_certificate_key", "backend.tls.client-certificate"),
    Setting::ignored(Own, "proxy_ssl_session_reuse", "sessions with servers always resume"),
    Setting::lost(Own, "proxy_set_header", CLIENT),
    Setting::differs(Own, "proxy_next_upstream", "", "another server is tried until one is connected"),
    Setting::lost(Own, "proxy_bind", "set backend.source"),
    Setting::partly(Own, "location", "", PATHS),
    Setting::partly(Own, "return", "listener.redirect", TO_HTTPS),
    Setting::lost(Own, "if|rewrite|add_header|gzip|gzip_types|gzip_vary|gzip_proxied|gzip_comp_level|gzip_min_length|client_max_body_size|auth_basic|auth_basic_user_file|proxy_redirect|proxy_cache|proxy_cache_path|fastcgi_pass|uwsgi_pass|grpc_pass", HTTP),
    Setting::lost(Own, "root|alias|index|try_files|error_page|expires|gzip_static|autoindex", FILES),

    Setting::same(Const("least-connections"), "least_conn", "backend.balance"),
    Setting::same(Const("source-hash"), "ip_hash", "backend.balance"),
    Setting::same(Const("two-random-choices"), "random", "backend.balance"),
    Setting::partly(Choice(HASHES), "hash", "backend.balance", "round-robin instead: becket knows the client's address and server name"),
];

#[rustfmt::skip]
const HASHES: &[(&str, &str)] = &[
    ("$remote_addr", "source-hash"), ("$remote_addr consistent", "source-hash"),
    ("$binary_remote_addr", "source-hash"), ("$binary_remote_addr consistent", "source-hash"),
    ("$ssl_server_name", "sni-hash"), ("$ssl_server_name consistent", "sni-hash"),
    ("$ssl_preread_server_name", "sni-hash"), ("$ssl_preread_server_name consistent", "sni-hash"),
];

#[rustfmt::skip]
pub(super) const LISTEN: &[Setting] = &[
    Setting::same(Mark, "ssl", "listener.tls"),
    Setting::same(Mark, "default_server|default", "listener.backend"),
    Setting::lost(Mark, "http2", H2),
    Setting::lost(Mark, "quic|udp", "becket serves TCP"),
    Setting::differs(Const("any"), "proxy_protocol", "listener.accept-proxy", "only from listener.trusted-networks (set_real_ip_from, or everywhere)"),
    Setting::same(Number, "backlog", "listener.backlog"),
    Setting::same(Number, "fastopen", "listener.fast-open"),
    Setting::partly(Choice(&[("off", ""), ("on", "2h")]), "so_keepalive", "listener.keepalive", "set listener.keepalive"),
    Setting::ignored(Mark, "reuseport|deferred|bind", "every worker listens, on every address, for clients that send something"),
    Setting::ignored(Own, "ipv6only", "an address without a host is both families"),
];

#[rustfmt::skip]
pub(super) const POOL: &[Setting] = &[
    Setting::same(Number, "weight", "backend.server.weight"),
    Setting::differs(Number, "max_conns", "backend.server.maxconn", "over all workers, and further clients wait"),
    Setting::same(Flag, "backup", "backend.server.backup"),
    Setting::same(Flag, "down", "backend.server.disabled"),
    Setting::same(Number, "max_fails", "backend.health.passive-failures"),
    Setting::same(Seconds, "fail_timeout", "backend.health.passive-pause"),
    Setting::same(Seconds, "slow_start", "backend.health.slow-start"),
    Setting::ignored(Mark, "resolve", "names are looked up again after each backend.resolve-interval"),
];
