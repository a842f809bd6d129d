//! Pending challenges of this node and of its peers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use becket_proto::acme::Challenge;
use becket_proto::ticket::NodeId;

use super::intervals::{ACK_TIME, REPEAT};
use crate::replica::{ChallengeId, DropCause, PeerName};

#[derive(Debug, Default)]
pub(super) struct ChallengeExchange {
    own: Option<OwnSet>,
    theirs: BTreeMap<(NodeId, ChallengeId), PeerChallenge>,
    /// Sent when the workers answer all challenges.
    acknowledgements: BTreeSet<(PeerName, ChallengeId)>,
    has_changed: bool,
    /// Number of changes that the workers do not answer yet.
    behind: u32,
}

#[derive(Debug)]
struct OwnSet {
    number: u32,
    /// Encoded challenges.
    challenges: BTreeMap<ChallengeId, Vec<u8>>,
    acknowledged: BTreeSet<(PeerName, ChallengeId)>,
    since: Duration,
    sent: Option<Duration>,
    is_served: bool,
}

#[derive(Debug)]
struct PeerChallenge {
    challenge: Challenge,
    learned: Duration,
    until: Duration,
}

impl ChallengeExchange {
    pub(super) fn set_own(&mut self, number: u32, set: &[Challenge], now: Duration) {
        let encoded = set.iter().filter_map(Challenge::encode);
        self.own = Some(OwnSet {
            number,
            challenges: encoded.map(|it| (id_of(&it), it)).collect(),
            acknowledged: BTreeSet::new(),
            since: now,
            sent: None,
            is_served: false,
        });
    }

    pub(super) fn clear_own(&mut self) {
        self.own = None;
    }

    /// Makes the challenges of this node due.
    pub(super) fn send_again(&mut self) {
        if let Some(own) = &mut self.own {
            own.sent = None;
        }
    }

    /// Returns `true` if acknowledgements are awaited.
    pub(super) fn is_busy(&self) -> bool {
        self.own.as_ref().is_some_and(|own| !own.is_served)
    }

    /// Returns the challenges of this node, if it is time to send them to all peers.
    pub(super) fn due(&mut self, now: Duration) -> impl Iterator<Item = &[u8]> {
        let due = self.own.as_mut().filter(|own| {
            let pause = if own.is_served { REFRESH } else { REPEAT };
            own.sent.is_none_or(|sent| now >= sent + pause)
        });
        let due = due.map(|own| {
            own.sent = Some(now);
            own.challenges.values().map(Vec::as_slice)
        });
        due.into_iter().flatten()
    }

    pub(super) fn acknowledge(&mut self, from: PeerName, id: ChallengeId) {
        if let Some(own) = &mut self.own
            && own.challenges.contains_key(&id)
        {
            own.acknowledged.insert((from, id));
        }
    }

    /// Returns the number of the own set once all peers have acknowledged it, or [`ACK_TIME`] has
    /// passed.
    pub(super) fn take_served<'a>(
        &mut self,
        now: Duration,
        mut peers: impl Iterator<Item = &'a PeerName>,
    ) -> Option<u32> {
        let own = self.own.as_mut().filter(|own| !own.is_served)?;
        let is_acknowledged = peers.all(|peer| {
            let mut ids = own.challenges.keys();
            ids.all(|id| own.acknowledged.contains(&(*peer, *id)))
        });
        own.is_served = is_acknowledged || now >= own.since + ACK_TIME;
        own.is_served.then_some(own.number)
    }

    /// Stores a challenge of a peer, or extends its life.
    pub(super) fn learn(
        &mut self,
        from: PeerName,
        encoded: &[u8],
        (life, now): (Duration, Duration),
        is_known: impl Fn(&str) -> bool,
    ) -> Result<(), DropCause> {
        let id = id_of(encoded);
        let until = now + life.min(LONGEST_LIFE);
        if let Some(known) = self.theirs.get_mut(&(from.node, id)) {
            self.has_changed |= until > known.until;
            known.until = known.until.max(until);
        } else {
            let challenge = Challenge::decode(encoded).filter(|it| it.answer.is_valid());
            let challenge = challenge.ok_or(DropCause::Malformed)?;
            let of_node = (from.node, ChallengeId(0))..=(from.node, ChallengeId(u64::MAX));
            let count = self.theirs.range(of_node).count();
            let is_full = count >= MOST_OF_NODE || self.theirs.len() >= MOST;
            if is_full || !is_known(&challenge.name) {
                return Err(DropCause::Unwanted);
            }
            let learned = PeerChallenge {
                challenge,
                learned: now,
                until,
            };
            self.theirs.insert((from.node, id), learned);
            self.has_changed = true;
        }
        self.acknowledgements.insert((from, id));
        Ok(())
    }

    pub(super) fn take_acknowledgements(&mut self) -> BTreeSet<(PeerName, ChallengeId)> {
        if self.has_changed || self.behind > 0 {
            return BTreeSet::new();
        }
        std::mem::take(&mut self.acknowledgements)
    }

    /// Notes that the workers answer the challenges of one more change.
    pub(super) fn catch_up(&mut self) {
        self.behind = self.behind.saturating_sub(1);
    }

    /// Returns the challenges of all peers and their deadlines, if any have changed. The newest comes
    /// first: a name can have one that is no longer pending.
    pub(super) fn take_changed(&mut self, now: Duration) -> Option<Vec<(Challenge, Duration)>> {
        let before = self.theirs.len();
        self.theirs.retain(|_, it| now < it.until);
        let has_changed = std::mem::take(&mut self.has_changed) || self.theirs.len() < before;
        self.behind += u32::from(has_changed);
        has_changed.then(|| {
            let mut all: Vec<_> = self.theirs.values().collect();
            all.sort_by_key(|it| std::cmp::Reverse(it.learned));
            let all = all.into_iter();
            all.map(|it| (it.challenge.clone(), it.until)).collect()
        })
    }
}

fn id_of(encoded: &[u8]) -> ChallengeId {
    let digest = digest(&SHA256, encoded);
    let first = digest.as_ref().first_chunk();
    ChallengeId(first.map_or(0, |first| u64::from_be_bytes(*first)))
}

/// Maximum number of challenges of one node.
const MOST_OF_NODE: usize = 256;
/// Maximum number of challenges of all nodes.
const MOST: usize = 1024;
/// Maximum time for which a challenge of a peer is answered.
const LONGEST_LIFE: Duration = Duration::from_secs(60);
/// Interval at which served challenges are repeated while they are pending.
const REFRESH: Duration = Duration::from_secs(10);
