//! `/status`: the running server as one JSON object.
//!
//! For programs and for people with `jq`; numbers over time belong to `/metrics`. [`Status`] is built
//! from a [`View`] in one go and serialized as it is, so its fields are the names in the JSON; they
//! are added to, never renamed. Secrets are not in it: of a policy it shows the digest.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::backends::BackendStatus;
use super::certificates::Certificate;
use super::view::{Admitted, Condition, Occupancy, Reload, TicketKeys, View};
use crate::cluster::status::ClusterStatus;
use crate::cluster::stud::reception::StudStatus;
use crate::config::{ClientAuth, Config, Listener, Policy, Route};
use crate::log::Timestamp;
use crate::metrics::{Counters, HandshakeClass};

/// The whole object.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Version of becket.
    pub version: &'static str,
    /// `serving` or `draining`.
    pub state: &'static str,
    /// The time of this reading.
    pub now: Timestamp,
    /// When the process started.
    pub started: Timestamp,
    /// Since then, by the monotonic clock.
    pub uptime_seconds: u64,
    /// Worker threads.
    pub workers: usize,
    /// Sums over all workers.
    pub totals: Totals,
    /// HelloRouter doors, as configured.
    pub listeners: Vec<ListenerStatus>,
    /// Pools, and how their servers are.
    pub backends: Vec<BackendStatus>,
    /// Certificates by listener and name.
    pub certificates: Vec<Certificate>,
    /// The last reload; `null` before the first.
    pub reload: Option<Reload>,
    /// The table of TLS 1.2 sessions.
    pub sessions: Occupancy,
    /// The ticket keys.
    pub tickets: TicketStatus,
    /// Peers and what was exchanged with them; `null` when sessions are not replicated.
    pub cluster: Option<ClusterStatus>,
    /// Sessions of stud and hitch; `null` where they are not received.
    pub stud: Option<StudStatus>,
    /// Who is let in when more want to than can be served.
    pub admission: Admitted,
}

/// Sums over all workers.
#[derive(Debug, Default, Serialize)]
pub struct Totals {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open.
    pub connections: u64,
    /// Handshakes begun and not ended yet.
    pub handshakes_in_flight: u64,
    /// Full handshakes completed.
    pub handshakes_full: u64,
    /// Resumed handshakes completed.
    pub handshakes_resumed: u64,
    /// Ciphertext received from clients.
    pub client_bytes_in: u64,
    /// Ciphertext sent to clients.
    pub client_bytes_out: u64,
    /// Plaintext received from servers.
    pub server_bytes_in: u64,
    /// Plaintext sent to servers.
    pub server_bytes_out: u64,
}

/// One listener.
#[derive(Debug, Serialize)]
pub struct ListenerStatus {
    /// Configuration name.
    pub name: String,
    /// Addresses.
    pub bind: Vec<String>,
    /// Routes in the order in which they are tried.
    pub routes: Vec<RouteStatus>,
}

/// One route.
#[derive(Debug, Serialize)]
pub struct RouteStatus {
    /// Server names; empty is any.
    pub names: Vec<String>,
    /// Protocols, most preferred first; empty is no ALPN.
    pub alpn: Vec<String>,
    /// Configuration name of the backend.
    pub backend: String,
    /// TLS parameters.
    pub policy: PolicyStatus,
}

/// One policy.
#[derive(Debug, Serialize)]
pub struct PolicyStatus {
    /// Configuration name.
    pub name: String,
    /// SHA-256 of what makes sessions exchangeable, in hex.
    pub digest: String,
    /// Versions allowed.
    pub versions: Vec<&'static str>,
    /// Suites, most preferred first.
    pub suites: Vec<String>,
    /// Groups that are accepted.
    pub groups: Vec<String>,
    /// `off`, `optional` or `required`.
    pub client_auth: &'static str,
}

/// Where the rotation of ticket keys stands.
#[derive(Debug, Serialize)]
pub struct TicketStatus {
    /// Number of the epoch whose key seals new tickets.
    pub epoch: u64,
    /// When it began.
    pub epoch_started: Timestamp,
    /// Until the next one.
    pub next_rotation_seconds: u64,
    /// Number of this node in its cluster; `null` when it is alone.
    pub node: Option<u16>,
    /// Ids of the secrets: the first one seals, all of them open. Of a host that is alone it is
    /// drawn at the start.
    pub secrets: Vec<String>,
}

impl Status {
    /// Reads a running server.
    pub fn of(view: &dyn View) -> Self {
        let config = view.config();
        let counters = view.counters();
        let condition = view.condition();
        let states = view.backends();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            state: state(&condition),
            now: condition.now,
            started: condition.started,
            uptime_seconds: condition.uptime.as_secs(),
            workers: counters.len(),
            totals: Totals::of(counters.iter().map(|c| &**c)),
            listeners: config
                .listeners
                .iter()
                .map(|l| listener(&config, l))
                .collect(),
            backends: config
                .backends
                .iter()
                .map(|backend| BackendStatus::of(backend, &states))
                .collect(),
            certificates: condition.certificates.to_vec(),
            reload: condition.reload,
            sessions: condition.sessions,
            tickets: TicketStatus::of(&condition.tickets),
            cluster: condition.cluster,
            stud: condition.stud,
            admission: condition.admission,
        }
    }
}

