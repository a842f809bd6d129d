//! The list of addresses, the joins that we began there, and the memory of those that were refused.
//!
//! Says which address is to be asked again and when; [`join`](super::join) draws nonces, and speaks. Every collection here
//! is bounded: the list by its limit, joins by the list and the peers, refusals by a constant.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::datagram::PairId;
use super::limits::Limits;
use super::peer::Peer;
use super::status::{RefusedJoin, Unanswered};
use super::vault::{NONCE_LEN, SHARE_LEN};
use super::{PeerName, canonical};
use crate::ticket::SecretId;

/// The joins of one node that are not yet pairs.
pub(super) struct Joins<S> {
    pub(super) listed: Vec<Listed>,
    pub(super) begun: BTreeMap<PairId, Begun<S>>,
    refused: VecDeque<RefusedJoin>,
    /// When the list is to be looked over; at once after each change.
    pub(super) look: Option<Duration>,
}

/// An address of the list.
pub(super) struct Listed {
    pub(super) address: SocketAddr,
    /// Nothing is sent there until then: it is our own, or had no place for us. For a group, the time of the next call.
    pub(super) rest: Duration,
    own: bool,
    hellos: u32,
}

/// A join that we began and that nobody has answered.
pub(super) struct Begun<S> {
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
    /// The address called us; it is given up soon.
    Called,
    /// The pair was made under a secret that is not the first any more, or its keys are old.
    Stale,
}

impl<S> Joins<S> {
    pub(super) fn new() -> Self {
        Self {
            listed: Vec::new(),
            begun: BTreeMap::new(),
            refused: VecDeque::new(),
            look: None,
        }
    }

    /// Replaces the list; returns how many addresses were beyond the limit.
    pub(super) fn set_list(&mut self, addresses: &[SocketAddr], limit: usize) -> usize {
        let mut listed: Vec<Listed> = Vec::new();
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
                None => Listed::new(address),
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
        peers: &BTreeMap<PeerName, Peer>,
        now: Duration,
    ) -> Vec<Unanswered> {
        self.listed
            .iter()
            .filter(|known| !known.is_group() && !is_answered(peers, known.address))
            .map(|known| Unanswered {
                address: known.address,
                own: known.own && known.rest > now,
                hellos: known.hellos,
            })
            .collect()
    }

    pub(super) fn refused(&self) -> Vec<RefusedJoin> {
        self.refused.iter().copied().collect()
    }

    /// When there is something to begin, to say again or to give up.
    pub(super) fn when(&self) -> Option<Duration> {
        let groups = self.listed.iter().filter(|known| known.is_group());
        let begun = self.begun.values().map(|begun| begun.next);
        let calls = groups.map(|known| known.rest);
        self.look.into_iter().chain(calls).chain(begun).min()
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

    pub(super) fn check_invariants(&self, limits: &Limits) {
        debug_assert!(
            self.refused.len() <= MAX_REFUSED,
            "refused joins without end"
        );
        debug_assert!(
            self.begun.len() <= limits.addresses + MAX_CALLED + limits.peers,
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

    /// Remembers a join that was refused, by its address: the latest last.
    pub(super) fn refuse(&mut self, mut refused: RefusedJoin) {
        if let Some(at) = self
            .refused
            .iter()
            .position(|known| known.address == refused.address)
            && let Some(known) = self.refused.remove(at)
        {
            refused.count = known.count.saturating_add(1);
        }
        if self.refused.len() >= MAX_REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back(refused);
    }
}

impl Listed {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            rest: Duration::ZERO,
            own: false,
            hellos: 0,
        }
    }

    pub(super) fn is_group(&self) -> bool {
        self.address.ip().is_multicast()
    }
}

/// Whether a live peer is reached by an address.
pub(super) fn is_answered(peers: &BTreeMap<PeerName, Peer>, address: SocketAddr) -> bool {
    let mut live = peers.values().filter(|peer| peer.is_live());
    live.any(|peer| peer.answers_at(address))
}

/// The wait before the first repetition of a HELLO; it doubles.
pub(super) const HELLO_AGAIN: Duration = Duration::from_millis(500);
pub(super) const HELLO_AGAIN_AT_MOST: Duration = Duration::from_secs(5);

/// Joins begun because somebody called.
pub(super) const MAX_CALLED: usize = 32;

/// Addresses whose refused joins are remembered.
const MAX_REFUSED: usize = 16;
