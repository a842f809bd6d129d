//! Stores the list of configured addresses, the joins that this node began, and the refused joins.
//!
//! This module determines which address receives the next HELLO, and when; [`join`](super::join) sends it. Every
//! collection is bounded: the list by its limit, the joins by the list and the peers, and the refused joins by a
//! constant.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::datagram::PairId;
use super::limits::ReplicaLimits;
use super::names::{PeerName, canonical};
use super::peer::ReplicaPeer;
use super::status::{RefusedJoin, UnansweredAddress};
use super::vault::{NONCE_LEN, SHARE_LEN};
use becket_proto::ticket::SecretId;

pub(super) struct Joins<S> {
    pub(super) listed: Vec<ListedAddress>,
    pub(super) begun: BTreeMap<PairId, BegunJoin<S>>,
    /// Refused joins from addresses that are not in the list.
    strangers: VecDeque<RefusedJoin>,
    /// Number of entries removed from `strangers` because it was full.
    pub(super) left_out: u64,
    /// Time of the next check for missing joins. `None` if no check is planned.
    pub(super) look: Option<Duration>,
}

pub(super) struct ListedAddress {
    pub(super) address: SocketAddr,
    /// Time before which no HELLO is sent, because the address belongs to this node or a join to it
    /// cannot succeed.
    pub(super) rest: Duration,
    own: bool,
    hellos: u32,
    refused: Option<RefusedJoin>,
}

/// Join that this node began and that has no answer yet.
pub(super) struct BegunJoin<S> {
    pub(super) target: SocketAddr,
    pub(super) secret: SecretId,
    pub(super) nonce: [u8; NONCE_LEN],
    pub(super) share: [u8; SHARE_LEN],
    pub(super) ours: S,
    pub(super) next: Duration,
    pub(super) wait: Duration,
    pub(super) ends: Duration,
    pub(super) reason: Reason,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Listed,
    /// The keys of the pair are too old, or its secret is not the first one.
    Stale,
}

impl<S> Joins<S> {
    pub(super) fn new() -> Self {
        Self {
            listed: Vec::new(),
            begun: BTreeMap::new(),
            strangers: VecDeque::new(),
            left_out: 0,
            look: None,
        }
    }

    /// Replaces the list. Returns the number of addresses that exceed `limit` and are ignored.
    pub(super) fn set_list(&mut self, addresses: &[SocketAddr], limit: usize) -> usize {
        let mut listed: Vec<ListedAddress> = Vec::new();
        let mut dropped = 0;
        for address in addresses.iter().copied().map(canonical) {
            if listed.iter().any(|known| known.address == address) {
                continue;
            }
            if listed.len() >= limit {
                dropped += 1;
                continue;
            }
            let known = self
                .listed
                .iter()
                .position(|known| known.address == address);
            listed.push(match known {
                Some(at) => self.listed.swap_remove(at),
                None => ListedAddress::new(address),
            });
        }
        self.begun.retain(|_, begun| {
            begun.reason != Reason::Listed
                || listed.iter().any(|known| known.address == begun.target)
        });
        self.listed = listed;
        self.look_at(Duration::ZERO);
        dropped
    }

    /// Abandons all joins, so that they begin again with another secret.
    pub(super) fn restart(&mut self) {
        self.begun.clear();
        self.look_at(Duration::ZERO);
    }

    pub(super) fn look_at(&mut self, when: Duration) {
        self.look = Some(self.look.map_or(when, |look| look.min(when)));
    }

    pub(super) fn unanswered(
        &self,
        peers: &BTreeMap<PeerName, ReplicaPeer>,
        now: Duration,
    ) -> Vec<UnansweredAddress> {
        self.listed
            .iter()
            .filter(|known| !is_answered(peers, known.address))
            .map(|known| UnansweredAddress {
                address: known.address,
                name: None,
                own: known.own && known.rest > now,
                hellos: known.hellos,
            })
            .collect()
    }

    /// Returns the refused joins, listed addresses first.
    pub(super) fn refused(&self, now: Duration) -> Vec<RefusedJoin> {
        let listed = self.listed.iter().flat_map(|known| &known.refused);
        let all = listed.chain(&self.strangers).map(|refused| RefusedJoin {
            ago: now.saturating_sub(refused.last),
            ..refused.clone()
        });
        all.collect()
    }

    /// Returns the time at which the caller must begin, repeat or abandon a join.
    pub(super) fn when(&self) -> Option<Duration> {
        let begun = self.begun.values().map(|begun| begun.next);
        self.look.into_iter().chain(begun).min()
    }

    /// Returns the joins whose HELLO must be sent now. Counts these HELLOs, and schedules the next ones.
    pub(super) fn due_hellos(
        &mut self,
        now: Duration,
    ) -> impl Iterator<Item = (PairId, &BegunJoin<S>)> {
        let Self { begun, listed, .. } = self;
        let due = begun.iter_mut().filter(move |(_, begun)| begun.next <= now);
        due.map(move |(id, begun)| {
            begun.next = now + begun.wait;
            begun.wait = (begun.wait * 2).min(HELLO_AGAIN_AT_MOST);
            if let Some(known) = at_address(listed, begun.target) {
                known.hellos = known.hellos.saturating_add(1);
            }
            (*id, &*begun)
        })
    }

