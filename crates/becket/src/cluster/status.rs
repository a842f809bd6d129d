//! What `/status` and `/metrics` show of the cluster: everything at one moment, as plain values.
//!
//! Serialized as it is, so its fields are the names in the JSON; they are added to, never renamed.
//! Keys, states and session IDs are not in it. [`ClusterStatus::faults`] says in words what
//! somebody has to mend; the rest is numbers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use becket_proto::replica::{self, Cause, PeerState, RefusedJoin, Traffic, WarmUp};
use becket_proto::ticket::SecretId;
use serde::Serialize;

use super::directory::Directory;
use super::node::Inner;
use super::shelf::Numbers;
use crate::clock::Now;

/// The whole object.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterStatus {
    /// Our number among the nodes.
    pub node: u16,
    /// Names this process, in hex: drawn at the start.
    pub boot: String,
    /// Where datagrams of peers arrive; absent when only tickets are shared.
    pub listen: Option<SocketAddr>,
    /// The group that is called for further peers.
    pub multicast: Option<SocketAddr>,
    /// Ids of the secrets that let peers in, in hex; the first one is joined with.
    pub secrets: Vec<String>,
    /// How far we are in getting what the others hold: `waiting`, `receiving` or `done`.
    pub warm_up: &'static str,
    /// What somebody has to mend, in words.
    pub faults: Vec<String>,
    /// Who is a peer, by node.
    pub peers: Vec<PeerStatus>,
    /// Peers of the configuration.
    pub names: Vec<NameStatus>,
    /// Addresses at which nobody has answered.
    pub unanswered: Vec<Unanswered>,
    /// Numbers of nodes that two or more processes use.
    pub collisions: Vec<u16>,
    /// Who tried to join in vain: peers of the configuration, then a few others.
    pub refused: Vec<Refused>,
    /// How often one of the others was left out, to make room for another.
    pub refused_left_out: u64,
    /// Sessions of policies that we do not have.
    pub unknown_policies: Vec<UnknownPolicy>,
    /// Sessions out and in.
    pub sessions: Sessions,
    /// All peers together, those that are gone included, and datagrams that belong to none.
    pub total: Exchanged,
}

/// One peer.
#[derive(Clone, Debug, Serialize)]
pub struct PeerStatus {
    /// What the configuration calls it; absent when it was found by multicast.
    pub name: Option<String>,
    /// Where we send to.
    pub address: SocketAddr,
    /// `live`, `replaced` by another process of its node, or `left` with a goodbye.
    pub state: &'static str,
    /// Its number.
    pub node: u16,
    /// Names its process, in hex.
    pub boot: String,
    /// Id of the secret that the pair was made under, in hex.
    pub secret: String,
    /// How long it has been a peer.
    pub peer_for_seconds: f64,
    /// Since the last genuine datagram.
    pub heard_seconds_ago: f64,
    /// Sessions that it said it holds.
    pub sessions_held: u32,
    /// Its sessions that are counted against `cluster.limits.entries-per-peer`.
    pub entries: usize,
    /// Its clients that stick, counted against the same limit.
    pub sticks: usize,
    /// Bytes of records that wait to be sent to it.
    pub queued_bytes: usize,
    /// It is being sent what we hold.
    pub dumping: bool,
    /// What was exchanged.
    #[serde(flatten)]
    pub exchanged: Exchanged,
}

/// What was sent and received.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Exchanged {
    /// Datagrams sent.
    pub sent: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Records in them.
    pub sent_records: u64,
    /// Genuine datagrams received.
    pub received: u64,
    /// Bytes of these.
    pub received_bytes: u64,
    /// Records that were put to use.
    pub received_records: u64,
    /// Datagrams that never came.
    pub lost: u64,
    /// Datagrams that came again.
    pub replayed: u64,
    /// Datagrams and records that were dropped, all causes together.
    pub dropped: u64,
    /// The same by cause, without those that were not met.
    pub causes: BTreeMap<&'static str, u64>,
}

/// One peer of the configuration.
#[derive(Clone, Debug, Serialize)]
pub struct NameStatus {
    /// As configured.
    pub name: String,
    /// Where it was last found.
    pub addresses: Vec<SocketAddr>,
    /// Further addresses of it, which are not used.
    pub ignored: usize,
    /// Why it was not found anew.
    pub problem: Option<String>,
}

/// An address at which nobody has answered.
#[derive(Clone, Debug, Serialize)]
pub struct Unanswered {
    /// The address.
    pub address: SocketAddr,
    /// What the configuration calls it.
    pub name: Option<String>,
    /// It is our own: what we sent there came back to us.
    pub own: bool,
    /// How often we greeted it since somebody last answered.
    pub hellos: u32,
}

/// Who tried to join in vain.
#[derive(Clone, Debug, Serialize)]
pub struct Refused {
    /// Where it came from; anyone can write any address there.
    pub address: SocketAddr,
    /// What the configuration calls it.
    pub name: Option<String>,
    /// Why: `unknown-secret` or `bad-join`.
    pub cause: &'static str,
    /// Id of the secret that it named, in hex.
    pub secret: String,
    /// Since the last attempt.
    pub seconds_ago: f64,
    /// Attempts.
    pub count: u64,
}

