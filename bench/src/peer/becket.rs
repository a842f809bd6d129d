//! becket's configuration.

use super::{BACKLOG, SESSIONS, Site};

pub(super) fn args(file: &str) -> Vec<String> {
    ["run", "--config", file].map(str::to_owned).to_vec()
}

pub(super) fn configuration(site: &Site<'_>) -> String {
    let suite = match site.settings.suite.as_str() {
        "aes256" => "AES-256-GCM",
        "chacha20" => "CHACHA20-POLY1305",
        _ => "AES-128-GCM",
    };
    let groups = match site.settings.group.as_str() {
        "x25519mlkem768" => r#""X25519MLKEM768", "X25519", "P-256", "P-384""#,
        _ => r#""X25519", "P-256", "P-384""#,
    };
    let limit = match site.settings.maxconn {
        0 => String::new(),
        limit => format!("maxconn = {limit}\n"),
    };
    let admission = match site.settings.full_handshakes {
        0 => String::new(),
        rate => format!(
            "[admission]\nfull-handshakes-per-second = {rate}\nburst = {}\n\n",
            rate.div_ceil(10)
        ),
    };
    format!(
        r#"[[listener]]
name = "bench"
bind = ["{address}"]
certificates = ["{certificate}"]
backend = "bench"
backlog = {BACKLOG}

[[policy]]
name = "bench"
versions = ["{tls}"]
suites = ["{suite}"]
groups = [{groups}]

[[backend]]
name = "bench"
queue-timeout = "60s"

[[backend.server]]
address = "{backend}"
{limit}
[sessions]
table-entries = {SESSIONS}

[limits]
connections = {connections}

{admission}[process]
workers = {workers}

[log]
level = "warn"
{extra}"#,
        address = site.address,
        certificate = site.certificate.display(),
        tls = site.settings.tls,
        backend = site.backend,
        connections = site.connections,
        workers = site.settings.workers,
        extra = site.extra,
    )
}

pub(super) fn version(said: &str) -> (String, String) {
    let version = said.split_ascii_whitespace().nth(1).unwrap_or("unknown");
    (version.to_owned(), "rustls with AWS-LC".to_owned())
}