    /// Ends the joins to an address, because a peer answered or is reachable there.
    pub(super) fn answered(&mut self, address: SocketAddr) {
        self.begun.retain(|_, begun| begun.target != address);
        if let Some(known) = at_address(&mut self.listed, address) {
            known.hellos = 0;
            known.rest = Duration::ZERO;
            known.own = false;
        }
        self.look_at(Duration::ZERO);
    }

    pub(super) fn check_invariants(&self, limits: &ReplicaLimits) {
        debug_assert!(
            self.strangers.len() <= MAX_STRANGERS,
            "refused joins without end"
        );
        debug_assert!(
            self.begun.len() <= limits.addresses + limits.peers,
            "joins without end"
        );
    }

    pub(super) fn is_begun(&self, target: SocketAddr) -> bool {
        self.begun.values().any(|begun| begun.target == target)
    }

    pub(super) fn is_listed(&self, address: SocketAddr) -> bool {
        self.listed.iter().any(|known| known.address == address)
    }

    /// Pauses joins to a listed address until a given time, because they cannot succeed now.
    pub(super) fn rest(&mut self, address: SocketAddr, until: Duration) {
        self.begun.retain(|_, begun| begun.target != address);
        self.set_rest(address, until, false);
    }

    /// Handles a HELLO that returned to this node: marks its target as this node's own address,
    /// until another node answers from it.
    ///
    /// Joins to this address continue at a low rate. A host that reflects HELLOs therefore cannot
    /// prevent a join unless it also suppresses the WELCOME.
    pub(super) fn came_back(&mut self, id: PairId, until: Duration) {
        let Some(begun) = self.begun.get_mut(&id) else {
            return;
        };
        begun.next = begun.next.max(until);
        let target = begun.target;
        self.set_rest(target, until, true);
    }

    fn set_rest(&mut self, address: SocketAddr, until: Duration, own: bool) {
        if let Some(known) = at_address(&mut self.listed, address) {
            known.rest = until;
            known.own = own;
        }
        self.look_at(until);
    }

    /// Records a refused join under its address. Unlisted addresses cannot displace the entry of a listed one.
    pub(super) fn refuse(&mut self, mut refused: RefusedJoin) {
        if let Some(known) = at_address(&mut self.listed, refused.address) {
            refused.count += known.refused.as_ref().map_or(0, |known| known.count);
            known.refused = Some(refused);
            return;
        }
        let same = |known: &RefusedJoin| known.address == refused.address;
        if let Some(at) = self.strangers.iter().position(same)
            && let Some(known) = self.strangers.remove(at)
        {
            refused.count += known.count;
        }
        if self.strangers.len() >= MAX_STRANGERS {
            self.leave_out_a_stranger(refused.last);
        }
        self.strangers.push_back(refused);
    }

    /// Removes an unlisted address from the record: one that has stopped trying, otherwise the one with the fewest
    /// attempts. A forged address appears once, but a misconfigured node tries repeatedly.
    fn leave_out_a_stranger(&mut self, now: Duration) {
        let worth = |known: &RefusedJoin| (known.last + STILL_TRIES > now, known.count, known.last);
        let strangers = self.strangers.iter().enumerate();
        if let Some((least, _)) = strangers.min_by_key(|(_, known)| worth(known)) {
            self.strangers.remove(least);
            self.left_out += 1;
        }
    }
}

impl ListedAddress {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            rest: Duration::ZERO,
            own: false,
            hellos: 0,
            refused: None,
        }
    }
}

fn at_address(listed: &mut [ListedAddress], address: SocketAddr) -> Option<&mut ListedAddress> {
    listed.iter_mut().find(|known| known.address == address)
}

/// Returns whether a live peer is reachable at this address.
pub(super) fn is_answered(peers: &BTreeMap<PeerName, ReplicaPeer>, address: SocketAddr) -> bool {
    let mut live = peers.values().filter(|peer| peer.is_live());
    live.any(|peer| peer.answers_at(address))
}

/// Delay before the first repetition of a HELLO. Each repetition doubles the delay, up to
/// `HELLO_AGAIN_AT_MOST`.
pub(super) const HELLO_AGAIN: Duration = Duration::from_millis(500);
pub(super) const HELLO_AGAIN_AT_MOST: Duration = Duration::from_secs(5);

/// Maximum number of unlisted addresses whose refused joins are recorded.
const MAX_STRANGERS: usize = 16;

/// Time since its last refused join after which an address no longer counts as trying. It exceeds
/// the interval between the HELLOs of a node that wants to join.
const STILL_TRIES: Duration = Duration::from_secs(60);
