//! The part of `prepare` that makes backends: addresses are parsed.
//!
//! Names are looked up while becket runs (`backend/probe.rs`): a server without an address gets no connections, and
//! one that had some keeps them over a reload. `becket check` resolves them here. A name may have several addresses;
//! they are kept in the resolver's order.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::error::Problem;
use super::file::{FileBackend, FileServer, Scalar};
use super::prepare::Draft;
use super::read::labels;
use super::values::{self, Address};
use super::{Backend, QueuePlace, Server, ServerAddress, StickBy};

impl Draft<'_> {
    /// All backends, in the order of the file.
    pub(super) fn backends(&mut self) -> Vec<Arc<Backend>> {
        let file = self.file;
        let names = || file.backend.iter().map(|backend| backend.name.as_deref());
        let paths = labels(names())
            .into_iter()
            .map(|label| format!("backend[{label}]"));
        let paths: Vec<String> = paths.collect();
        self.check_names(paths.iter().cloned().zip(names()));
        if file.backend.is_empty() {
            self.report.error(
                Problem::new("backend", "missing").accepted("at least one backend with a server"),
            );
        }
        let sections = file.backend.iter().zip(&paths);
        sections
            .map(|(backend, path)| Arc::new(self.backend(path, backend)))
            .collect()
    }

    fn backend(&mut self, path: &str, backend: &FileBackend) -> Backend {
        if backend.server.is_empty() {
            let problem = Problem::new(format!("{path}.server"), "missing");
            self.report
                .error(problem.accepted("at least one server with an address"));
        }
        let resolve_interval = self.resolve_interval(path, &backend.resolve_interval);
        let mut servers: Vec<Server> = Vec::with_capacity(backend.server.len());
        for (index, server) in backend.server.iter().enumerate() {
            let place = &format!("{path}.server[{index}]");
            let path = format!("{place}.address");
            let Some(text) = server.address.as_deref() else {
                let problem = Problem::new(path, "missing");
                self.report
                    .error(problem.accepted("HOST:PORT, [V6]:PORT or /unix/path"));
                continue;
            };
            if servers.iter().any(|other| *other.name == *text) {
                let fault = "an earlier server of this backend has this address";
                self.report.error(
                    Problem::new(path, fault)
                        .text(text)
                        .accepted("each server once"),
                );
                continue;
            }
            let addresses = self.server_addresses(&path, text);
            servers.push(self.server(place, (text, addresses), server));
        }
        self.check_sticking(path, backend);
        let sticks = backend.stick != StickBy::None;
        let entries = self.whole(
            &format!("{path}.stick-entries"),
            backend.stick_entries,
            1..=MOST_STICK_ENTRIES,
        );
        Backend {
            name: backend.name.clone().unwrap_or_default(),
            tls: self.onward(path, backend.tls.as_ref(), &servers),
            servers,
            proxy_header: backend.proxy_header,
            proxy_tlvs: self.proxy_tlvs(path, backend),
            balance: backend.balance,
            queue_length: self.whole(
                &format!("{path}.queue-length"),
                backend.queue_length,
                0..=MOST_WAITING,
            ) as usize,
            queue_timeout: self.queue_timeout(path, backend.queue_timeout.as_ref()),
            queue: backend.queue,
            abort_on_half_close: backend.abort_on_half_close,
            retries: self.whole(
                &format!("{path}.retries"),
                backend.retries,
                0..=MOST_RETRIES,
            ),
            on_down: backend.on_down,
            stick: backend.stick,
            stick_entries: if sticks { entries as usize } else { 0 },
            stick_lifetime: self.duration(
                &format!("{path}.stick-lifetime"),
                &backend.stick_lifetime,
                STICK_LIFETIME,
            ),
            health: self.health(path, &backend.health),
            resolve_interval,
            source: self.sources(path, &backend.source),
        }
    }

    /// A ticket is opened by the handshake, so before it nobody knows which session is resumed.
    fn check_sticking(&mut self, path: &str, backend: &FileBackend) {
        if backend.stick == StickBy::TlsSession && backend.queue == QueuePlace::BeforeHandshake {
            let fault = "the session is not known before the handshake";
            let problem = Problem::new(format!("{path}.stick"), fault).text("tls-session");
            self.report
                .error(problem.accepted("none or source, or queue = \"after-handshake\""));
        }
    }

    fn queue_timeout(&mut self, path: &str, value: Option<&Scalar>) -> Duration {
        let path = format!("{path}.queue-timeout");
        match value {
            Some(value) => self.duration(&path, value, WAIT),
            None => {
                // What is wrong with it is said where it is.
                let connect = &self.file.timeouts.connect;
                values::duration(&connect.0).unwrap_or_default()
            }
        }
    }

    fn server(
        &mut self,
        path: &str,
        (name, addresses): (&str, Vec<ServerAddress>),
        server: &FileServer,
    ) -> Server {
        let most = |draft: &mut Self, key: &str, value: Option<u64>| {
            let path = format!("{path}.{key}");
            value.map(|value| draft.whole(&path, value, 1..=MOST_CONNECTIONS))
        };
        let maxconn = most(self, "maxconn", server.maxconn);
        let minconn = most(self, "minconn", server.minconn);
        if let Some(least) = minconn
            && maxconn.is_none_or(|most| least > most)
        {
            let fault = "more than the server may have at most";
            let problem = Problem::new(format!("{path}.minconn"), fault).value(least.to_string());
            self.report
                .error(problem.accepted("at most maxconn, which must be there"));
        }
        let node = server
            .node
            .map(|node| self.whole(&format!("{path}.node"), node, 0..=u32::from(u16::MAX)));
        Server {
            name: name.into(),
            addresses,
            weight: self.whole(&format!("{path}.weight"), server.weight, 0..=MOST_WEIGHT),
            maxconn,
            minconn,
            backup: server.backup,
            disabled: server.disabled,
            // In range, or an error by now.
            node: node.map(|node| node as u16),
        }
    }

    /// A whole number in a range.
    fn whole(&mut self, path: &str, value: u64, range: RangeInclusive<u32>) -> u32 {
        match u32::try_from(value)
            .ok()
            .filter(|value| range.contains(value))
        {
            Some(value) => value,
            None => {
                let accepted = format!("{} to {}", range.start(), range.end());
                let problem = Problem::new(path, "not in range").value(value.to_string());
                self.report.error(problem.accepted(accepted));
                *range.start()
            }
        }
    }

    /// Where a server is now, as far as it is known.
    fn server_addresses(&mut self, path: &str, text: &str) -> Vec<ServerAddress> {
        let parsed = values::server_address(text);
        let found = match self.report.take(path, text, parsed) {
            None => return Vec::new(),
            Some(Address::Unix(socket)) => return vec![ServerAddress::Unix(socket)],
            Some(address) => self.whereabouts(path, text, &address),
        };
        let count = found.len();
        if count > MOST_ADDRESSES {
            let fault = format!("the name has {count} addresses; {MOST_ADDRESSES} are used");
            self.report.warn(Problem::new(path, fault).text(text));
        }
        let used = found.into_iter().take(MOST_ADDRESSES);
        used.map(ServerAddress::Tcp).collect()
    }
}

/// Addresses of a server that are used: some more than a client would be led to, and a DNS server may say thousands.
pub const MOST_ADDRESSES: usize = 64;
/// As HAProxy: enough steps for any pair of machines.
const MOST_WEIGHT: u32 = 256;
/// More than a process has descriptors.
const MOST_CONNECTIONS: u32 = 100_000_000;
/// 400 MB and more of clients that wait.
const MOST_WAITING: u32 = 1_000_000;
/// Each may take `timeouts.connect`; nobody waits for more.
const MOST_RETRIES: u32 = 100;
/// Some 6 GB.
const MOST_STICK_ENTRIES: u32 = 100_000_000;
const WAIT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);
const STICK_LIFETIME: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(7 * 86_400);
