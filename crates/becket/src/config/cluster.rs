//! `[cluster]`: what this becket shares with others, and the part of `prepare` that checks it.
//!
//! Secrets are read here, from files that only their owner can read. The chain of a secret that
//! forgets does not stay in the [`Config`], which lives on until a reload: it
//! travels beside it, in [`Prepared::ratchets`](super::prepare::Prepared). Names of
//! peers are looked up while it runs, since a cluster must be able to start in any order.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use becket_proto::epoch::EpochLength;
use becket_proto::ticket::{NodeId, UnixSeconds};
use becket_sys::identity::Identity;

use super::Config;
use super::error::Problem;
use super::file::{FileCluster, Scalar};
use super::prepare::Draft;
use super::stud::Stud;
use super::values::{self, Address};
use crate::secret::command::{LONGEST, SHORTEST};
use crate::secret::file::RunUser;
use crate::secret::ratchet::Ratchet;
use crate::secret::{self, SharedSecret};

/// What this becket shares with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Names this becket among the others; at least 1. A hint in tickets, and the name of a peer.
    pub node: NodeId,
    /// The first one seals; all of them open and let peers in. Never empty, each id once.
    pub secrets: Vec<SharedSecret>,
    /// How long an epoch of ticket keys lasts; the same on all nodes.
    pub rotation: EpochLength,
    /// TLS 1.2 clients may get tickets; without, they resume by replicated ID.
    pub tls12_tickets: bool,
    /// Where datagrams of peers arrive; without, only tickets are shared.
    pub listen: Option<SocketAddr>,
    /// Peers by address. Each name once.
    pub peers: Vec<Peer>,
    /// How often their names are looked up again; `None` is only with the configuration.
    pub resolve_interval: Option<Duration>,
    /// Discovery of further peers.
    pub multicast: Option<Multicast>,
    /// Sessions of stud and hitch; received only where this is set.
    pub stud: Option<Stud>,
    /// Bounds on what peers can cost.
    pub limits: ClusterLimits,
}

/// A peer as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// As written; a label of status and logs.
    pub name: Arc<str>,
    /// Parsed: never `Any` nor `Unix`.
    pub address: Address,
    /// As [`addresses`](super::Server::addresses) of a server.
    pub addresses: Vec<SocketAddr>,
}

/// Where nodes look for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// A multicast address, of the family of `listen`.
    pub group: SocketAddr,
    /// Name of the network interface; `None` leaves the choice to the routes.
    pub interface: Option<String>,
    /// Hops that a datagram may go: 1 stays on the link.
    pub ttl: u8,
}

/// Bounds on what peers can cost. All are at least 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterLimits {
    /// Datagrams read before other work gets its turn.
    pub datagrams_per_turn: usize,
    /// Sessions of one peer in the table.
    pub entries_per_peer: usize,
    /// Bytes sent to all peers together in a second.
    pub bytes_per_second: usize,
    /// Sessions of one worker that wait to be sent.
    pub queue: usize,
    /// Greetings of unknown peers that are opened in a second.
    pub hellos_per_second: usize,
}

impl Config {
    /// Where datagrams of peers arrive, if they do.
    pub fn peers_arrive_at(&self) -> Option<SocketAddr> {
        self.cluster.as_ref()?.listen
    }
}

