//! Generates the configuration of becket.

use std::net::SocketAddr;

use super::site::{BACKLOG, SESSIONS, Site};
use crate::bundles::CACHE;
use crate::scenario::{EARLY, Files, Front};

pub(super) fn configuration(site: &Site<'_>) -> String {
    let limit = match site.settings.maxconn {
        0 => String::new(),
        limit => format!("maxconn = {limit}\n"),
    };
    let reclaim = if site.settings.idle_clients {
        "idle-reclaim = \"1s\"\n"
    } else {
        ""
    };
    let admission = match site.settings.full_handshakes {
        0 => String::new(),
        rate => format!(
            "full-handshakes-per-second = {rate}\nburst = {}\n",
            rate.div_ceil(10)
        ),
    };
    let crypto_threads = match site.settings.crypto_threads {
        None => String::new(),
        Some(count) => format!("crypto-threads = {count}\n"),
    };
    let rsa_batch = match site.settings.rsa_batch.as_str() {
        "off" => String::new(),
        choice => format!("rsa-batch = \"{choice}\"\n"),
    };
    let cache = match site.settings.certificates {
        1 => String::new(),
        _ => format!(
            "certificate-cache = \"{}\"\n",
            site.directory.join(CACHE).display()
        ),
    };
    let pipes = match site.settings.pipes {
        None => String::new(),
        Some(count) => format!("pipes = {count}\n"),
    };
    let server =
        |address: &SocketAddr| format!("[[backend.server]]\naddress = \"{address}\"\n{limit}");
    let behind = match site.settings.files {
        Files::None => {
            let servers: String = site.backends().iter().map(server).collect();
            let connections = site.connections;
            format!("queue-length = {connections}\nqueue-timeout = \"5m\"\n{reclaim}\n{servers}")
        }
        _ => format!("files = {{ root = \"{}\" }}\n", site.files().display()),
    };
    format!(
        r#"[[listener]]
name = "bench"
bind = ["{address}"]
backend = "bench"
backlog = {BACKLOG}
{front}
[[backend]]
name = "bench"
{behind}
[sessions]
table-entries = {SESSIONS}

[limits]
connections = {connections}
{pipes}
[admission]
{HALF_OPEN}{admission}
[process]
workers = {workers}
{crypto_threads}{rsa_batch}{cache}
[log]
level = "warn"
{extra}"#,
        address = site.address,
        front = front(site),
        connections = site.connections,
        workers = site.settings.workers,
        extra = site.extra,
    )
}

fn front(site: &Site<'_>) -> String {
    let suite = match site.settings.suite.as_str() {
        "aes256" => "AES-256-GCM",
        "chacha20" => "CHACHA20-POLY1305",
        _ => "AES-128-GCM",
    };
    let groups = match site.settings.group.as_str() {
        "x25519mlkem768" => r#""X25519MLKEM768", "X25519", "P-256", "P-384""#,
        _ => r#""X25519", "P-256", "P-384""#,
    };
    let kernel_tls = if site.settings.ktls {
        "kernel-tls = \"bulk\"\n"
    } else {
        ""
    };
    let early = match site.settings.resume.as_str() {
        EARLY => "early-data = \"17KiB\"\n",
        _ => "",
    };
    match site.settings.front {
        Front::Passthrough => "mode = \"passthrough\"\n".to_owned(),
        Front::Plain => "tls = false\n".to_owned(),
        Front::Terminate => format!(
            "{kernel_tls}certificates = [\"{}\"]\n\n[[policy]]\nname = \"bench\"\nversions = [\"{}\"]\nsuites = [\"{suite}\"]\ngroups = [{groups}]\n{early}",
            site.certificate.display(),
            site.settings.tls,
        ),
    }
}

/// Raises the limit on unfinished handshakes per source address to the total limit, because the bench's clients use few
/// addresses. Peers other than becket have no such limit.
pub(super) const HALF_OPEN: &str = "half-open-per-source = 10000\n";

pub(super) fn version(said: &str) -> (Option<String>, Option<String>) {
    let version = said.split_ascii_whitespace().nth(1).map(str::to_owned);
    (version, Some("rustls with AWS-LC".to_owned()))
}
