//! Announces the bundles of this node, sends them in chunks, and pulls newer ones.
//!
//! One bundle is pulled at a time, and one chunk of it is requested at a time, again after
//! [`REPEAT`]. After [`MOST_TRIES`] unanswered requests, or a wrong digest, the offer is forgotten
//! until its next announcement. After a bundle that the companion did not take, none is pulled for
//! this certificate for [`REFUSAL_TIME`].

use std::collections::BTreeSet;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use becket_proto::acme::{BundleFacts, LONGEST_BUNDLE};
use zeroize::Zeroizing;

use super::intervals::{REPEAT, TICK};
use crate::replica::{AcmeRecord, CertificateTag, ChunkBytes, ChunkName, DropCause, PeerName};

#[derive(Debug)]
pub(super) struct Bundles {
    /// Bundles in use; `None` while the companion is not connected.
    held: Option<Vec<Option<BundleFacts>>>,
    /// Newest offer of a peer for each certificate.
    offers: Vec<Option<(PeerName, BundleFacts)>>,
    /// Bundle that was passed to the companion last, unless the companion took it, and the time until
    /// which none is pulled.
    passed: Vec<Option<(BundleFacts, Duration)>>,
    pull: Option<Pull>,
    received: Option<(usize, Zeroizing<Vec<u8>>)>,
    /// Bundle that is being sent.
    source: Option<BundleSource>,
    wanted: BTreeSet<(PeerName, usize, u16)>,
    request: Option<usize>,
    requested: Duration,
    /// Time of the next announcement of all certificates.
    announce_at: Duration,
    /// Next certificate to announce.
    next: usize,
    /// Certificates with a new bundle.
    changed: BTreeSet<usize>,
}

#[derive(Debug)]
struct Pull {
    index: usize,
    from: PeerName,
    facts: BundleFacts,
    bytes: Zeroizing<Vec<u8>>,
    asked: Option<Duration>,
    tries: u32,
}

#[derive(Debug)]
struct BundleSource {
    index: usize,
    version: u64,
    bytes: Zeroizing<Vec<u8>>,
    until: Duration,
}

impl Bundles {
    pub(super) fn new(certificates: usize) -> Self {
        Self {
            held: None,
            offers: vec![None; certificates],
            passed: vec![None; certificates],
            pull: None,
            received: None,
            source: None,
            wanted: BTreeSet::new(),
            request: None,
            requested: Duration::ZERO,
            announce_at: Duration::ZERO,
            next: usize::MAX,
            changed: BTreeSet::new(),
        }
    }

    pub(super) fn set_held(&mut self, held: Vec<Option<BundleFacts>>) {
        match &self.held {
            Some(before) => {
                let both = before.iter().zip(&held).enumerate();
                let changed = both.filter(|(_, (before, held))| before != held);
                self.changed.extend(changed.map(|(index, _)| index));
                self.changed.extend(before.len()..held.len());
            }
            None => self.announce_at = Duration::ZERO,
        }
        for (passed, held) in self.passed.iter_mut().zip(&held) {
            passed.take_if(|(facts, _)| Some(*facts) == *held);
        }
        self.held = Some(held);
        self.source = None;
    }

    /// Forgets what is known about the certificate that had this index.
    pub(super) fn reset(&mut self, index: usize) {
        self.forget(index);
        if let Some(passed) = self.passed.get_mut(index) {
            *passed = None;
        }
        self.pull.take_if(|pull| pull.index == index);
        self.received.take_if(|(received, _)| *received == index);
        self.source.take_if(|source| source.index == index);
        self.request.take_if(|request| *request == index);
        self.wanted.retain(|(_, wanted, _)| *wanted != index);
        self.changed.insert(index);
    }

    pub(super) fn resize(&mut self, certificates: usize) {
        self.offers.resize(certificates, None);
        self.passed.resize(certificates, None);
    }

    pub(super) fn announce_again(&mut self, index: usize) {
        self.changed.insert(index);
    }

    pub(super) fn disconnect(&mut self) {
        self.held = None;
        self.source = None;
        self.pull = None;
        self.request = None;
    }

    /// Forgets the offers of peers that have left, and announces all certificates again.
    pub(super) fn set_peers(&mut self, peers: &BTreeSet<PeerName>) {
        for offer in &mut self.offers {
            *offer = offer.filter(|(from, _)| peers.contains(from));
        }
        self.announce_at = Duration::ZERO;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.held.is_some()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.pull.is_some() || self.source.is_some() || self.request.is_some()
    }

