//! Generates the configuration of HAProxy: TCP mode, or HTTP mode for the article on `maxconn`, in which clients wait
//! idle.
//!
//! The frontend and the backend need different names since HAProxy 3.3.

use std::net::SocketAddr;

use super::site::{BACKLOG, SESSIONS, Site, first_words, groups, suite_names, words_after};
use crate::scenario::{EARLY, Front};

pub(super) fn configuration(site: &Site<'_>) -> String {
    let (old, new) = suite_names(&site.settings.suite);
    let limit = match site.settings.maxconn {
        0 => String::new(),
        limit => format!(" maxconn {limit}"),
    };
    let bind = match site.settings.front {
        Front::Passthrough => format!("bind {} backlog {BACKLOG}\n  {PEEK}", site.address),
        Front::Plain => format!("bind {} backlog {BACKLOG}", site.address),
        Front::Terminate => format!(
            "bind {} ssl crt {} ssl-min-ver TLSv{tls} ssl-max-ver TLSv{tls} ciphers {old} ciphersuites {new} curves {} backlog {BACKLOG}{early}",
            site.address,
            site.certificate.display(),
            groups(site.settings),
            tls = site.settings.tls,
            early = match site.settings.resume.as_str() {
                EARLY => " allow-0rtt",
                _ => "",
            },
        ),
    };
    let server = |(index, address): (usize, &SocketAddr)| {
        format!("  server bench{index} {address}{limit}\n")
    };
    let servers: String = site.backends().iter().enumerate().map(server).collect();
    let splice = match site.settings.front {
        Front::Terminate => "",
        Front::Passthrough | Front::Plain => "\n  option splice-auto",
    };
    let mode = if site.settings.idle_clients {
        "mode http\n  option http-server-close"
    } else {
        "mode tcp"
    };
    format!(
        "global
  maxconn {connections}
  nbthread {workers}
  tune.ssl.cachesize {SESSIONS}
defaults
  {mode}{splice}
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  timeout queue 60s
frontend bench
  {bind}
  default_backend servers
backend servers
{servers}",
        connections = site.connections,
        workers = site.settings.workers,
    )
}

pub(super) fn version(said: &str) -> (Option<String>, Option<String>) {
    let version = words_after(said, "HAProxy version ", 1);
    let running = said
        .lines()
        .find_map(|line| line.strip_prefix("Running on ")?.split_once(" version : "));
    let library = running.map(|(_, rest)| first_words(rest, 2));
    (version, library)
}

/// Rules for passthrough: wait for the ClientHello and route by its server name.
const PEEK: &str = "tcp-request inspect-delay 5s
  tcp-request content accept if { req.ssl_hello_type 1 }
  use_backend servers if { req.ssl_sni -i bench.example.org }";
