//! Shares pending ACME challenges and ordered certificates between nodes. A state machine without
//! I/O: the caller passes in records, events and the time, and sends the records of
//! [`CertificateSharing::poll`].
//!
//! **Challenges.** An authority may ask any node. A node sends its pending challenges to all peers
//! until each has acknowledged them, and reports them as served then, or after three seconds. It
//! repeats them while they are pending, and peers forget them [`CHALLENGE_LIFE`] after the last
//! repetition.
//!
//! **Order.** A node announces each certificate that it can order. The *rank* of a node for a
//! certificate is the number of nodes with a smaller number that announce it. The companion of rank
//! 0 orders; the others wait longer, by their rank. A partition can lead to two orders, which is
//! harmless.
//!
//! **Bundles.** An announcement has the time of the order and the digest of the bundle that the
//! sender has. A node with an older bundle pulls it in chunks ([`bundles`]). The companion checks it
//! like a bundle from an authority.
//!
//! **On demand.** The companion adds certificates for names that clients ask for. A node that adds
//! one announces it, nodes with the same one answer at once, and so the node receives the bundle or a
//! rank before it orders.
//!
//! Records of peers name only certificates of this node; all others are dropped.

mod bundles;
mod challenges;
mod intervals;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use becket_proto::acme::{BundleFacts, Challenge};
use becket_proto::ticket::NodeId;
use tokio::sync::mpsc::UnboundedSender;
use zeroize::Zeroizing;

use self::bundles::Bundles;
use self::challenges::ChallengeExchange;
use self::intervals::{REPEAT, TICK};
use crate::replica::{AcmeRecord, CertificateTag, DropCause, PeerName};

/// A certificate of the configuration, or an on-demand certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedCertificate {
    pub tag: CertificateTag,
    pub names: Vec<String>,
}

/// An event of this node's companion or workers. Indices refer to the certificates.
#[derive(Debug)]
pub enum SharingInput {
    /// The on-demand certificates, whose indices follow those of the configuration, and the bundles
    /// in use, one element for each certificate. An on-demand certificate without names is unused.
    Held(Vec<SharedCertificate>, Vec<Option<BundleFacts>>),
    /// All pending challenges, and the number of this set.
    Challenges(u32, Vec<Challenge>),
    /// The workers answer the challenges of a [`SharingOutput::Challenges`].
    Answered,
    /// The bundle that [`SharingOutput::Send`] requested.
    Bundle(usize, Zeroizing<Vec<u8>>),
    /// The companion has exited.
    Disconnected,
}

/// A request to this node's companion or workers.
#[derive(Debug, PartialEq, Eq)]
pub enum SharingOutput {
    /// Answer these challenges of peers, each until a time, instead of the previous ones.
    Challenges(Vec<(Challenge, Duration)>),
    /// The set of challenges with this number is served.
    Served(u32),
    /// Ranks of this node, one for each certificate.
    Ranks(Vec<u16>),
    /// Pass the bundle in use to [`SharingInput::Bundle`].
    Send(usize),
    /// A peer has sent this bundle.
    Received(usize, Zeroizing<Vec<u8>>),
}

#[derive(Debug)]
pub(crate) struct CertificateSharing {
    node: NodeId,
    /// The configured certificates, followed by the on-demand certificates.
    certificates: Vec<SharedCertificate>,
    /// Number of configured certificates.
    configured: usize,
    has_on_demand: bool,
    /// Indices of the certificates.
    indices: BTreeMap<CertificateTag, usize>,
    names: BTreeSet<String>,
    challenges: ChallengeExchange,
    bundles: Bundles,
    ranking: Ranking,
    /// Live peers at the last poll.
    peers: BTreeSet<PeerName>,
    outputs: UnboundedSender<SharingOutput>,
    polled: Duration,
    /// `true` if there is work that does not wait for the next tick.
    is_due: bool,
}

/// Order of the nodes that announce a certificate.
#[derive(Debug, Default)]
struct Ranking {
    /// Times of the last announcements of each node, by certificate. At most [`MOST_NODES`].
    announced: BTreeMap<NodeId, BTreeMap<usize, Duration>>,
    /// Time from which ranks are known. Set when the companion first connects.
    known_from: Option<Duration>,
    reported: Option<Vec<u16>>,
    /// Time from which ranks are computed again.
    due: Duration,
}

impl CertificateSharing {
    pub(crate) fn new(
        node: NodeId,
        (certificates, has_on_demand): (Vec<SharedCertificate>, bool),
        outputs: UnboundedSender<SharingOutput>,
    ) -> Self {
        Self {
            node,
            bundles: Bundles::new(certificates.len()),
            indices: certificates.iter().map(|it| it.tag).zip(0..).collect(),
            configured: certificates.len(),
            has_on_demand,
            names: certificates
                .iter()
                .flat_map(|it| it.names.clone())
                .collect(),
            certificates,
            challenges: ChallengeExchange::default(),
            ranking: Ranking::default(),
            peers: BTreeSet::new(),
            outputs,
            polled: Duration::ZERO,
            is_due: false,
        }
    }