/// Sessions of a policy that we do not have.
#[derive(Clone, Debug, Serialize)]
pub struct UnknownPolicy {
    /// Who sends them.
    pub node: u16,
    /// The first 8 bytes of its digest, in hex.
    pub policy: String,
    /// How many came.
    pub count: u64,
}

/// Sessions out and in.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sessions {
    /// New ones of this host, offered to peers.
    pub told: u64,
    /// Ends of sessions of this host, offered to peers.
    pub ends_told: u64,
    /// Ones of peers that were put into the table.
    pub stored: u64,
    /// Ones that a peer said had ended, and that were in the table.
    pub ended: u64,
    /// Clients of this host that stick to a server, offered to peers.
    pub sticks_told: u64,
    /// Clients of peers whose server is remembered here.
    pub sticks: u64,
}

impl ClusterStatus {
    pub(super) fn of(inner: &mut Inner, now: Now) -> Self {
        let status = inner.replica.status(now.mono);
        let (cluster, directory) = (&inner.cluster, &inner.directory);
        let named = |address| directory.name_of(address).map(ToString::to_string);
        let ago = |then: Duration| now.mono.saturating_sub(then).as_secs_f64();
        let refused = |refused: &RefusedJoin| Refused {
            address: refused.address,
            name: named(refused.address),
            cause: refused.cause.name(),
            secret: hex(refused.secret),
            seconds_ago: ago(refused.last),
            count: refused.count,
        };
        let unanswered = |unanswered: &replica::Unanswered| Unanswered {
            address: unanswered.address,
            name: named(unanswered.address),
            own: unanswered.own,
            hellos: unanswered.hellos,
        };
        let unknown = inner.shelf.unknown.iter();
        let mut this = Self {
            node: status.node.0,
            boot: format!("{:016x}", status.boot.0),
            listen: cluster.listen,
            multicast: cluster.multicast.as_ref().map(|multicast| multicast.group),
            secrets: cluster
                .secrets
                .iter()
                .map(|secret| hex(secret.id))
                .collect(),
            warm_up: match status.warm_up {
                WarmUp::Waiting => "waiting",
                WarmUp::Receiving { .. } => "receiving",
                WarmUp::Done => "done",
            },
            faults: Vec::new(),
            peers: status
                .peers
                .iter()
                .map(|peer| one(peer, directory, now))
                .collect(),
            names: names(directory),
            unanswered: status.unanswered.iter().map(unanswered).collect(),
            collisions: status.collisions.iter().map(|node| node.0).collect(),
            refused: status.refused.iter().map(refused).collect(),
            refused_left_out: status.refused_left_out,
            unknown_policies: unknown
                .map(|((node, policy), count)| UnknownPolicy {
                    node: node.0,
                    policy: format!("{:016x}", policy.0),
                    count: *count,
                })
                .collect(),
            sessions: inner.shelf.numbers.into(),
            total: (&status.total).into(),
        };
        this.faults = this.find_faults();
        this
    }

    /// One for tests of pages: a live peer, a name that does not resolve.
    #[cfg(test)]
    pub(crate) fn sample() -> Self {
        let address = SocketAddr::from(([192, 0, 2, 1], 7443));
        Self {
            node: 2,
            boot: "0123456789abcdef".to_owned(),
            listen: Some(SocketAddr::from(([192, 0, 2, 2], 7443))),
            multicast: None,
            secrets: vec!["0a0b0c0d".to_owned()],
            warm_up: "done",
            faults: Vec::new(),
            peers: vec![PeerStatus {
                name: None,
                address,
                state: "live",
                node: 1,
                boot: "fedcba9876543210".to_owned(),
                secret: "0a0b0c0d".to_owned(),
                peer_for_seconds: 60.0,
                heard_seconds_ago: 0.5,
                sessions_held: 7,
                entries: 3,
                sticks: 2,
                queued_bytes: 0,
                dumping: false,
                exchanged: Exchanged::default(),
            }],
            names: vec![NameStatus {
                name: "b.test:7443".to_owned(),
                addresses: vec![address],
                ignored: 0,
                problem: Some("no such host".to_owned()),
            }],
            unanswered: Vec::new(),
            collisions: Vec::new(),
            refused: Vec::new(),
            refused_left_out: 0,
            unknown_policies: Vec::new(),
            sessions: Sessions::default(),
            total: Exchanged::default(),
        }
    }

