//! Sends joins, echoes, keep-alives, records and dumps, in this order.
//!
//! Joins, echoes and keep-alives are never delayed. Records share datagrams and are sent at the
//! next poll, up to the limits on datagrams per turn and bytes per second. Further records wait in
//! the queue of their peer.

use std::net::SocketAddr;
use std::ops::Bound;
use std::time::Duration;

use zeroize::Zeroize;

use super::Replica;
use super::datagram::{HEADER_LEN, Header, Join, JoinKind, MAX_DATAGRAM, PairId};
use super::join::CANDIDATE_LIFE;
use super::limits::ReplicaLimits;
use super::names::PeerName;
use super::pace::Pace;
use super::peer::{Dump, DumpWalk, KeyedPair, PairStage, ReplicaPeer};
use super::record::{Frame, MAX_RECORD, PeerRecord, PeerStick, SessionRecord};
use super::sink::DumpSource;
use super::status::{DropCause, PeerTraffic};
use super::vault::{JOIN_NONCE_LEN, NONCE_LEN, TAG_LEN, Vault, random};
use becket_proto::bounded_table::Cursor;
use becket_proto::ticket::SecretId;

struct Exit<'a, V, F> {
    vault: &'a mut V,
    pace: &'a mut Pace,
    total: &'a mut PeerTraffic,
    send: &'a mut F,
    now: Duration,
    /// Number of datagrams with records that may still be sent in this turn.
    left: usize,
    draft: [u8; MAX_DATAGRAM],
}

impl<V: Vault> Replica<V> {
    /// Does all work that is due: removes silent peers, and sends joins, echoes, keep-alives, records and dumps.
    ///
    /// `send` returns whether the socket accepted the datagram; a rejected datagram is lost and counted. Visits all
    /// peers, and seals each datagram once.
    pub fn poll(
        &mut self,
        now: Duration,
        source: &mut impl DumpSource,
        send: &mut impl FnMut(SocketAddr, &[u8]) -> bool,
    ) {
        if self.expires <= now {
            self.expire(now);
        }
        self.plan_joins(now);
        self.warming.advance(&mut self.peers, now);
        self.dump(now, source);
        self.send_joins(now, send);
        self.send_pairs(now, source, send);
    }

    /// Sends a goodbye to every live peer, so that the peers need not wait until this node counts
    /// as silent. The caller must drop the `Replica` afterwards.
    pub fn leave(&mut self, now: Duration, send: &mut impl FnMut(SocketAddr, &[u8]) -> bool) {
        let mut exit = Exit::new(&mut self.vault, &mut self.pace, &mut self.total, send, now);
        for peer in self.peers.values_mut().filter(|peer| peer.is_live()) {
            let sending = peer.sending(&self.pairs);
            if let Some(pair) = sending.and_then(|id| self.pairs.get_mut(&id)) {
                exit.frame(pair, &mut peer.traffic, Frame::Bye);
            }
        }
    }

    /// Returns the latest time of the next [`poll`](Self::poll) if no datagram and no record
    /// arrives earlier. The time may be in the past.
    pub fn next_deadline(&self) -> Option<Duration> {
        let pace = self.pace.when();
        let sync = self.sync_pace.when();
        let peers = self.peers.values().flat_map(|peer| {
            let records = (!peer.outbox.is_empty()).then_some(pace);
            let dump = peer.dump.and_then(|_| room_for_dump(peer, &self.limits));
            let dump = dump.map(|_| sync);
            let keep_alive = peer.sending(&self.pairs).filter(|_| peer.is_live());
            let keep_alive = keep_alive
                .and_then(|id| self.pairs.get(&id))
                .map(|pair| pair.sent + self.limits.keep_alive);
            [records, dump, keep_alive].into_iter().flatten()
        });
        let pairs = self.pairs.values().filter_map(KeyedPair::due);
        let expires = (!self.pairs.is_empty()).then_some(self.expires);
        let others = [self.joins.when(), self.warming.when(&self.peers), expires];
        peers.chain(pairs).chain(others.into_iter().flatten()).min()
    }

    /// Removes candidates without an echo, silent peers and silent pairs.
    fn expire(&mut self, now: Duration) {
        self.expires = now + EXPIRE_AGAIN;
        let dead_after = self.limits.dead_after;
        self.pairs
            .retain(|_, pair| !pair.is_candidate() || now < pair.made + CANDIDATE_LIFE);
        let peers = self.peers.values();
        let silent = peers.filter(|peer| now >= peer.heard + dead_after);
        let silent: Vec<PeerName> = silent.map(|peer| peer.name).collect();
        for name in silent {
            self.depart(name);
        }
        for peer in self.peers.values_mut() {
            let sending = peer.sending(&self.pairs);
            peer.pairs.retain(|id| {
                let pair = self.pairs.get(id);
                sending == Some(*id) || pair.is_some_and(|pair| now < pair.heard + dead_after)
            });
        }
        let peers = &self.peers;
        self.pairs.retain(|id, pair| {
            let peer = peers.get(&pair.peer);
            pair.is_candidate() || peer.is_some_and(|peer| peer.pairs.contains(id))
        });
        let mut pairs = self.pairs.values();
        if pairs.any(|pair| pair.is_to_be_replaced(&self.limits, now)) {
            self.joins.look_at(now);
        }
    }

