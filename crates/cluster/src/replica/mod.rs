//! Replicates TLS 1.2 sessions between the nodes of a cluster.
//!
//! This module is a state machine without I/O. The caller passes in received datagrams, new records and the time. The
//! state machine returns datagrams to send and records to apply. A [`Vault`] does the cryptography and supplies random
//! bytes.
//!
//! A *node* is one host of the cluster, a *peer* is a process of another node, and a *pair* holds the keys of one join
//! with a peer.
//!
//! **Join.** The node sends a HELLO to each listed address, and repeats it until the address answers with a WELCOME.
//! The WELCOME echoes the nonce of the HELLO; the first datagram under the new keys echoes the nonce of the WELCOME
//! (ECHO). Only an echo creates or replaces a peer, so replayed datagrams do neither.
//!
//! **Datagrams** have at most [`MAX_DATAGRAM`] bytes, integers big-endian. The header is the associated data of the
//! seal:
//!
//! ```text
//! of a pair   "BKT3" | key id u32, not 0 | sequence u64          | sealed ( records )
//! of a join   "BKT3" | 0 u32 | secret id u32 | to key id u32     | nonce 12 | sealed ( join )
//! ```
//!
//! Each node chooses the ids of its receiving keys, so the id in the header selects one key. A datagram costs at most
//! one AEAD open, and none if its pair or join is unknown.
//!
//! **Order of calls** in each turn: [`receive`](Replica::receive) for each datagram, [`offer`](Replica::offer) for each
//! record, then [`poll`](Replica::poll) once, then sleep until [`next_deadline`](Replica::next_deadline) at the latest.
//!
//! Times are durations since an arbitrary origin of the caller's monotonic clock.

mod acme_record;
mod datagram;
mod hello_limits;
mod join;
mod joins;
mod limits;
mod names;
mod outbox;
mod pace;
mod peer;
mod poll;
mod receive;
mod record;
mod sink;
mod status;
mod vault;
mod warm_up;
mod window;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use zeroize::Zeroize;

pub use self::acme_record::{AcmeRecord, CertificateTag, ChallengeId, ChunkBytes, ChunkName};
use self::datagram::PairId;
pub use self::datagram::{MAX_DATAGRAM, SIGNATURE};
use self::hello_limits::HelloLimits;
use self::joins::Joins;
pub use self::limits::{DATAGRAMS_PER_TURN, ReplicaLimits};
use self::names::canonical;
pub use self::names::{Boot, PeerName};
use self::pace::{BURST, Pace};
use self::peer::{KeyedPair, MAX_BOOTS_OF_NODE, ReplicaPeer};
use self::record::MAX_RECORD;
pub use self::record::{PeerRecord, PeerStick, ServerTag, SessionRecord};
pub use self::sink::{DumpSource, Sink, StickCursor};
pub use self::status::{
    DropCause, Drops, PeerState, PeerStatus, PeerTraffic, RefusedJoin, ReplicaStatus,
    UnansweredAddress, WarmUp,
};
pub use self::vault::{
    JOIN_NONCE_LEN, NONCE_LEN, Party, Role, SHARE_LEN, TAG_LEN, Transcript, Vault,
};
use self::warm_up::Warming;
use becket_proto::ticket::NodeId;

/// Replication state of one node: its pairs, joins and queues.
pub struct Replica<V: Vault> {
    name: PeerName,
    limits: ReplicaLimits,
    vault: V,
    joins: Joins<V::Share>,
    pairs: BTreeMap<PairId, KeyedPair<V::Keys>>,
    peers: BTreeMap<PeerName, ReplicaPeer>,
    hello_limits: HelloLimits,
    pace: Pace,
    sync_pace: Pace,
    warming: Warming,
    /// Time of the next check for silent peers.
    expires: Duration,
    /// Peer at which the previous turn reached the rate limit. The next turn starts with this peer.
    served: Option<PeerName>,
    total: PeerTraffic,
}

impl<V: Vault> Replica<V> {
    /// Creates a node without peers. `boot` must be random. Allocates later only for joins and peers, within `limits`.
    pub fn new(node: NodeId, boot: Boot, limits: ReplicaLimits, vault: V) -> Self {
        Self {
            name: PeerName { node, boot },
            limits,
            vault,
            joins: Joins::new(),
            pairs: BTreeMap::new(),
            peers: BTreeMap::new(),
            hello_limits: HelloLimits::new(&limits),
            pace: Pace::new(limits.bytes_per_second, BURST),
            sync_pace: Pace::new(limits.sync_bytes_per_second, BURST),
            warming: Warming::new(),
            expires: Duration::ZERO,
            served: None,
            total: PeerTraffic::default(),
        }
    }

    /// Sets the list of addresses to join. Can be called again at any time, e.g. when DNS returns other addresses. Live
    /// peers stay connected. The list may contain an address of this node, which is detected.
    ///
    /// Converts IPv4-mapped IPv6 addresses to IPv4, as [`receive`](Self::receive) does, so [`poll`](Self::poll) sends
    /// to IPv4 addresses.
    pub fn set_peers(&mut self, addresses: &[SocketAddr]) {
        let dropped = self.joins.set_list(addresses, self.limits.addresses);
        for _ in 0..dropped {
            self.total.drops.note(DropCause::TooManyAddresses);
        }
    }

