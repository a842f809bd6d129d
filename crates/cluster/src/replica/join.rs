//! Implements the join, in which two nodes agree on keys. A HELLO starts a join, a WELCOME answers it, and an echo of
//! the WELCOME's nonce completes it.
//!
//! [`joins`](super::joins) contains the joins that this node began, until they are answered. A join that this node
//! answered is a pair (of keys with one peer) in the candidate stage. Only the echo turns a candidate into a peer. A
//! replayed HELLO therefore costs one key agreement, is rate-limited, and changes nothing.
//!
//! No key is derived twice: a WELCOME uses up the nonce and the key share of its HELLO. A repeated HELLO receives the
//! same WELCOME while its candidate exists, and a new one afterwards.

use std::net::SocketAddr;
use std::time::Duration;

use super::Replica;
use super::datagram::{HEADER_LEN, Join, JoinKind, PairId};
use super::joins::{BegunJoin, HELLO_AGAIN, HELLO_AGAIN_AT_MOST, Reason, is_answered};
use super::names::PeerName;
use super::peer::{Ends, KeyedPair, MAX_BOOTS_OF_NODE, PairStage, ReplicaPeer, Retired};
use super::status::{DropCause, RefusedJoin};
use super::vault::{
    JOIN_NONCE_LEN, NONCE_LEN, Party, Role, SHARE_LEN, TAG_LEN, Transcript, Vault, random,
};
use becket_proto::ticket::SecretId;

struct OpenedJoin {
    from: SocketAddr,
    secret: SecretId,
    to: Option<PairId>,
    join: Join,
}

impl<V: Vault> Replica<V> {
    /// Begins joins with listed addresses that have none, and with peers whose keys must be
    /// replaced. Abandons expired joins.
    pub(super) fn plan_joins(&mut self, now: Duration) {
        let before = self.joins.begun.len();
        self.joins.begun.retain(|_, begun| begun.ends > now);
        if before == self.joins.begun.len() && self.joins.look.is_none_or(|look| look > now) {
            return;
        }
        let rests = self.joins.listed.iter().map(|known| known.rest);
        self.joins.look = rests.filter(|rest| *rest > now).min();
        let listed = self.joins.listed.iter().filter(|known| known.rest <= now);
        let missing = listed.filter(|known| !is_answered(&self.peers, known.address));
        let mut targets: Vec<_> = missing
            .map(|known| (known.address, Reason::Listed))
            .collect();
        for peer in self.peers.values().filter(|peer| peer.is_live()) {
            let newest = peer.pairs.last().and_then(|id| self.pairs.get(id));
            if newest.is_some_and(|pair| pair.is_to_be_replaced(&self.limits, now)) {
                targets.push((peer.address, Reason::Stale));
            }
        }
        for (target, reason) in targets {
            self.begin(target, reason, now);
        }
    }

    fn begin(&mut self, target: SocketAddr, reason: Reason, now: Duration) {
        let Some(secret) = self.vault.secrets().first().copied() else {
            return;
        };
        if self.joins.is_begun(target) {
            return;
        }
        let Some((ours, share)) = self.vault.share() else {
            self.total.drops.note(DropCause::VaultFailed);
            self.joins.look_at(now + HELLO_AGAIN_AT_MOST);
            return;
        };
        let begun = BegunJoin {
            target,
            secret,
            nonce: random(&mut self.vault),
            share,
            ours,
            next: now,
            wait: HELLO_AGAIN,
            ends: now + BEGUN_LIFE,
            reason,
        };
        let id = self.free_id();
        self.joins.begun.insert(id, begun);
    }

    fn free_id(&mut self) -> PairId {
        loop {
            let id = PairId(u32::from_be_bytes(random(&mut self.vault)));
            if id.0 != 0 && !self.pairs.contains_key(&id) && !self.joins.begun.contains_key(&id) {
                return id;
            }
        }
    }

    /// Decrypts a join datagram and handles its message. Rejects a HELLO that exceeds the rate
    /// limits before decryption.
    pub(super) fn take_join(
        &mut self,
        from: SocketAddr,
        datagram: &mut [u8],
        header: (SecretId, Option<PairId>, [u8; JOIN_NONCE_LEN]),
        now: Duration,
    ) -> Result<(), DropCause> {
        let (secret, to, nonce) = header;
        if to.is_some_and(|to| !self.joins.begun.contains_key(&to)) {
            return Err(DropCause::UnknownKey);
        }
        if !self.vault.secrets().contains(&secret) {
            return Err(self.refuse(from, DropCause::UnknownSecret, secret, now));
        }
        let listed = self.joins.is_listed(from);
        if to.is_none()
            && !self
                .hello_limits
                .admits(from.ip(), listed, &self.limits, now)
        {
            return Err(DropCause::HelloLimited);
        }
        let (header, rest) = datagram
            .split_at_mut_checked(HEADER_LEN)
            .ok_or(DropCause::Garbage)?;
        let sealed = rest.get_mut(JOIN_NONCE_LEN..).ok_or(DropCause::Garbage)?;
        let len = sealed
            .len()
            .checked_sub(TAG_LEN)
            .ok_or(DropCause::Garbage)?;
        if !self.vault.open_join(secret, &nonce, header, sealed) {
            return Err(self.refuse(from, DropCause::BadJoin, secret, now));
        }
        let join = sealed.get(..len).and_then(Join::decode);
        let opened = OpenedJoin {
            from,
            secret,
            to,
            join: join.ok_or(DropCause::Malformed)?,
        };
        self.take_opened(&opened, now)
    }

