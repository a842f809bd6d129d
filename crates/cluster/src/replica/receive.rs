//! What arrives under the keys of a pair: replay window, seal, echo, records.
//!
//! The order of checks is by cost: the key id must be one of ours, the sequence new, and only then is the datagram opened,
//! once. Nothing is believed, and nothing but a counter changes, before it opens.

use std::net::SocketAddr;
use std::time::Duration;

use zeroize::Zeroize;

use super::datagram::{HEADER_LEN, Header, PairId};
use super::limits::Limits;
use super::peer::{Dump, Peer, Retired, Stage, Walk};
use super::record::{Frame, Parsed, Record, SessionRecord, StickRecord};
use super::status::{Cause, Traffic};
use super::vault::{TAG_LEN, Vault};
use super::window::Freshness;
use super::{PeerName, Replica, Sink, StickCursor, Taken};
use becket_proto::reader::Reader;

impl<V: Vault> Replica<V> {
    pub(super) fn take_datagram(
        &mut self,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Duration,
        sink: &mut impl Sink,
    ) -> Result<(), Cause> {
        match Header::decode(datagram)?.0 {
            Header::Pair { to, sequence } => {
                let result = self.take_sealed((to, from), sequence, datagram, now);
                let taken = match result {
                    Ok(()) => self.take_text((to, from), text(datagram), now, sink),
                    Err(cause) => Err(cause),
                };
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

    /// Opens a datagram in place and settles what it proves, before a record in it is looked at.
    fn take_sealed(
        &mut self,
        (to, from): (PairId, SocketAddr),
        sequence: u64,
        datagram: &mut [u8],
        now: Duration,
    ) -> Result<(), Cause> {
        let pair = self.pairs.get_mut(&to).ok_or(Cause::UnknownKey)?;
        match pair.window.judge(sequence) {
            Freshness::New => {}
            Freshness::Replayed => return Err(Cause::Replayed),
            Freshness::TooOld => return Err(Cause::TooOld),
        }
        let bytes = datagram.len() as u64;
        let (header, sealed) = datagram
            .split_at_mut_checked(HEADER_LEN)
            .ok_or(Cause::Garbage)?;
        if sealed.len() < TAG_LEN {
            return Err(Cause::Garbage);
        }
        if !self.vault.open(&mut pair.keys, sequence, header, sealed) {
            return Err(Cause::BadSeal);
        }
        let arrival = pair.window.mark(sequence);
        if pair.is_candidate() {
            let first = Frame::next(&mut Reader::new(text(datagram)));
            if first != Some(Parsed::Frame(Frame::Echo(pair.welcome))) {
                return Err(Cause::NotEchoed);
            }
            pair.stage = Stage::Confirmed;
            pair.address = from;
            self.complete(to, None, now)?;
        }
        let pair = self.pairs.get_mut(&to).ok_or(Cause::UnknownKey)?;
        pair.heard = now;
        pair.stage = Stage::Confirmed;
        let name = pair.peer;
        let peer = self.peers.get(&name).ok_or(Cause::UnknownKey)?;
        let revives = peer.outlived_its_replacement(now) && self.has_place(name);
        let peer = self.peers.get_mut(&name).ok_or(Cause::UnknownKey)?;
        peer.hear(now);
        if revives {
            peer.revive(&self.limits);
        }
        for traffic in [&mut peer.traffic, &mut self.total] {
            traffic.received += 1;
            traffic.received_bytes += bytes;
            traffic.missed = traffic.missed.saturating_add(arrival.missed);
            traffic.late += u64::from(arrival.late);
        }
        Ok(())
    }

    /// Takes the records of an opened datagram. One that is cut short ends it; what came before it counts.
    fn take_text(
        &mut self,
        (to, from): (PairId, SocketAddr),
        text: &[u8],
        now: Duration,
        sink: &mut impl Sink,
    ) -> Result<(), Cause> {
        let pair = self.pairs.get_mut(&to).ok_or(Cause::UnknownKey)?;
        let peer = self.peers.get_mut(&pair.peer).ok_or(Cause::UnknownKey)?;
        let mut reader = Reader::new(text);
        let mut left = false;
        while !reader.is_empty() {
            let taken = match Frame::next(&mut reader).ok_or(Cause::Malformed)? {
                Parsed::Frame(Frame::Record(record)) => {
                    if matches!(record, Record::Sync(_) | Record::Stuck(_)) {
                        self.warming.received(peer.name, now);
                    }
                    take_record(peer, &record, &self.limits, now, sink)
                }
                Parsed::Frame(frame) => {
                    match frame {
                        Frame::Echo(nonce) => {
                            pair.reply_due = true;
                            if nonce == pair.welcome {
                                // The path that an echo proves, and not the one that a HELLO claimed.
                                pair.address = from;
                                peer.address = from;
                            }
                        }
                        Frame::End { .. } => self.warming.ended(peer.name),
                        Frame::Bye => left = true,
                        _ => take_frame(peer, frame),
                    }
                    continue;
                }
                Parsed::Unknown => Err(Cause::UnknownKind),
                Parsed::Malformed => Err(Cause::Malformed),
            };
            count(taken, [&mut peer.traffic, &mut self.total]);
        }
        if left {
            self.farewell(to);
        }
        Ok(())
    }

    /// A peer has said goodbye under this pair: nothing is sent to it any more, and its place is free.
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
        // Its address will be that of its next process.
        self.joins.look_at(Duration::ZERO);
    }

    fn note_peer(&mut self, to: PairId, cause: Cause) {
        let name = self.pairs.get(&to).map(|pair| pair.peer);
        if let Some(peer) = name.and_then(|name: PeerName| self.peers.get_mut(&name)) {
            peer.traffic.drops.note(cause);
        }
    }
}

/// What an opened datagram says.
fn text(datagram: &[u8]) -> &[u8] {
    let end = datagram.len().saturating_sub(TAG_LEN);
    datagram.get(HEADER_LEN..end).unwrap_or_default()
}

fn take_record(
    peer: &mut Peer,
    record: &Record<'_>,
    limits: &Limits,
    now: Duration,
    sink: &mut impl Sink,
) -> Result<(), Cause> {
    let record = shortened(record, limits);
    let kept = match record {
        Record::New(session) | Record::Sync(session) => {
            Some((session.ttl, &mut peer.sessions, limits.entries_per_peer))
        }
        Record::Stick(stick) | Record::Stuck(stick) => {
            Some((stick.ttl, &mut peer.sticks, limits.sticks_per_peer))
        }
        Record::Del { .. } => None,
    };
    let mut tally = None;
    if let Some((ttl, counted, most)) = kept {
        if ttl.is_zero() {
            return Err(Cause::Unwanted);
        }
        if counted.sum(now) >= most {
            return Err(Cause::TooManyEntries);
        }
        tally = Some((ttl, counted));
    }
    match sink.take(peer.name, record) {
        Taken::Taken => {
            if let Some((ttl, counted)) = tally {
                counted.add(now, ttl);
            }
            Ok(())
        }
        Taken::UnknownPolicy => Err(Cause::UnknownPolicy),
        Taken::Unwanted => Err(Cause::Unwanted),
    }
}

/// The record with a time to live that is accepted here.
fn shortened<'a>(record: &Record<'a>, limits: &Limits) -> Record<'a> {
    let session = |session: &SessionRecord<'a>| SessionRecord {
        ttl: session.ttl.min(limits.max_ttl),
        ..*session
    };
    let stick = |stick: &StickRecord<'a>| StickRecord {
        ttl: stick.ttl.min(limits.max_stick_ttl),
        ..*stick
    };
    match record {
        Record::New(new) => Record::New(session(new)),
        Record::Sync(old) => Record::Sync(session(old)),
        Record::Stick(new) => Record::Stick(stick(new)),
        Record::Stuck(old) => Record::Stuck(stick(old)),
        Record::Del { .. } => *record,
    }
}

fn take_frame(peer: &mut Peer, frame: Frame<'_>) {
    match frame {
        Frame::Alive { held } => peer.held = Some(held),
        // A dump that is under way goes on.
        Frame::Ask { youngest } if peer.dump.is_none() && peer.is_live() => {
            peer.dump = Some(Dump {
                at: Walk::Sticks(StickCursor::default()),
                youngest: Duration::from_secs(youngest.into()),
                records: 0,
            });
        }
        _ => {}
    }
}

fn count(taken: Result<(), Cause>, traffic: [&mut Traffic; 2]) {
    for traffic in traffic {
        match taken {
            Ok(()) => traffic.received_records += 1,
            Err(cause) => traffic.drops.note(cause),
        }
    }
}