    /// Removes a peer. Stores when a live peer was last heard, so that this node can request a dump
    /// when the peer returns.
    pub(super) fn depart(&mut self, name: PeerName) {
        let Some(peer) = self.peers.remove(&name) else {
            return;
        };
        for id in &peer.pairs {
            self.pairs.remove(id);
        }
        if peer.is_live() {
            self.warming.left(name, peer.heard);
        }
        self.joins.look_at(Duration::ZERO);
    }

    fn send_joins(&mut self, now: Duration, send: &mut impl FnMut(SocketAddr, &[u8]) -> bool) {
        let name = self.name;
        let mut exit = Exit::new(&mut self.vault, &mut self.pace, &mut self.total, send, now);
        for (id, begun) in self.joins.due_hellos(now) {
            let hello = Join {
                kind: JoinKind::Hello,
                from: name,
                id,
                nonce: begun.nonce,
                echo: [0; NONCE_LEN],
                share: begun.share,
            };
            exit.join(begun.secret, None, &hello, begun.target);
        }
        for (id, pair) in &mut self.pairs {
            if let PairStage::Candidate {
                share,
                due: due @ true,
            } = &mut pair.stage
            {
                *due = false;
                let welcome = Join {
                    kind: JoinKind::Welcome,
                    from: name,
                    id: *id,
                    nonce: pair.welcome,
                    echo: pair.hello,
                    share: *share,
                };
                exit.join(pair.secret, Some(pair.theirs), &welcome, pair.address);
            }
        }
    }

    /// Sends the due datagrams of all pairs. Starts with the peer at which the previous turn
    /// reached the limit.
    fn send_pairs(
        &mut self,
        now: Duration,
        source: &impl DumpSource,
        send: &mut impl FnMut(SocketAddr, &[u8]) -> bool,
    ) {
        // Counts the sessions only for a keep-alive, because counting takes every lock of the session
        // table.
        let alive = || Frame::Alive {
            held: source.held(),
        };
        let mut exit = Exit::new(&mut self.vault, &mut self.pace, &mut self.total, send, now);
        exit.left = self.limits.datagrams_per_turn;
        let first = self.served.take().unwrap_or(PeerName::LOWEST);
        let ranges = [
            (Bound::Included(first), Bound::Unbounded),
            (Bound::Unbounded, Bound::Excluded(first)),
        ];
        for range in ranges {
            for (name, peer) in self.peers.range_mut(range) {
                for id in &peer.pairs {
                    if let Some(pair) = self.pairs.get_mut(id)
                        && pair.due().is_some_and(|due| due <= now)
                    {
                        exit.frame(pair, &mut peer.traffic, alive());
                    }
                }
                let sending = peer.sending(&self.pairs).filter(|_| peer.is_live());
                let Some(pair) = sending.and_then(|id| self.pairs.get_mut(&id)) else {
                    continue;
                };
                if now >= pair.sent + self.limits.keep_alive {
                    exit.frame(pair, &mut peer.traffic, alive());
                }
                if !exit.records(pair, peer) && self.served.is_none() {
                    self.served = Some(*name);
                }
            }
        }
    }

    /// Encodes sessions and sticks into the queues of the peers that requested a dump, within the
    /// dump rate limit.
    fn dump(&mut self, now: Duration, source: &mut impl DumpSource) {
        for peer in self.peers.values_mut() {
            let mut chunks = 0;
            while let Some(dump) = peer.dump {
                if chunks >= CHUNKS_PER_TURN || !self.sync_pace.ready(now) {
                    break;
                }
                chunks += 1;
                let Some(room) = room_for_dump(peer, &self.limits) else {
                    break;
                };
                let bytes = dump_chunk(peer, dump, room, source);
                self.sync_pace.charge(now, bytes + 16 * room as u64);
            }
        }
    }
}

/// Moves up to `room` records into the queue. Returns the number of bytes moved.
fn dump_chunk(
    peer: &mut ReplicaPeer,
    mut dump: Dump,
    room: usize,
    source: &mut impl DumpSource,
) -> u64 {
    let mut record = [0; MAX_RECORD];
    let before = peer.outbox.len();
    let mut show = |shown: PeerRecord<'_>| match shown.encode(&mut record) {
        Some(len) if peer.outbox.push(record.get(..len).unwrap_or_default()) => {}
        Some(_) => peer.traffic.drops.note(DropCause::QueueFull),
        None => peer.traffic.drops.note(DropCause::TooLarge),
    };
    let next = match dump.at {
        DumpWalk::Sticks(from) => {
            let mut show = |stick: PeerStick| show(PeerRecord::Stuck(stick));
            let next = source.visit_sticks(from, dump.youngest, room, &mut show);
            Some(next.map_or(DumpWalk::Sessions(Cursor::default()), DumpWalk::Sticks))
        }
        DumpWalk::Sessions(from) => {
            let mut show = |session: SessionRecord<'_>| show(PeerRecord::Sync(session));
            let next = source.visit(from, dump.youngest, room, &mut show);
            next.map(DumpWalk::Sessions)
        }
    };
    if let Some(next) = next {
        dump.at = next;
        peer.dump = Some(dump);
    } else {
        let len = Frame::End.encode(&mut record).unwrap_or(0);
        peer.outbox.push(record.get(..len).unwrap_or_default());
        peer.dump = None;
    }
    record.zeroize();
    (peer.outbox.len() - before) as u64
}