    /// Applies a reloaded configuration. Other certificates discard all state; the companion is
    /// started again with them.
    pub(crate) fn reload(&mut self, certificates: Vec<SharedCertificate>, has_on_demand: bool) {
        let configured = self.certificates.get(..self.configured);
        if configured != Some(&certificates) || self.has_on_demand != has_on_demand {
            let certificates = (certificates, has_on_demand);
            *self = Self::new(self.node, certificates, self.outputs.clone());
            self.output(SharingOutput::Challenges(Vec::new()));
        }
    }

    /// Replaces the on-demand certificates. Forgets what is known about changed ones.
    fn set_on_demand(&mut self, on_demand: Vec<SharedCertificate>) {
        let before = self.certificates.split_off(self.configured);
        for (index, certificate) in (self.configured..).zip(&on_demand) {
            let known = before.get(index - self.configured);
            if known != Some(certificate) {
                self.bundles.reset(index);
                self.ranking.forget(index);
            }
        }
        self.certificates.extend(on_demand);
        self.bundles.resize(self.certificates.len());
        // The companion knows no rank of a certificate that it added.
        self.ranking.reported = None;
        let used = self.certificates.iter().zip(0..);
        let used = used.filter(|(it, _)| !it.names.is_empty());
        self.indices = used.map(|(it, index)| (it.tag, index)).collect();
        let names = self.certificates.iter().flat_map(|it| it.names.clone());
        self.names = names.collect();
    }

    pub(crate) fn input(&mut self, input: SharingInput, now: Duration) {
        self.is_due = true;
        match input {
            SharingInput::Held(on_demand, held)
                if held.len() == self.configured + on_demand.len() =>
            {
                if self.certificates.get(self.configured..) != Some(&on_demand) {
                    self.set_on_demand(on_demand);
                }
                self.bundles.set_held(held);
                self.ranking
                    .known_from
                    .get_or_insert(now + SETTLING_TIME + bundles::cycle(self.certificates.len()));
                self.ranking.due = now;
            }
            // A companion with another configuration is about to be replaced.
            SharingInput::Held(..) => {}
            SharingInput::Challenges(number, set) => self.challenges.set_own(number, &set, now),
            SharingInput::Answered => self.challenges.catch_up(),
            SharingInput::Bundle(index, bundle) => self.bundles.set_source(index, bundle, now),
            SharingInput::Disconnected => {
                self.challenges.clear_own();
                self.bundles.disconnect();
                self.ranking.reported = None;
            }
        }
    }

    /// Applies a record of a peer.
    pub(crate) fn take(
        &mut self,
        from: PeerName,
        record: AcmeRecord<'_>,
        now: Duration,
    ) -> Result<(), DropCause> {
        match record {
            AcmeRecord::Challenge { life, challenge } => {
                let is_known = |name: &str| self.has_on_demand || self.names.contains(name);
                self.challenges
                    .learn(from, challenge, (life, now), is_known)?;
            }
            AcmeRecord::Answered(id) => self.challenges.acknowledge(from, id),
            AcmeRecord::Holds(tag, facts) => {
                let index = self.index(tag)?;
                let is_first = self.ranking.announce(from.node, index, now);
                self.bundles.offer(index, from, facts);
                // A node that begins to order on demand must learn about this one at once.
                if is_first && index >= self.configured {
                    self.bundles.announce_again(index);
                }
            }
            AcmeRecord::Want(name) => {
                let index = self.index(name.certificate)?;
                self.bundles.want(index, from, name, now);
            }
            AcmeRecord::Chunk(name, bytes) => {
                let index = self.index(name.certificate)?;
                self.bundles.chunk(index, from, name, bytes.0, now)?;
            }
        }
        self.is_due = true;
        Ok(())
    }