    fn take_opened(&mut self, opened: &OpenedJoin, now: Duration) -> Result<(), DropCause> {
        if opened.join.from == self.name {
            // This node sent the datagram. The listed address is that of this node, or a host
            // reflects datagrams.
            self.joins.came_back(opened.join.id, now + REST);
            return Err(DropCause::Own);
        }
        match (opened.join.kind, opened.to) {
            (JoinKind::Hello, None) => self.take_hello(opened, now),
            (JoinKind::Welcome, Some(to)) => self.take_welcome(opened, to, now),
            _ => Err(DropCause::Malformed),
        }
    }

    fn take_hello(&mut self, opened: &OpenedJoin, now: Duration) -> Result<(), DropCause> {
        let hello = &opened.join;
        let mut known = self.pairs.values_mut();
        if let Some(pair) = known.find(|pair| pair.peer == hello.from && pair.hello == hello.nonce)
        {
            return match &mut pair.stage {
                PairStage::Candidate { due, .. } => {
                    *due = true;
                    // One of the two HELLOs is a replay from another address. Both addresses receive the WELCOME, and
                    // only the genuine sender can answer with an echo.
                    pair.address = opened.from;
                    Ok(())
                }
                _ => Err(DropCause::Replayed),
            };
        }
        self.make_room_for_candidate(hello.from);
        let (ours, share) = self.vault.share().ok_or(DropCause::VaultFailed)?;
        let welcome = random(&mut self.vault);
        let transcript = Transcript {
            secret: opened.secret,
            initiator: party(hello.from, hello.nonce, hello.share),
            responder: party(self.name, welcome, share),
        };
        let keys = self.vault.agree(&ours, &transcript, Role::Responder);
        let keys = keys.ok_or(DropCause::VaultFailed)?;
        let id = self.free_id();
        let ends = Ends {
            peer: hello.from,
            theirs: hello.id,
            address: opened.from,
            stage: PairStage::Candidate { share, due: true },
        };
        self.pairs
            .insert(id, KeyedPair::new(keys, &transcript, ends, now));
        Ok(())
    }

    /// Drops the oldest candidate if this peer has too many candidates, or if all peers together
    /// have too many.
    fn make_room_for_candidate(&mut self, name: PeerName) {
        for (limit, of_peer) in [(MAX_CANDIDATES_OF_PEER, true), (MAX_CANDIDATES, false)] {
            let candidates = self
                .pairs
                .iter()
                .filter(|(_, pair)| pair.is_candidate() && (!of_peer || pair.peer == name));
            let oldest = candidates.clone().min_by_key(|(_, pair)| pair.made);
            if let Some(id) = oldest.map(|(id, _)| *id)
                && candidates.count() >= limit
            {
                self.pairs.remove(&id);
            }
        }
    }

    fn take_welcome(
        &mut self,
        opened: &OpenedJoin,
        to: PairId,
        now: Duration,
    ) -> Result<(), DropCause> {
        let welcome = &opened.join;
        let begun = self.joins.begun.get(&to).ok_or(DropCause::UnknownKey)?;
        if welcome.echo != begun.nonce || opened.secret != begun.secret {
            return Err(DropCause::WrongNonce);
        }
        let target = begun.target;
        let transcript = Transcript {
            secret: opened.secret,
            initiator: party(self.name, begun.nonce, begun.share),
            responder: party(welcome.from, welcome.nonce, welcome.share),
        };
        let keys = self.vault.agree(&begun.ours, &transcript, Role::Initiator);
        // Remove the join even after a failure, because its nonce and key share must not be used
        // for a second key.
        self.joins.begun.remove(&to);
        let Some(keys) = keys else {
            self.joins.rest(target, now + REST);
            return Err(DropCause::VaultFailed);
        };
        let ends = Ends {
            peer: welcome.from,
            theirs: welcome.id,
            address: target,
            stage: PairStage::Echoing,
        };
        self.pairs
            .insert(to, KeyedPair::new(keys, &transcript, ends, now));
        let completed = self.complete(to, Some(target), now);
        if completed == Err(DropCause::TooManyPeers) {
            self.joins.rest(target, now + REST);
        }
        completed
    }

