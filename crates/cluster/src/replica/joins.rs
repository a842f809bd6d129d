//! The list of addresses, the joins that we began there, and the memory of those that were refused.
//!
//! Says which address is to be asked again and when; [`join`](super::join) draws nonces, and speaks. Every collection here
//! is bounded: the list by its limit, joins by the list and the peers, refusals by a constant.

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

/// The joins of one node that are not yet pairs.
pub(super) struct Joins<S> {
    pub(super) listed: Vec<ListedAddress>,
    pub(super) begun: BTreeMap<PairId, BegunJoin<S>>,
    /// Refused joins from addresses that are not in the list.
    strangers: VecDeque<RefusedJoin>,
    /// How often one of these had to make room.
    left_out: u64,
    /// When the list is to be looked over; at once after each change.
    pub(super) look: Option<Duration>,
}

/// An address of the list.
pub(super) struct ListedAddress {
    pub(super) address: SocketAddr,
    /// Nothing is sent there until then: it is our own, or had no place for us.
    pub(super) rest: Duration,
    own: bool,
    hellos: u32,
    /// Joins from there that were refused.
    refused: Option<RefusedJoin>,
}

/// A join that we began and that nobody has answered.
pub(super) struct BegunJoin<S> {
    pub(super) target: SocketAddr,
    pub(super) secret: SecretId,
    pub(super) nonce: [u8; NONCE_LEN],
    pub(super) share: [u8; SHARE_LEN],
    pub(super) ours: S,
    /// When the HELLO is said again.
    pub(super) next: Duration,
    pub(super) wait: Duration,
    pub(super) ends: Duration,
    pub(super) reason: Reason,
}

/// Why a join was begun.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Listed,
    /// The pair was made under a secret that is not the first any more, or its keys are old.
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

    /// Replaces the list; returns how many addresses were beyond the limit.
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

    /// Begins all joins anew: under another secret.
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

    /// Who tried to join in vain: addresses of the list first.
    pub(super) fn refused(&self, now: Duration) -> Vec<RefusedJoin> {
        let listed = self.listed.iter().flat_map(|known| &known.refused);
        let all = listed.chain(&self.strangers).map(|refused| RefusedJoin {
            ago: now.saturating_sub(refused.last),
            ..refused.clone()
        });
        all.collect()
    }

    /// How often a stranger was forgotten.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// When there is something to begin, to say again or to give up.
    pub(super) fn when(&self) -> Option<Duration> {
        let begun = self.begun.values().map(|begun| begun.next);
        self.look.into_iter().chain(begun).min()
    }

    /// Counts a HELLO that is being said, and says when the next is due.
    pub(super) fn said_hello(&mut self, id: PairId, now: Duration) {
        let Some(begun) = self.begun.get_mut(&id) else {
            return;
        };
        begun.next = now + begun.wait;
        begun.wait = (begun.wait * 2).min(HELLO_AGAIN_AT_MOST);
        let target = begun.target;
        if let Some(known) = self.listed.iter_mut().find(|known| known.address == target) {
            known.hellos = known.hellos.saturating_add(1);
        }
    }

    /// Somebody answered at an address, or could be reached by it.
    pub(super) fn answered(&mut self, address: SocketAddr) {
        self.begun.retain(|_, begun| begun.target != address);
        if let Some(known) = self
            .listed
            .iter_mut()
            .find(|known| known.address == address)
        {
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

    /// Leaves an address of the list alone for a while, since a join there cannot succeed.
    pub(super) fn rest(&mut self, address: SocketAddr, until: Duration) {
        self.begun.retain(|_, begun| begun.target != address);
        self.set_rest(address, until, false);
    }

    /// A HELLO of ours came back to us: its address is our own as long as nobody else answers there. The join goes on, and
    /// is only said seldom: whoever sends our HELLOs back to us, but cannot keep the WELCOME away, achieves nothing.
    pub(super) fn came_back(&mut self, id: PairId, until: Duration) {
        let Some(begun) = self.begun.get_mut(&id) else {
            return;
        };
        begun.next = begun.next.max(until);
        let target = begun.target;
        self.set_rest(target, until, true);
    }

    fn set_rest(&mut self, address: SocketAddr, until: Duration, own: bool) {
        let mut listed = self.listed.iter_mut();
        if let Some(known) = listed.find(|known| known.address == address) {
            known.rest = until;
            known.own = own;
        }
        self.look_at(until);
    }

    /// Remembers a join that was refused, by its address. One of the list has a place of its own, which no stranger takes.
    pub(super) fn refuse(&mut self, mut refused: RefusedJoin) {
        let mut listed = self.listed.iter_mut();
        if let Some(known) = listed.find(|known| known.address == refused.address) {
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

    /// Forgets a stranger: one that gave up, or else the one that tried least. Addresses can be invented, each for one try;
    /// a node that is configured wrongly tries again and again.
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

/// Whether a live peer is reached by an address.
pub(super) fn is_answered(peers: &BTreeMap<PeerName, ReplicaPeer>, address: SocketAddr) -> bool {
    let mut live = peers.values().filter(|peer| peer.is_live());
    live.any(|peer| peer.answers_at(address))
}

/// The wait before the first repetition of a HELLO; it doubles.
pub(super) const HELLO_AGAIN: Duration = Duration::from_millis(500);
pub(super) const HELLO_AGAIN_AT_MOST: Duration = Duration::from_secs(5);

/// Addresses that are not in the list and whose refused joins are remembered.
const MAX_STRANGERS: usize = 16;

/// A node that wants to join says HELLO every few seconds, and rests for half a minute at most.
const STILL_TRIES: Duration = Duration::from_secs(60);