    /// Does all work that is due. `peers` are the live peers; `offer` sends a record to one of them,
    /// or to all.
    pub(crate) fn poll(
        &mut self,
        now: Duration,
        peers: BTreeSet<PeerName>,
        mut offer: impl FnMut(Option<PeerName>, AcmeRecord<'_>),
    ) {
        (self.polled, self.is_due) = (now, false);
        if peers != self.peers {
            self.bundles.set_peers(&peers);
            self.challenges.send_again();
            self.peers = peers;
        }
        self.poll_challenges(now, &mut offer);
        self.poll_bundles(now, &mut offer);
        self.poll_ranks(now);
    }

    fn poll_challenges(
        &mut self,
        now: Duration,
        offer: &mut impl FnMut(Option<PeerName>, AcmeRecord<'_>),
    ) {
        for challenge in self.challenges.due(now) {
            let life = CHALLENGE_LIFE;
            offer(None, AcmeRecord::Challenge { life, challenge });
        }
        if let Some(answers) = self.challenges.take_changed(now) {
            self.output(SharingOutput::Challenges(answers));
        }
        for (to, id) in self.challenges.take_acknowledgements() {
            offer(Some(to), AcmeRecord::Answered(id));
        }
        let announced = &self.ranking.announced;
        let peers = self.peers.iter();
        let peers = peers.filter(|peer| announced.contains_key(&peer.node));
        if let Some(number) = self.challenges.take_served(now, peers) {
            self.output(SharingOutput::Served(number));
        }
    }

    fn poll_bundles(
        &mut self,
        now: Duration,
        offer: &mut impl FnMut(Option<PeerName>, AcmeRecord<'_>),
    ) {
        let all = self.certificates.iter();
        let tags: Vec<CertificateTag> = all.map(|it| it.tag).collect();
        let mut announce = |to, record: AcmeRecord<'_>| match record {
            // An unused index.
            AcmeRecord::Holds(tag, _) if !self.indices.contains_key(&tag) => {}
            record => offer(to, record),
        };
        self.bundles.announce(now, &tags, &mut announce);
        self.bundles.send_chunks(&tags, &mut *offer);
        self.bundles.pull(now, &tags, &self.peers, offer);
        if let Some(index) = self.bundles.take_request(now) {
            self.output(SharingOutput::Send(index));
        }
        if let Some((index, bundle)) = self.bundles.take_received() {
            self.output(SharingOutput::Received(index, bundle));
        }
    }

    fn poll_ranks(&mut self, now: Duration) {
        if now < self.ranking.due {
            return;
        }
        self.ranking.due = now + TICK;
        let fresh = FRESH + 3 * bundles::cycle(self.certificates.len());
        self.ranking.expire(now, fresh);
        let is_known = self.ranking.known_from.is_some_and(|from| from <= now);
        if !is_known || !self.bundles.is_connected() {
            return;
        }
        let ranks = (0..self.certificates.len()).map(|index| {
            // A node that is about to receive a newer bundle does not order.
            let waits = u16::from(self.bundles.newer(index, now).is_some());
            self.ranking.rank(index, self.node) + waits
        });
        let ranks: Vec<u16> = ranks.collect();
        if self.ranking.reported.as_ref() != Some(&ranks) {
            self.ranking.reported = Some(ranks.clone());
            self.output(SharingOutput::Ranks(ranks));
        }
    }

    /// Returns the time of the next [`poll`](Self::poll), or `None` if nothing is shared.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if self.certificates.is_empty() {
            return None;
        }
        let is_busy = self.challenges.is_busy() || self.bundles.is_busy();
        Some(match (self.is_due, is_busy) {
            (true, _) => Duration::ZERO,
            (false, true) => self.polled + REPEAT / 2,
            (false, false) => self.polled + TICK,
        })
    }

    fn index(&self, tag: CertificateTag) -> Result<usize, DropCause> {
        self.indices.get(&tag).copied().ok_or(DropCause::Unwanted)
    }

    fn output(&self, output: SharingOutput) {
        // Fails only when this process exits.
        self.outputs.send(output).ok();
    }
}

impl Ranking {
    /// Returns `true` for the first announcement of a node for a certificate.
    fn announce(&mut self, node: NodeId, index: usize, now: Duration) -> bool {
        if self.announced.len() < MOST_NODES || self.announced.contains_key(&node) {
            let certificates = self.announced.entry(node).or_default();
            return certificates.insert(index, now).is_none();
        }
        false
    }

    fn forget(&mut self, index: usize) {
        for certificates in self.announced.values_mut() {
            certificates.remove(&index);
        }
    }

    fn expire(&mut self, now: Duration, fresh: Duration) {
        self.announced.retain(|_, certificates| {
            certificates.retain(|_, at| now < *at + fresh);
            !certificates.is_empty()
        });
    }

    /// Returns the number of nodes before `own` that announce a certificate.
    fn rank(&self, index: usize, own: NodeId) -> u16 {
        let before = self.announced.range(..own);
        let before = before.filter(|(_, certificates)| certificates.contains_key(&index));
        u16::try_from(before.count()).unwrap_or(u16::MAX)
    }
}

/// Maximum number of nodes, as many as replication has peers.
const MOST_NODES: usize = 64;
/// Time for which a node waits for the announcements of others before it reports its ranks.
const SETTLING_TIME: Duration = Duration::from_secs(5);
/// Time after which an announcement is no longer counted, with few certificates.
const FRESH: Duration = Duration::from_secs(30);
/// Time for which peers answer a challenge after its last repetition.
const CHALLENGE_LIFE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
