//! The servers of one backend, as one worker sees them.
//!
//! Round robin over the servers; the addresses of one server are tried in order. Each worker
//! turns its own wheel, started at its own place, so that nothing is shared and a few workers
//! still spread evenly.

use std::cell::Cell;
use std::sync::Arc;

use crate::config::{Backend, ProxyVersion, ServerAddress};
use crate::tls::onward::ServerTls;

/// One worker's view of a backend.
#[derive(Debug)]
pub struct Pool {
    backend: Arc<Backend>,
    tls: Option<ServerTls>,
    next: Cell<usize>,
}

/// A place in the order in which one connection tries servers and their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    first: usize,
    tried: usize,
}

/// An address to connect to.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The server's configured name.
    pub server: &'a Arc<str>,
    /// One of its addresses.
    pub address: &'a ServerAddress,
}

impl Pool {
    /// Starts the wheel at `start`, such as the worker's number.
    pub fn new(backend: Arc<Backend>, start: usize) -> Self {
        Self {
            tls: ServerTls::new(&backend),
            backend,
            next: Cell::new(start),
        }
    }

    /// Turns the wheel for a new connection.
    pub fn begin(&self) -> Attempt {
        let first = self.next.get();
        self.next.set(first.wrapping_add(1));
        Attempt { first, tried: 0 }
    }

    /// The address to try, or nothing when all were tried.
    pub fn target(&self, attempt: Attempt) -> Option<Target<'_>> {
        let servers = &self.backend.servers;
        let start = attempt.first % servers.len().max(1);
        let (before, after) = servers.split_at_checked(start)?;
        after
            .iter()
            .chain(before)
            .flat_map(|server| {
                let target = |address| Target {
                    server: &server.name,
                    address,
                };
                server.addresses.iter().map(target)
            })
            .nth(attempt.tried)
            .filter(|_| attempt.tried < MOST_ATTEMPTS)
    }

    /// The backend's configuration name.
    pub fn name(&self) -> &str {
        &self.backend.name
    }

    /// What it takes to open TLS to the servers; `None` when they speak plain TCP.
    pub fn tls(&self) -> Option<&ServerTls> {
        self.tls.as_ref()
    }

    /// The PROXY header that servers expect.
    pub fn proxy_header(&self) -> Option<ProxyVersion> {
        self.backend.proxy_header
    }
}

impl Attempt {
    /// The address failed: go to the next.
    pub fn failed(&mut self) {
        self.tried += 1;
    }
}

/// A client waits for `timeouts.connect` at each; four dead servers in a row are an outage.
const MOST_ATTEMPTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Server;

    fn pool(servers: &[&[&str]]) -> Pool {
        let server = |addresses: &&[&str]| Server {
            name: addresses[0].into(),
            addresses: addresses
                .iter()
                .map(|path| ServerAddress::Unix(path.into()))
                .collect(),
        };
        let backend = Backend {
            name: "app".into(),
            servers: servers.iter().map(server).collect(),
            proxy_header: None,
            tls: None,
        };
        Pool::new(Arc::new(backend), 0)
    }

    fn order(pool: &Pool) -> Vec<String> {
        let mut attempt = pool.begin();
        let mut order = Vec::new();
        while let Some(target) = pool.target(attempt) {
            order.push(format!("{:?}", target.address));
            attempt.failed();
        }
        order
    }

    #[test]
    fn each_connection_starts_at_the_next_server_and_tries_all() {
        let pool = pool(&[&["a1", "a2"], &["b"]]);
        let a_first = [r#"Unix("a1")"#, r#"Unix("a2")"#, r#"Unix("b")"#];
        let b_first = [r#"Unix("b")"#, r#"Unix("a1")"#, r#"Unix("a2")"#];
        assert_eq!(order(&pool), a_first);
        assert_eq!(order(&pool), b_first);
        assert_eq!(order(&pool), a_first);
    }

    #[test]
    fn attempts_are_bounded() {
        let pool = pool(&[&["1", "2", "3", "4", "5", "6"]]);
        assert_eq!(order(&pool).len(), MOST_ATTEMPTS);
    }

    #[test]
    fn a_pool_without_servers_has_no_target() {
        assert!(order(&pool(&[])).is_empty());
    }
}