    fn find_faults(&self) -> Vec<String> {
        let names = self.names.iter().filter_map(|name| {
            let problem = name.problem.as_ref()?;
            let (name, kept) = (&name.name, name.addresses.len());
            Some(format!("{name}: {problem}; {kept} addresses are kept"))
        });
        let many = self.names.iter().filter(|name| name.ignored > 0);
        let many = many.map(|name| {
            let (all, used) = (name.addresses.len() + name.ignored, name.addresses.len());
            format!(
                "{}: has {all} addresses, of which {used} are used",
                name.name
            )
        });
        let collisions = self.collisions.iter().map(|node| {
            format!("node {node}: two processes use this number; give each node one of its own")
        });
        // Who still tries comes again within seconds; what was mended is no fault any more.
        let trying = self.refused.iter().filter(|refused| {
            let ours = refused.cause == "unknown-secret" && self.secrets.contains(&refused.secret);
            !ours && refused.seconds_ago < STILL_TRIES.as_secs_f64()
        });
        let refused = trying.map(|refused| {
            let who = who(refused.name.as_deref(), refused.address);
            let secret = &refused.secret;
            match refused.cause {
                "unknown-secret" => format!(
                    "{who}: joins with secret {secret}, which is not one of ours ({})",
                    self.secrets.join(", ")
                ),
                _ => format!("{who}: joins that do not open, with secret {secret}"),
            }
        });
        let unknown = self.unknown_policies.iter().map(|unknown| {
            let UnknownPolicy { node, policy, .. } = unknown;
            format!("node {node}: sends sessions of policy {policy}, which no route here has")
        });
        let all = names
            .chain(many)
            .chain(collisions)
            .chain(refused)
            .chain(unknown);
        all.collect()
    }
}

/// A node that wants to join greets every few seconds, and rests for half a minute at most.
const STILL_TRIES: Duration = Duration::from_secs(60);

fn one(peer: &replica::PeerStatus, directory: &Directory, now: Now) -> PeerStatus {
    let ago = |then: Duration| now.mono.saturating_sub(then).as_secs_f64();
    PeerStatus {
        name: directory.name_of(peer.address).map(ToString::to_string),
        address: peer.address,
        state: match peer.state {
            PeerState::Live => "live",
            PeerState::Replaced => "replaced",
            PeerState::Left => "left",
        },
        node: peer.node.0,
        boot: format!("{:016x}", peer.boot.0),
        secret: hex(peer.secret),
        peer_for_seconds: ago(peer.since),
        heard_seconds_ago: ago(peer.last_heard),
        sessions_held: peer.sessions_held,
        entries: peer.entries,
        sticks: peer.sticks,
        queued_bytes: peer.queued_bytes,
        dumping: peer.dumping,
        exchanged: (&peer.traffic).into(),
    }
}

fn names(directory: &Directory) -> Vec<NameStatus> {
    let entries = directory.entries().iter();
    entries
        .map(|entry| NameStatus {
            name: entry.name.to_string(),
            addresses: entry.addresses.clone(),
            ignored: entry.ignored,
            problem: entry.problem.clone(),
        })
        .collect()
}

fn who(name: Option<&str>, address: SocketAddr) -> String {
    match name {
        Some(name) if name != address.to_string() => format!("{name} ({address})"),
        _ => address.to_string(),
    }
}

fn hex(secret: SecretId) -> String {
    format!("{:08x}", secret.0)
}

impl From<&Traffic> for Exchanged {
    fn from(traffic: &Traffic) -> Self {
        let causes = traffic.drops.iter().filter(|(_, count)| *count > 0);
        Self {
            sent: traffic.datagrams_out,
            sent_bytes: traffic.bytes_out,
            sent_records: traffic.records_out,
            received: traffic.datagrams_in,
            received_bytes: traffic.bytes_in,
            received_records: traffic.records_in,
            lost: traffic.lost(),
            replayed: traffic.drops.of(Cause::Replayed),
            dropped: traffic.drops.sum(),
            causes: causes.map(|(cause, count)| (cause.name(), count)).collect(),
        }
    }
}

impl From<Numbers> for Sessions {
    fn from(numbers: Numbers) -> Self {
        Self {
            told: numbers.told,
            ends_told: numbers.ends_told,
            stored: numbers.stored,
            ended: numbers.ended,
            sticks_told: numbers.sticks_told,
            sticks: numbers.sticks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(secret: &str, cause: &'static str, seconds_ago: f64) -> Refused {
        Refused {
            address: SocketAddr::from(([192, 0, 2, 9], 7443)),
            name: None,
            cause,
            secret: secret.to_owned(),
            seconds_ago,
            count: 3,
        }
    }

    #[test]
    fn who_is_refused_is_a_fault_until_it_is_mended() {
        let mut status = ClusterStatus::sample();
        status.names.clear();
        let faults = |status: &mut ClusterStatus, refused: Refused| {
            status.refused = vec![refused];
            status.find_faults().len()
        };
        assert_eq!(
            faults(&mut status, refused("99999999", "unknown-secret", 3.0)),
            1
        );
        assert_eq!(
            faults(&mut status, refused("99999999", "unknown-secret", 61.0)),
            0
        );
        let ours = status.secrets[0].clone();
        assert_eq!(
            faults(&mut status, refused(&ours, "unknown-secret", 3.0)),
            0
        );
        assert_eq!(faults(&mut status, refused(&ours, "bad-join", 3.0)), 1);
    }
}