/// Returns the number of dump records that fit into the peer's queue. Half of the queue is reserved
/// for new sessions.
fn room_for_dump(peer: &ReplicaPeer, limits: &ReplicaLimits) -> Option<usize> {
    let half = limits.queue_bytes / 2;
    let room = peer.outbox.room().checked_sub(half)?;
    // Reserve space for the record that ends the dump.
    let records = (room / MAX_RECORD).saturating_sub(1).min(CHUNK);
    (records > 0).then_some(records)
}

impl<'a, V: Vault, F: FnMut(SocketAddr, &[u8]) -> bool> Exit<'a, V, F> {
    fn new(
        vault: &'a mut V,
        pace: &'a mut Pace,
        total: &'a mut PeerTraffic,
        send: &'a mut F,
        now: Duration,
    ) -> Self {
        Self {
            vault,
            pace,
            total,
            send,
            now,
            left: 0,
            draft: [0; MAX_DATAGRAM],
        }
    }

    fn join(&mut self, secret: SecretId, to: Option<PairId>, join: &Join, address: SocketAddr) {
        let nonce: [u8; JOIN_NONCE_LEN] = random(self.vault);
        let header = Header::Join { secret, to, nonce }.encode();
        let mut text = join.encode();
        let Some(tag) = self.vault.seal_join(secret, &nonce, &header, &mut text) else {
            self.total.drops.note(DropCause::VaultFailed);
            return;
        };
        let mut len = 0;
        for part in [&header[..], &nonce, &text, &tag] {
            self.draft[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        self.leave(len, 0, address, None);
    }

    fn frame(
        &mut self,
        pair: &mut KeyedPair<V::Keys>,
        traffic: &mut PeerTraffic,
        frame: Frame<'_>,
    ) {
        self.pair(pair, traffic, |text| (frame.encode(text).unwrap_or(0), 0));
    }

    /// Sends the queued records of a peer, within the limits. Returns whether the queue was
    /// emptied.
    fn records(&mut self, pair: &mut KeyedPair<V::Keys>, peer: &mut ReplicaPeer) -> bool {
        while !peer.outbox.is_empty() {
            if self.left == 0 || !self.pace.ready(self.now) {
                return false;
            }
            self.left -= 1;
            let outbox = &mut peer.outbox;
            self.pair(pair, &mut peer.traffic, |text| outbox.fill(text));
        }
        true
    }

    /// Seals and sends one datagram of a pair. `fill` writes the records into the buffer and returns the number of
    /// bytes and of records.
    fn pair(
        &mut self,
        pair: &mut KeyedPair<V::Keys>,
        traffic: &mut PeerTraffic,
        fill: impl FnOnce(&mut [u8]) -> (usize, u64),
    ) {
        pair.sequence += 1;
        pair.sent = self.now;
        pair.reply_due = false;
        let header = Header::Pair {
            to: pair.theirs,
            sequence: pair.sequence,
        };
        let header = header.encode();
        let (head, rest) = self.draft.split_at_mut(HEADER_LEN);
        head.copy_from_slice(&header);
        let mut len = 0;
        if pair.stage == PairStage::Echoing {
            len = Frame::Echo(pair.welcome).encode(rest).unwrap_or(0);
        }
        let room = rest.len() - TAG_LEN;
        let (filled, records) = fill(&mut rest[len..room]);
        len += filled;
        let text = &mut rest[..len];
        match self
            .vault
            .seal(&mut pair.keys, pair.sequence, &header, text)
        {
            Some(tag) => rest[len..len + TAG_LEN].copy_from_slice(&tag),
            None => {
                text.zeroize();
                traffic.drops.note(DropCause::VaultFailed);
                self.total.drops.note(DropCause::VaultFailed);
                return;
            }
        }
        self.leave(
            HEADER_LEN + len + TAG_LEN,
            records,
            pair.address,
            Some(traffic),
        );
    }

    fn leave(
        &mut self,
        len: usize,
        records: u64,
        address: SocketAddr,
        peer: Option<&mut PeerTraffic>,
    ) {
        self.pace.charge(self.now, len as u64);
        let taken = (self.send)(address, &self.draft[..len]);
        for traffic in [Some(&mut *self.total), peer].into_iter().flatten() {
            if taken {
                traffic.sent += 1;
                traffic.sent_bytes += len as u64;
                traffic.sent_records += records;
            } else {
                traffic.drops.note(DropCause::Unsent);
            }
        }
    }
}

const EXPIRE_AGAIN: Duration = Duration::from_secs(1);

/// Maximum number of sessions or sticks that a dump reads in one call.
const CHUNK: usize = 64;
const CHUNKS_PER_TURN: usize = 16;