impl Draft<'_> {
    /// The section, when there is one. Its chains are left in the draft.
    pub(super) fn cluster(&mut self) -> Option<Cluster> {
        let file = self.file;
        let cluster = file.cluster.as_ref()?;
        let rotation = self.rotation(cluster);
        let secrets = self.secrets(cluster, rotation);
        let listen = self.cluster_listen(cluster);
        let peers = self.peers(cluster, listen);
        let multicast = self.multicast(cluster, listen);
        if listen.is_none() {
            self.refuse_without_listen(cluster);
        }
        let limits = &cluster.limits;
        let mut count = |key: &str, value| self.count(&format!("cluster.limits.{key}"), value);
        let limits = ClusterLimits {
            datagrams_per_turn: count("datagrams-per-turn", limits.datagrams_per_turn),
            entries_per_peer: count("entries-per-peer", limits.entries_per_peer),
            queue: count("queue", limits.queue),
            hellos_per_second: count("hellos-per-second", limits.hellos_per_second),
            bytes_per_second: self.size(
                "cluster.limits.bytes-per-second",
                &limits.bytes_per_second,
                RATE,
            ),
        };
        Some(Cluster {
            node: self.node(cluster),
            secrets,
            rotation: rotation?,
            tls12_tickets: cluster.tls12_tickets,
            listen,
            peers,
            resolve_interval: self.resolve_interval("cluster", &cluster.resolve_interval),
            multicast,
            // It needs the listeners' policies, which are made later.
            stud: None,
            limits,
        })
    }

    /// A key of `[sessions]`, or that of the cluster in its place, with its path; that both are
    /// set is an error.
    pub(super) fn session_key<'k>(
        &mut self,
        (path, value): (&'static str, Option<&'k Scalar>),
        (shared_path, shared): (&'static str, Option<&'k Scalar>),
    ) -> Option<(&'static str, &'k Scalar)> {
        if let (Some(value), Some(_)) = (value, shared) {
            let fault = format!("in a cluster {shared_path} says this");
            let problem = Problem::new(path, fault).text(&value.0);
            self.report.error(problem.accepted("one of the two keys"));
        }
        let own = value.map(|value| (path, value));
        own.or(shared.map(|shared| (shared_path, shared)))
    }

    /// Whether policies may give tickets to TLS 1.2 clients.
    pub(super) fn tls12_tickets_allowed(&self) -> bool {
        let cluster = self.file.cluster.as_ref();
        cluster.is_none_or(|cluster| cluster.tls12_tickets)
    }

    fn node(&mut self, cluster: &FileCluster) -> NodeId {
        let path = "cluster.node";
        let node = cluster.node.map(|node| u16::try_from(node).unwrap_or(0));
        if let Some(node @ 1..) = node {
            return NodeId(node);
        }
        let problem = match cluster.node {
            None => Problem::new(path, "missing"),
            Some(node) => Problem::new(path, "not in range").value(node.to_string()),
        };
        let accepted = "1 to 65535, another on each node";
        self.report.error(problem.accepted(accepted));
        NodeId(0)
    }

    fn rotation(&mut self, cluster: &FileCluster) -> Option<EpochLength> {
        let path = "cluster.rotation";
        let errors = self.report.errors.len();
        let rotation = self.duration(path, &cluster.rotation, SHORTEST..=LONGEST);
        if self.report.errors.len() > errors {
            return None;
        }
        let length = EpochLength::of(rotation);
        if length.is_none() {
            let problem = Problem::new(path, "not in whole seconds").text(&cluster.rotation.0);
            self.report.error(problem.accepted("whole seconds"));
        }
        length
    }

    fn secrets(&mut self, cluster: &FileCluster, length: Option<EpochLength>) -> Vec<SharedSecret> {
        let root = cluster
            .secret
            .as_deref()
            .map(|text| ("secret", text, false));
        let state = cluster.secret_state.as_deref();
        let state = state.map(|text| ("secret-state", text, true));
        match (&root, &state) {
            (Some(_), Some((_, text, _))) => {
                let fault = "a second secret that seals, beside cluster.secret";
                self.report.error(
                    Problem::new("cluster.secret-state", fault)
                        .text(text)
                        .accepted("one of the two; the other in cluster.accept-secrets"),
                );
            }
            (None, None) => self.report.error(
                Problem::new("cluster.secret", "missing")
                    .accepted(format!("{}, or cluster.secret-state", secret::ROOT_FILE)),
            ),
            _ => {}
        }
        let mut secrets: Vec<SharedSecret> = Vec::new();
        for (key, text, is_state) in root.into_iter().chain(state) {
            let path = format!("cluster.{key}");
            self.secret(&path, text, Some(is_state), length, &mut secrets);
        }
        for (index, text) in cluster.accept_secrets.iter().enumerate() {
            let path = format!("cluster.accept-secrets[{index}]");
            self.secret(&path, text, None, length, &mut secrets);
        }
        secrets
    }

    /// Who will read the secrets at reloads. An unknown user is a fault of `process.user`.
    fn run_user(&self) -> RunUser {
        let process = &self.file.process;
        let user = process.user.as_deref();
        let found = user.and_then(|user| {
            let identity = Identity::find(user, process.group.as_deref()).ok()?;
            Some((user, identity))
        });
        match found {
            Some((name, identity)) => RunUser {
                uid: identity.uid,
                name: name.to_owned(),
            },
            None => RunUser::effective(),
        }
    }

    /// Reads one file. `is_state` says which kind it must be.
    fn secret(
        &mut self,
        path: &str,
        text: &str,
        is_state: Option<bool>,
        length: Option<EpochLength>,
        secrets: &mut Vec<SharedSecret>,
    ) {
        let file = self.world.base.join(text);
        self.files.push(file.clone());
        let problem = |fault: &str| Problem::new(path, fault).text(&file.to_string_lossy());
        let opened = match secret::open(&self.world.files, &file, &self.run_user()) {
            Ok(opened) => opened,
            Err(wrong) => {
                let problem = problem(&wrong.fault).accepted(wrong.accepted);
                return self.report.error(problem);
            }
        };
        let found = opened.ratchet.is_some();
        if is_state.is_some_and(|wanted| wanted != found) {
            let (fault, key) = match found {
                true => ("the state of a ratchet", "cluster.secret-state"),
                false => ("no state of a ratchet", "cluster.secret"),
            };
            let accepted = format!("{key} instead");
            return self.report.error(problem(fault).accepted(accepted));
        }
        if let Some(same) = secrets.iter().find(|same| same.id == opened.secret.id) {
            let fault = format!("the same secret as in {}", same.path.display());
            return self
                .report
                .error(problem(&fault).accepted("each secret once"));
        }
        if let (Some(ratchet), Some(length)) = (opened.ratchet, length) {
            let found = self.ratchet(ratchet, length, &problem);
            self.report.errors.extend(found);
        }
        secrets.push(opened.secret);
    }

    /// Takes a chain over, unless it is not one of these epochs.
    fn ratchet(
        &mut self,
        ratchet: Ratchet,
        length: EpochLength,
        problem: &dyn Fn(&str) -> Problem,
    ) -> Option<Problem> {
        let (made, wanted) = (ratchet.length().duration(), length.duration());
        if made != wanted {
            let fault = format!("its epochs last {made:?}, and cluster.rotation is {wanted:?}");
            return Some(problem(&fault).accepted("the same on all nodes"));
        }
        let now = length.number_at(UnixSeconds(self.world.now.as_secs()));
        let behind = now.0.saturating_sub(ratchet.floor().0);
        let most = ratchet.most_steps();
        if behind > most {
            let fault = format!("{behind} epochs behind the clock");
            let accepted =
                format!("at most {most}, a clock that is right, or the file of another node");
            return Some(problem(&fault).accepted(accepted));
        }
        if ratchet.floor() > now {
            let fault = "of an epoch to come: until the clock gets there, only tickets that are \
                         sealed with it open";
            self.report.warn(problem(fault));
        }
        self.ratchets.push(ratchet);
        None
    }

    fn cluster_listen(&mut self, cluster: &FileCluster) -> Option<SocketAddr> {
        self.udp_address("cluster.listen", cluster.listen.as_deref()?)
    }

    /// Where one socket can receive datagrams.
    pub(super) fn udp_address(&mut self, path: &str, text: &str) -> Option<SocketAddr> {
        let address = self.report.take(path, text, values::listen_address(text))?;
        // One socket for both families, where there are two.
        let found = match address {
            Address::Any(port) if self.world.ipv6 => SocketAddr::from(([0u16; 8], port)),
            _ => self.resolve(path, text, &address).into_iter().next()?,
        };
        if found.ip().is_multicast() {
            let problem = Problem::new(path, "a group is heard on cluster.multicast");
            let accepted = "an address of this host";
            self.report.error(problem.text(text).accepted(accepted));
        }
        if found.port() == 0 {
            let problem = Problem::new(path, "port 0 is no port that peers could know");
            self.report
                .error(problem.text(text).accepted("a port from 1 to 65535"));
        }
        Some(found)
    }

    fn peers(&mut self, cluster: &FileCluster, listen: Option<SocketAddr>) -> Vec<Peer> {
        let mut peers: Vec<Peer> = Vec::with_capacity(cluster.peers.len());
        for (index, text) in cluster.peers.iter().enumerate() {
            let path = format!("cluster.peers[{index}]");
            let parsed = values::peer_address(text);
            let Some(address) = self.report.take(&path, text, parsed) else {
                continue;
            };
            if peers.iter().any(|other| other.address == address) {
                let problem = Problem::new(path, "an earlier peer has this address");
                self.report
                    .error(problem.text(text).accepted("each peer once"));
                continue;
            }
            if let Some((fault, accepted)) = unreachable(&address, listen) {
                let problem = Problem::new(path, fault).text(text);
                self.report.error(problem.accepted(accepted));
                continue;
            }
            peers.push(Peer {
                name: text.as_str().into(),
                addresses: match address {
                    Address::Any(_) | Address::Unix(_) => Vec::new(),
                    _ => self.whereabouts(&path, text, &address),
                },
                address,
            });
        }
        peers
    }

    fn multicast(
        &mut self,
        cluster: &FileCluster,
        listen: Option<SocketAddr>,
    ) -> Option<Multicast> {
        let interface = cluster.multicast_interface.as_deref();
        let Some(text) = cluster.multicast.as_deref() else {
            self.refuse_without_group(cluster);
            return None;
        };
        let parsed = values::peer_address(text);
        let address = self.report.take("cluster.multicast", text, parsed)?;
        let problem = |fault| Problem::new("cluster.multicast", fault).text(text);
        let Address::Ip(ip, port) = address else {
            let problem = problem("not an address");
            self.report.error(problem.accepted(GROUP));
            return None;
        };
        if !ip.is_multicast() {
            self.report.error(problem("not a group").accepted(GROUP));
        }
        if listen.is_some_and(|listen| listen.ip().is_ipv4() != ip.is_ipv4()) {
            let fault = "of another family than cluster.listen";
            let accepted = "both IPv4 or both IPv6";
            self.report.error(problem(fault).accepted(accepted));
        }
        Some(Multicast {
            group: SocketAddr::new(ip, port),
            interface: self.interface(interface),
            ttl: self.ttl(cluster.multicast_ttl),
        })
    }

    /// What says how a group is reached is of no use without one.
    fn refuse_without_group(&mut self, cluster: &FileCluster) {
        let problem = |key: &str| Problem::new(format!("cluster.{key}"), "without a group");
        let interface = cluster.multicast_interface.as_deref();
        let interface = interface.map(|name| problem("multicast-interface").text(name));
        let ttl = cluster.multicast_ttl;
        let ttl = ttl.map(|hops| problem("multicast-ttl").value(hops.to_string()));
        for problem in interface.into_iter().chain(ttl) {
            let accepted = "cluster.multicast with it";
            self.report.error(problem.accepted(accepted));
        }
    }

    fn interface(&mut self, name: Option<&str>) -> Option<String> {
        let name = name?;
        let address: Result<IpAddr, _> = name.parse();
        // IFNAMSIZ is 16 with the final NUL: netdevice(7).
        let usable = matches!(name.len(), 1..=15)
            && address.is_err()
            && !name.contains(|c: char| c == '/' || c.is_whitespace());
        if !usable {
            let problem = Problem::new("cluster.multicast-interface", "not the name of one");
            self.report
                .error(problem.text(name).accepted("a name such as \"eth0\""));
        }
        Some(name.to_owned())
    }

    fn ttl(&mut self, hops: Option<u64>) -> u8 {
        let hops = hops.unwrap_or(LINK);
        let ttl = u8::try_from(hops).unwrap_or(0);
        if ttl == 0 {
            let problem = Problem::new("cluster.multicast-ttl", "not in range");
            self.report
                .error(problem.value(hops.to_string()).accepted("1 to 255"));
        }
        ttl
    }

    /// Whoever names peers wants to hear from them.
    fn refuse_without_listen(&mut self, cluster: &FileCluster) {
        let peers = cluster.peers.first().map(|peer| ("peers", peer));
        let multicast = cluster.multicast.as_ref().map(|at| ("multicast", at));
        for (key, text) in peers.into_iter().chain(multicast) {
            let fault = "no address to hear them on";
            let problem = Problem::new(format!("cluster.{key}"), fault).text(text);
            self.report
                .error(problem.accepted("cluster.listen with it"));
        }
    }
}

/// Why the socket at `listen` cannot reach a peer by this address, and what it could.
fn unreachable(peer: &Address, listen: Option<SocketAddr>) -> Option<(&'static str, &'static str)> {
    let Address::Ip(ip, _) = peer else {
        return None;
    };
    if ip.is_multicast() {
        return Some(("a group", "the address of one host, or cluster.multicast"));
    }
    // The unspecified address of IPv6 stands for both families.
    let both = |listen: &SocketAddr| listen.is_ipv6() && listen.ip().is_unspecified();
    let listen = listen.filter(|listen| !both(listen))?;
    (listen.is_ipv4() != ip.to_canonical().is_ipv4()).then_some((
        "of another family than cluster.listen",
        "both IPv4 or both IPv6, or listen = \":PORT\"",
    ))
}

/// Hops that a datagram may go, unless somebody means more.
const LINK: u64 = 1;

const GROUP: &str = "a multicast address with a port, such as 239.192.0.1:7443 or [ff05::b]:7443";

/// Below, one full datagram would not fit into a second.
const RATE: std::ops::RangeInclusive<u64> = 1400..=100_000_000_000;