    /// Creates a peer from a pair whose sender has echoed this node's nonce, or adds the pair to an
    /// existing peer.
    pub(super) fn complete(
        &mut self,
        id: PairId,
        dialled: Option<SocketAddr>,
        now: Duration,
    ) -> Result<(), DropCause> {
        let pair = self.pairs.get(&id).ok_or(DropCause::UnknownKey)?;
        let (name, address) = (pair.peer, pair.address);
        if self.peers.get(&name).is_some_and(ReplicaPeer::has_left) {
            // The answer arrived after the peer's goodbye.
            self.pairs.remove(&id);
            return Err(DropCause::UnknownKey);
        }
        if !self.has_place(name) {
            self.pairs.remove(&id);
            return Err(DropCause::TooManyPeers);
        }
        let known = self.peers.contains_key(&name);
        let before = self.process_before(name);
        if !known {
            self.replace_others(name, now);
        }
        self.forget_oldest_boot(name);
        if !known {
            self.forget_a_retired();
        }
        let limits = &self.limits;
        let peer = self.peers.entry(name);
        let peer = peer.or_insert_with(|| ReplicaPeer::new(name, address, limits, now));
        if !known {
            self.warming.joined(name, before, now);
        } else if dialled.is_none() {
            // The peer joins again because it considered this node dead or because the secret
            // changed.
            self.warming.missed(name, peer.heard, now);
        }
        peer.revive(limits);
        peer.heard = now;
        match dialled {
            Some(address) => peer.reached_by(address),
            None => peer.address = address,
        }
        peer.pairs.push(id);
        let surplus = peer.pairs.len().saturating_sub(MAX_PAIRS_OF_PEER);
        for old in peer.pairs.drain(..surplus) {
            self.pairs.remove(&old);
        }
        self.joins.answered(address);
        Ok(())
    }

    /// Returns the time of the last datagram from another process of the same node.
    fn process_before(&self, name: PeerName) -> Option<Duration> {
        let of_node = self.peers.values();
        let of_node = of_node.filter(|peer| peer.name.node == name.node && peer.name != name);
        of_node.map(|peer| peer.heard).max()
    }

    /// Returns whether the limit on live peers admits this process. Does not count other processes of the same node.
    pub(super) fn has_place(&self, name: PeerName) -> bool {
        if self.peers.get(&name).is_some_and(ReplicaPeer::is_live) {
            return true;
        }
        let live = self.peers.values().filter(|peer| peer.is_live());
        let others = live.filter(|peer| peer.name.node != name.node);
        others.count() < self.limits.peers
    }

    /// Removes the process that has been silent longest if a node has too many processes. Otherwise
    /// a node that restarts continually would exhaust memory.
    fn forget_oldest_boot(&mut self, name: PeerName) {
        let of_node = self
            .peers
            .values()
            .filter(|peer| peer.name.node == name.node && peer.name != name);
        if of_node.clone().count() >= MAX_BOOTS_OF_NODE
            && let Some(oldest) = of_node.min_by_key(|peer| peer.heard).map(|peer| peer.name)
        {
            self.depart(oldest);
        }
    }

    /// Removes the retired peer that has been silent longest if there are too many peers. Otherwise
    /// a node that returns under new numbers would exhaust memory.
    fn forget_a_retired(&mut self) {
        if self.peers.len() < self.limits.peers * MAX_BOOTS_OF_NODE {
            return;
        }
        let retired = self.peers.values().filter(|peer| !peer.is_live());
        if let Some(oldest) = retired.min_by_key(|peer| peer.heard).map(|peer| peer.name) {
            self.depart(oldest);
        }
    }

    /// Retires all other processes of the node. A retired process becomes live again if it joins or
    /// sends a datagram later.
    fn replace_others(&mut self, name: PeerName, now: Duration) {
        for peer in self.peers.values_mut() {
            if peer.name.node == name.node && peer.name != name && peer.is_live() {
                peer.retire(Retired::Replaced(now));
            }
        }
    }

    fn refuse(
        &mut self,
        from: SocketAddr,
        cause: DropCause,
        secret: SecretId,
        now: Duration,
    ) -> DropCause {
        self.joins.refuse(RefusedJoin {
            address: from,
            name: None,
            cause,
            secret,
            ago: Duration::ZERO,
            last: now,
            count: 1,
        });
        cause
    }
}

fn party(name: PeerName, nonce: [u8; NONCE_LEN], share: [u8; SHARE_LEN]) -> Party {
    Party {
        node: name.node,
        boot: name.boot,
        nonce,
        share,
    }
}

/// Maximum age of an unanswered join. The next HELLO then has a new nonce and key share.
const BEGUN_LIFE: Duration = Duration::from_secs(60);

/// Time without joins to an address if it belongs to this node or if a join to it cannot succeed.
const REST: Duration = Duration::from_secs(30);

/// Maximum time from the WELCOME to its echo.
pub(super) const CANDIDATE_LIFE: Duration = Duration::from_secs(10);

/// Maximum number of candidates per peer. It exceeds 1 so that a replayed HELLO does not displace
/// the genuine one.
const MAX_CANDIDATES_OF_PEER: usize = 4;
const MAX_CANDIDATES: usize = 64;

/// Maximum number of pairs per peer. Two nodes that join each other simultaneously create two
/// pairs, and a change of secrets creates two more.
const MAX_PAIRS_OF_PEER: usize = 4;
