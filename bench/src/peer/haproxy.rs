//! HAProxy's configuration, in TCP mode.

use super::{BACKLOG, SESSIONS, Site, groups, suite_names};

pub(super) fn args(file: &str) -> Vec<String> {
    ["-db", "-f", file].map(str::to_owned).to_vec()
}

pub(super) fn configuration(site: &Site<'_>) -> String {
    let (old, new) = suite_names(&site.settings.suite);
    let limit = match site.settings.maxconn {
        0 => String::new(),
        limit => format!(" maxconn {limit}"),
    };
    format!(
        "global
  maxconn {connections}
  nbthread {workers}
  tune.ssl.cachesize {SESSIONS}
defaults
  mode tcp
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  timeout queue 60s
frontend bench
  bind {address} ssl crt {certificate} ssl-min-ver TLSv{tls} ssl-max-ver TLSv{tls} ciphers {old} ciphersuites {new} curves {groups} backlog {BACKLOG}
  default_backend bench
backend bench
  server bench {backend}{limit}
",
        connections = site.connections,
        workers = site.settings.workers,
        address = site.address,
        certificate = site.certificate.display(),
        tls = site.settings.tls,
        groups = groups(site.settings),
        backend = site.backend,
    )
}

pub(super) fn version(said: &str) -> (String, String) {
    let version = said.lines().find_map(|line| {
        line.strip_prefix("HAProxy version ")?
            .split_ascii_whitespace()
            .next()
    });
    let library = said
        .lines()
        .find_map(|line| line.strip_prefix("Running on ")?.split_once(" version : "))
        .map(|(_, rest)| {
            rest.split_ascii_whitespace()
                .take(2)
                .collect::<Vec<_>>()
                .join(" ")
        });
    (
        version.unwrap_or("unknown").to_owned(),
        library.unwrap_or_else(|| "unknown".to_owned()),
    )
}
