//! Receives the datagrams of a pair.
//!
//! The checks are ordered by cost: the key id must be known and the sequence number must be new before the datagram is
//! decrypted. Until a datagram is decrypted, it changes nothing except counters.

use std::net::SocketAddr;
use std::time::Duration;

use zeroize::Zeroize;

use super::Replica;
use super::datagram::{HEADER_LEN, Header, PairId};
use super::names::PeerName;
use super::peer::{Dump, DumpWalk, PairStage, Retired};
use super::record::{Frame, PeerRecord};
use super::sink::{Sink, StickCursor};
use super::status::{DropCause, PeerTraffic};
use super::vault::{TAG_LEN, Vault};
use becket_proto::reader::Reader;

impl<V: Vault> Replica<V> {
    pub(super) fn take_datagram(
        &mut self,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Duration,
        sink: &mut impl Sink,
    ) -> Result<(), DropCause> {
        match Header::decode(datagram)? {
            Header::Pair { to, sequence } => {
                let opened = self.take_sealed((to, from), sequence, datagram, now);
                let taken =
                    opened.and_then(|()| self.take_text((to, from), text(datagram), now, sink));
                if let Err(cause) = taken {
                    self.note_peer(to, cause);
                }
                datagram.zeroize();
                taken
            }
            Header::Join { secret, to, nonce } => {
                self.take_join(from, datagram, (secret, to, nonce), now)
            }
        }
    }

    /// Decrypts a datagram in place, and updates the state of its pair and peer. Does not parse its
    /// records.
    fn take_sealed(
        &mut self,
        (to, from): (PairId, SocketAddr),
        sequence: u64,
        datagram: &mut [u8],
        now: Duration,
    ) -> Result<(), DropCause> {
        let pair = self.pairs.get_mut(&to).ok_or(DropCause::UnknownKey)?;
        pair.window.check(sequence)?;
        let bytes = datagram.len() as u64;
        let (header, sealed) = datagram
            .split_at_mut_checked(HEADER_LEN)
            .ok_or(DropCause::Garbage)?;
        if sealed.len() < TAG_LEN {
            return Err(DropCause::Garbage);
        }
        if !self.vault.open(&mut pair.keys, sequence, header, sealed) {
            return Err(DropCause::BadSeal);
        }
        let arrival = pair.window.mark(sequence);
        if pair.is_candidate() {
            let first = Frame::next(&mut Reader::new(text(datagram)));
            if first != Some(Ok(Frame::Echo(pair.welcome))) {
                return Err(DropCause::NotEchoed);
            }
            pair.stage = PairStage::Confirmed;
            pair.address = from;
            self.complete(to, None, now)?;
        }
        let pair = self.pairs.get_mut(&to).ok_or(DropCause::UnknownKey)?;
        pair.heard = now;
        pair.stage = PairStage::Confirmed;
        let name = pair.peer;
        let peer = self.peers.get(&name).ok_or(DropCause::UnknownKey)?;
        let revives = peer.outlived_its_replacement(now) && self.has_place(name);
        let peer = self.peers.get_mut(&name).ok_or(DropCause::UnknownKey)?;
        peer.hear(now);
        if revives {
            peer.revive(&self.limits);
        }
        for traffic in [&mut peer.traffic, &mut self.total] {
            traffic.received += 1;
            traffic.received_bytes += bytes;
            let lost = traffic.lost.saturating_add(arrival.missed);
            traffic.lost = lost.saturating_sub(arrival.late.into());
        }
        Ok(())
    }

    /// Applies the records of a decrypted datagram. Stops at a truncated record, after the previous
    /// records have been applied.
    fn take_text(
        &mut self,
        (to, from): (PairId, SocketAddr),
        text: &[u8],
        now: Duration,
        sink: &mut impl Sink,
    ) -> Result<(), DropCause> {
        let pair = self.pairs.get_mut(&to).ok_or(DropCause::UnknownKey)?;
        let peer = self
            .peers
            .get_mut(&pair.peer)
            .ok_or(DropCause::UnknownKey)?;
        let mut reader = Reader::new(text);
        let mut left = false;
        while !reader.is_empty() {
            match Frame::next(&mut reader).ok_or(DropCause::Malformed)? {
                Ok(Frame::Record(record)) => {
                    if matches!(record, PeerRecord::Sync(_) | PeerRecord::Stuck(_)) {
                        self.warming.received(peer.name, now);
                    }
                    let taken = sink.take(peer.name, record);
                    count(taken, [&mut peer.traffic, &mut self.total]);
                }
                Ok(Frame::Echo(nonce)) => {
                    pair.reply_due = true;
                    if nonce == pair.welcome {
                        // An echo proves that the peer receives datagrams at this address. A HELLO
                        // can come from a forged address.
                        pair.address = from;
                        peer.address = from;
                    }
                }
                Ok(Frame::Alive { held }) => peer.held = Some(held),
                // A dump request is ignored while a dump is running.
                Ok(Frame::Ask { youngest }) if peer.dump.is_none() && peer.is_live() => {
                    peer.dump = Some(Dump {
                        at: DumpWalk::Sticks(StickCursor::default()),
                        youngest: Duration::from_secs(youngest.into()),
                    });
                }
                Ok(Frame::Ask { .. }) => {}
                Ok(Frame::End) => self.warming.ended(peer.name),
                Ok(Frame::Bye) => left = true,
                Err(cause) => count(Err(cause), [&mut peer.traffic, &mut self.total]),
            }
        }
        if left {
            self.farewell(to);
        }
        Ok(())
    }

    /// Handles a goodbye: this node stops sending to the peer, and no longer counts it towards the
    /// limit on peers.
    fn farewell(&mut self, id: PairId) {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return;
        };
        pair.reply_due = false;
        let name = pair.peer;
        if let Some(peer) = self.peers.get_mut(&name) {
            peer.retire(Retired::Left);
            peer.pairs = vec![id];
        }
        self.pairs
            .retain(|other, pair| *other == id || pair.peer != name);
        // Join the address again immediately, because the node's next process will use it.
        self.joins.look_at(Duration::ZERO);
    }

    fn note_peer(&mut self, to: PairId, cause: DropCause) {
        let name = self.pairs.get(&to).map(|pair| pair.peer);
        if let Some(peer) = name.and_then(|name: PeerName| self.peers.get_mut(&name)) {
            peer.traffic.drops.note(cause);
        }
    }
}

fn text(datagram: &[u8]) -> &[u8] {
    let end = datagram.len().saturating_sub(TAG_LEN);
    datagram.get(HEADER_LEN..end).unwrap_or_default()
}

fn count(taken: Result<(), DropCause>, traffic: [&mut PeerTraffic; 2]) {
    for traffic in traffic {
        match taken {
            Ok(()) => traffic.received_records += 1,
            Err(cause) => traffic.drops.note(cause),
        }
    }
}