    /// Replaces the vault when secrets change. Removes all pairs under a removed secret. Pairs under an accepted secret
    /// that is not the first remain until a new join under the first secret replaces them.
    pub fn set_vault(&mut self, vault: V) {
        self.vault = vault;
        let secrets = self.vault.secrets();
        self.pairs.retain(|_, pair| secrets.contains(&pair.secret));
        for pair in self.pairs.values_mut() {
            pair.stale = secrets.first() != Some(&pair.secret);
        }
        self.joins.restart();
        let mut alone = Vec::new();
        for peer in self.peers.values_mut() {
            peer.pairs.retain(|id| self.pairs.contains_key(id));
            if peer.pairs.is_empty() {
                alone.push(peer.name);
            }
        }
        for name in alone {
            self.depart(name);
        }
    }

    /// Decrypts a datagram, and passes its records to `sink`. Overwrites `datagram`, so that no
    /// secret remains in it.
    ///
    /// Costs one lookup and at most one AEAD open; an admitted HELLO or a WELCOME also costs an
    /// X25519 agreement. Allocates only for joins. Counts every drop.
    pub fn receive(
        &mut self,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Duration,
        sink: &mut impl Sink,
    ) {
        if let Err(cause) = self.take_datagram(canonical(from), datagram, now, sink) {
            self.total.drops.note(cause);
        }
    }

    /// Queues a record for every live peer. Costs one copy per peer, and no cryptography. Counts every drop.
    pub fn offer(&mut self, record: &PeerRecord<'_>) {
        self.queue(record, |_| true);
    }

    /// Queues a record for one peer, if it is live.
    pub fn offer_to(&mut self, peer: PeerName, record: &PeerRecord<'_>) {
        self.queue(record, |name| name == peer);
    }

    fn queue(&mut self, record: &PeerRecord<'_>, is_receiver: impl Fn(PeerName) -> bool) {
        let mut encoded = [0; MAX_RECORD];
        let Some(len) = record.encode(&mut encoded) else {
            self.total.drops.note(DropCause::TooLarge);
            return;
        };
        let encoded = encoded.get_mut(..len).unwrap_or_default();
        let peers = self.peers.values_mut().filter(|peer| peer.is_live());
        for peer in peers.filter(|peer| is_receiver(peer.name)) {
            if !peer.outbox.push(encoded) {
                peer.traffic.drops.note(DropCause::QueueFull);
                self.total.drops.note(DropCause::QueueFull);
            }
        }
        encoded.zeroize();
    }

    /// Returns the names of the live peers.
    pub fn live_peers(&self) -> impl Iterator<Item = PeerName> {
        let live = self.peers.values().filter(|peer| peer.is_live());
        live.map(|peer| peer.name)
    }

    pub fn live(&self) -> usize {
        self.peers.values().filter(|peer| peer.is_live()).count()
    }

    /// Returns the current status. Walks over all peers and allocates.
    pub fn status(&self, now: Duration) -> ReplicaStatus {
        let pairs = &self.pairs;
        let peers = self.peers.values().filter_map(|peer| {
            let newest = peer.pairs.last().and_then(|id| pairs.get(id))?;
            Some(peer.status(newest.secret, now))
        });
        let peers: Vec<PeerStatus> = peers.collect();
        ReplicaStatus {
            node: self.name.node,
            boot: self.name.boot,
            collisions: self.collisions(),
            unanswered: self.joins.unanswered(&self.peers, now),
            refused: self.joins.refused(now),
            refused_left_out: self.joins.left_out,
            warm_up: self.warming.status(),
            total: self.total,
            peers,
        }
    }

    /// Asserts in debug builds that pairs and peers are consistent and that every bound holds. Visits all pairs and
    /// peers.
    pub fn check_invariants(&self) {
        for (name, peer) in &self.peers {
            debug_assert!(
                *name == peer.name && *name != self.name,
                "a peer under another name"
            );
            debug_assert!(!peer.pairs.is_empty(), "a peer that cannot be reached");
            for id in &peer.pairs {
                let pair = self.pairs.get(id);
                debug_assert!(
                    pair.is_some_and(|pair| pair.peer == *name && !pair.is_candidate()),
                    "a peer has a pair that is not its own"
                );
            }
        }
        let of_peers: usize = self.peers.values().map(|peer| peer.pairs.len()).sum();
        let candidates = self.pairs.values().filter(|pair| pair.is_candidate());
        debug_assert!(
            of_peers + candidates.count() == self.pairs.len(),
            "a pair of an unknown node"
        );
        debug_assert!(
            self.peers.len() <= self.limits.peers * MAX_BOOTS_OF_NODE,
            "more peers than the limit"
        );
        self.joins.check_invariants(&self.limits);
    }

    /// Returns the nodes that run more than one live process. Can include this node.
    fn collisions(&self) -> Vec<NodeId> {
        let live = self.peers.values().filter(|peer| peer.is_live());
        let mut nodes: Vec<NodeId> = live.map(|peer| peer.name.node).collect();
        nodes.push(self.name.node);
        nodes.sort_unstable();
        let mut collisions: Vec<NodeId> = nodes
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
            .collect();
        collisions.dedup();
        collisions
    }
}