    /// Announces the certificates of this node, at most [`ANNOUNCED_AT_ONCE`].
    pub(super) fn announce(
        &mut self,
        now: Duration,
        tags: &[CertificateTag],
        offer: &mut impl FnMut(Option<PeerName>, AcmeRecord<'_>),
    ) {
        let Some(held) = &self.held else {
            return;
        };
        if now >= self.announce_at {
            self.announce_at = now + ANNOUNCE_INTERVAL + cycle(tags.len());
            self.next = 0;
        }
        let mut announce = |index: usize| {
            if let (Some(tag), Some(facts)) = (tags.get(index), held.get(index)) {
                offer(None, AcmeRecord::Holds(*tag, facts.unwrap_or(NONE)));
            }
        };
        std::mem::take(&mut self.changed)
            .into_iter()
            .for_each(&mut announce);
        let end = self.next.saturating_add(ANNOUNCED_AT_ONCE);
        (self.next..end.min(tags.len())).for_each(announce);
        self.next = end;
    }

    /// Notes the bundle that a peer announced.
    pub(super) fn offer(&mut self, index: usize, from: PeerName, facts: BundleFacts) {
        let is_valid = (1..=LONGEST_BUNDLE).contains(&(facts.length as usize));
        if let Some(known) = self.offers.get_mut(index)
            && is_valid
            && known.is_none_or(|(peer, known)| facts > known || peer == from)
        {
            *known = Some((from, facts));
        }
    }

    /// Notes the request of a peer for a chunk.
    pub(super) fn want(&mut self, index: usize, from: PeerName, name: ChunkName, now: Duration) {
        let held = self.held.as_ref().and_then(|held| *held.get(index)?);
        if held.is_none_or(|held| version(&held) != name.version) {
            return;
        }
        if self.wanted.len() < MOST_WANTED {
            self.wanted.insert((from, index, name.chunk));
        }
        match &mut self.source {
            Some(source) if source.index == index => source.until = now + SOURCE_TIME,
            // Another bundle is being sent; the peer asks again.
            Some(source) if now < source.until => {}
            _ => self.request = Some(index),
        }
    }

    /// Returns a bundle that the companion must pass to [`Self::set_source`], at most once per
    /// [`REPEAT`].
    pub(super) fn take_request(&mut self, now: Duration) -> Option<usize> {
        if self.source.as_ref().is_some_and(|it| now >= it.until) {
            self.source = None;
        }
        if self.requested + REPEAT > now {
            return None;
        }
        let request = self.request.take()?;
        self.requested = now;
        Some(request)
    }

    pub(super) fn set_source(&mut self, index: usize, bytes: Zeroizing<Vec<u8>>, now: Duration) {
        let held = self.held.as_ref().and_then(|held| *held.get(index)?);
        if let Some(held) = held.filter(|held| is_bundle(held, &bytes)) {
            self.source = Some(BundleSource {
                index,
                version: version(&held),
                bytes,
                until: now + SOURCE_TIME,
            });
        }
    }

    /// Sends the requested chunks.
    pub(super) fn send_chunks(
        &mut self,
        tags: &[CertificateTag],
        offer: &mut impl FnMut(Option<PeerName>, AcmeRecord<'_>),
    ) {
        let Some(source) = &self.source else {
            return;
        };
        let Some(certificate) = tags.get(source.index).copied() else {
            return;
        };
        // Peers repeat requests for other bundles.
        let wanted = std::mem::take(&mut self.wanted).into_iter();
        let mut is_sent = false;
        for (to, _, chunk) in wanted.filter(|(_, index, _)| *index == source.index) {
            let mut parts = source.bytes.chunks(CHUNK);
            is_sent |= parts.len() == usize::from(chunk) + 1;
            if let Some(part) = parts.nth(chunk.into()) {
                let name = ChunkName {
                    certificate,
                    version: source.version,
                    chunk,
                };
                offer(Some(to), AcmeRecord::Chunk(name, ChunkBytes(part)));
            }
        }
        // A lost last chunk is requested again.
        if is_sent {
            self.source = None;
        }
    }

    /// Requests the next chunk of a newer bundle.
    pub(super) fn pull(
        &mut self,
        now: Duration,
        tags: &[CertificateTag],
        peers: &BTreeSet<PeerName>,
        offer: &mut impl FnMut(Option<PeerName>, AcmeRecord<'_>),
    ) {
        if let Some(pull) = self
            .pull
            .take_if(|pull| pull.tries >= MOST_TRIES || !peers.contains(&pull.from))
        {
            self.forget(pull.index);
        }
        if self.pull.is_none() && self.received.is_none() {
            self.pull = (0..self.offers.len()).find_map(|index| self.next_pull(index, now));
        }
        let Some(pull) = &mut self.pull else {
            return;
        };
        if pull.asked.is_some_and(|asked| now < asked + REPEAT) {
            return;
        }
        if let Some(certificate) = tags.get(pull.index) {
            pull.asked = Some(now);
            pull.tries += 1;
            let name = ChunkName {
                certificate: *certificate,
                version: version(&pull.facts),
                chunk: pull.next_chunk(),
            };
            offer(Some(pull.from), AcmeRecord::Want(name));
        }
    }

    fn forget(&mut self, index: usize) {
        if let Some(offer) = self.offers.get_mut(index) {
            *offer = None;
        }
    }

    /// Returns the offer of a peer that is newer than the bundle in use.
    pub(super) fn newer(&self, index: usize, now: Duration) -> Option<(PeerName, BundleFacts)> {
        let held = *self.held.as_ref()?.get(index)?;
        let (from, facts) = (*self.offers.get(index)?)?;
        let is_refused = self
            .passed
            .get(index)?
            .is_some_and(|(_, until)| now < until);
        let is_newer = held.is_none_or(|held| facts > held);
        (is_newer && !is_refused).then_some((from, facts))
    }

    fn next_pull(&self, index: usize, now: Duration) -> Option<Pull> {
        let (from, facts) = self.newer(index, now)?;
        Some(Pull {
            index,
            from,
            facts,
            // This buffer is never reallocated, because a freed buffer would contain a key.
            bytes: Zeroizing::new(Vec::with_capacity(facts.length as usize)),
            asked: None,
            tries: 0,
        })
    }

    /// Adds a chunk to the bundle that is pulled.
    pub(super) fn chunk(
        &mut self,
        index: usize,
        from: PeerName,
        name: ChunkName,
        bytes: &[u8],
        now: Duration,
    ) -> Result<(), DropCause> {
        let is_expected = |pull: &&mut Pull| {
            let left = pull.facts.length as usize - pull.bytes.len();
            let is_next = name.chunk == pull.next_chunk() && bytes.len() == left.min(CHUNK);
            let is_bundle = pull.index == index && version(&pull.facts) == name.version;
            pull.from == from && is_bundle && is_next
        };
        let pull = self.pull.as_mut().filter(is_expected);
        let pull = pull.ok_or(DropCause::Unwanted)?;
        pull.bytes.extend_from_slice(bytes);
        (pull.asked, pull.tries) = (None, 0);
        if pull.bytes.len() < pull.facts.length as usize {
            return Ok(());
        }
        if let Some(pull) = self.pull.take() {
            if is_bundle(&pull.facts, &pull.bytes) {
                self.received = Some((index, pull.bytes));
            } else {
                self.forget(index);
            }
            if let Some(passed) = self.passed.get_mut(index) {
                *passed = Some((pull.facts, now + REFUSAL_TIME));
            }
        }
        Ok(())
    }

    /// Returns a complete bundle of a peer and the index of its certificate.
    pub(super) fn take_received(&mut self) -> Option<(usize, Zeroizing<Vec<u8>>)> {
        self.received.take()
    }
}

impl Pull {
    fn next_chunk(&self) -> u16 {
        (self.bytes.len() / CHUNK) as u16
    }
}

/// Returns the time in which this number of certificates is announced.
pub(super) fn cycle(certificates: usize) -> Duration {
    TICK * u32::try_from(certificates / ANNOUNCED_AT_ONCE).unwrap_or(u32::MAX)
}

fn version(facts: &BundleFacts) -> u64 {
    let first = facts.digest.first_chunk();
    first.map_or(0, |first| u64::from_be_bytes(*first))
}

fn is_bundle(facts: &BundleFacts, bytes: &[u8]) -> bool {
    digest(&SHA256, bytes).as_ref() == facts.digest
}

/// Announced for a certificate without a bundle.
const NONE: BundleFacts = BundleFacts {
    ordered: 0,
    digest: [0; 32],
    length: 0,
};
/// Bytes of a bundle in one record.
const CHUNK: usize = 1024;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of certificates that are announced in one poll.
const ANNOUNCED_AT_ONCE: usize = 200;
/// Time after the last request for which a bundle stays in memory.
const SOURCE_TIME: Duration = Duration::from_secs(1);
/// Maximum number of requested chunks that wait for the next poll.
const MOST_WANTED: usize = 64;
const MOST_TRIES: u32 = 20;
const REFUSAL_TIME: Duration = Duration::from_secs(60);