impl TicketStatus {
    fn of(keys: &TicketKeys) -> Self {
        let standing = &keys.standing;
        let ids = standing.secrets.iter();
        Self {
            epoch: standing.epoch,
            epoch_started: Timestamp::from_unix(Duration::from_secs(standing.started.0.into())),
            next_rotation_seconds: keys.next_rotation.as_secs(),
            node: Some(standing.node.0).filter(|node| *node > 0),
            secrets: ids.map(|id| format!("{:08x}", id.0)).collect(),
        }
    }
}

impl Totals {
    /// Sums counters. What is a difference of two counters never falls below zero.
    pub fn of<'a>(workers: impl Iterator<Item = &'a Counters>) -> Self {
        let mut sum = Self::default();
        for worker in workers {
            // Ends first: one that is counted in between must not outnumber the beginnings.
            let (closed, ended) = (worker.closed.total(), worker.handshakes_ended.value());
            let (accepted, begun) = (worker.accepted.value(), worker.handshakes_begun.value());
            sum.accepted += accepted;
            sum.connections += accepted.saturating_sub(closed);
            sum.handshakes_in_flight += begun.saturating_sub(ended);
            for (index, count) in worker.handshakes.iter().enumerate() {
                match HandshakeClass::at(index).resumed {
                    true => sum.handshakes_resumed += count.value(),
                    false => sum.handshakes_full += count.value(),
                }
            }
            sum.client_bytes_in += worker.client_bytes_in.value();
            sum.client_bytes_out += worker.client_bytes_out.value();
            sum.server_bytes_in += worker.server_bytes_in.value();
            sum.server_bytes_out += worker.server_bytes_out.value();
        }
        sum
    }
}

fn state(condition: &Condition) -> &'static str {
    if condition.draining {
        "draining"
    } else {
        "serving"
    }
}

fn listener(config: &Config, listener: &Listener) -> ListenerStatus {
    ListenerStatus {
        name: listener.name.to_string(),
        bind: listener.bind.iter().map(ToString::to_string).collect(),
        routes: listener.routes.iter().map(|r| route(config, r)).collect(),
    }
}

fn route(config: &Config, route: &Route) -> RouteStatus {
    let backend = config.backends.get(route.backend);
    let alpn = route.alpn.iter();
    RouteStatus {
        names: route.names.iter().map(ToString::to_string).collect(),
        alpn: alpn
            .map(|p| String::from_utf8_lossy(p).into_owned())
            .collect(),
        backend: backend.map(|b| b.name.to_string()).unwrap_or_default(),
        policy: policy(&route.policy),
    }
}

fn policy(policy: &Policy) -> PolicyStatus {
    let versions = [
        (policy.versions.tls13, "1.3"),
        (policy.versions.tls12, "1.2"),
    ];
    let suites = policy.suites.iter().map(|s| format!("{:?}", s.suite()));
    let groups = policy.groups.iter().map(|g| format!("{:?}", g.name()));
    PolicyStatus {
        name: policy.name.to_string(),
        digest: hex(&policy.digest),
        versions: versions
            .into_iter()
            .filter_map(|(on, name)| on.then_some(name))
            .collect(),
        suites: suites.collect(),
        groups: groups.collect(),
        client_auth: match policy.client_auth {
            ClientAuth::Off => "off",
            ClientAuth::Optional(_) => "optional",
            ClientAuth::Required(_) => "required",
        },
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a `String` does not fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_object_tells_of_listeners_policies_backends_and_certificates() {
        let counters = Arc::new(Counters::default());
        counters.accepted.add(3);
        let view = Sample::new(vec![counters]);
        let status = serde_json::to_value(Status::of(&view)).unwrap();
        assert_eq!(status["state"], "serving");
        assert_eq!(status["workers"], 1);
        assert_eq!(status["totals"]["connections"], 3);
        assert_eq!(status["listeners"][0]["name"], "web");
        let route = &status["listeners"][0]["routes"][0];
        assert_eq!(route["alpn"][0], "h2");
        assert_eq!(route["names"][0], "*.example.net");
        assert_eq!(route["backend"], "app");
        assert_eq!(route["policy"]["digest"], "ab".repeat(32));
        assert_eq!(route["policy"]["versions"][1], "1.2");
        assert_eq!(
            status["backends"][0]["servers"][0]["addresses"][0],
            "127.0.0.1:8080"
        );
        let server = &status["backends"][0]["servers"][0];
        assert_eq!(
            (&server["state"], &server["in_use"]),
            (&"passing".into(), &0.into())
        );
        assert_eq!(status["backends"][0]["balance"], "round-robin");
        assert_eq!(
            status["certificates"][0]["not_after"],
            "2040-01-01T00:00:00.000000Z"
        );
        assert_eq!(status["reload"]["errors"].as_array().unwrap().len(), 1);
        assert_eq!(status["tickets"]["next_rotation_seconds"], 7200);
        assert_eq!(status["tickets"]["node"], 2);
        assert_eq!(status["cluster"]["peers"][0]["node"], 1);
        assert_eq!(status["tickets"]["secrets"][0], "0a0b0c0d");
    }

    #[test]
    fn totals_sum_the_workers_and_never_fall_below_zero() {
        let workers = [Counters::default(), Counters::default()];
        workers[0].handshakes[0].add(1);
        workers[1].handshakes[1].add(2);
        workers[1].handshakes[2].add(4);
        workers[0].handshakes_ended.add(1);
        let totals = Totals::of(workers.iter());
        assert_eq!((totals.handshakes_full, totals.handshakes_resumed), (5, 2));
        assert_eq!(totals.handshakes_in_flight, 0);
    }
}
