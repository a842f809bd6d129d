//! Shares what the ACME companions of a fleet need through the store: who orders a certificate, pending challenges,
//! and bundles. Replaces the records of peers, so hosts that come and go need to know none.
//!
//! All hosts read the store once per [`TURN`], at most [`VISITED_AT_ONCE`] certificates each time.
//!
//! **Order.** The host whose *claim* for a certificate is in the store has rank 0 and orders it. A claim that is no
//! longer repeated expires, and then another host puts its own. Hosts without a claim have random ranks, so most of
//! them order one after the other if the claiming host cannot. Nothing is ordered before all certificates were read once.
//!
//! **Challenges.** A host puts its pending challenges into one of [`SLOTS`] places, and reports them as served when all
//! others have read it. Others answer them until [`CHALLENGE_LIFE`] after the last repetition.
//!
//! **Bundles.** Each certificate has the facts of its newest bundle and the bundle itself. The companion checks a bundle
//! from the store like one from an authority.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use becket_cluster::replica::CertificateTag;
use becket_cluster::sharing::{SharedCertificate, SharingInput, SharingOutput};
use becket_proto::acme::{BundleFacts, Challenge};
use tokio::sync::mpsc::UnboundedSender;
use zeroize::Zeroizing;

/// A value in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SharedValue {
    Challenges(u8),
    Claim(CertificateTag),
    Facts(CertificateTag),
    Bundle(CertificateTag),
}

/// An opened value.
pub(crate) struct Opened {
    pub(crate) text: Zeroizing<Vec<u8>>,
    pub(crate) left: Duration,
}

pub(crate) type OpenedValues = BTreeMap<SharedValue, Opened>;

/// A change of a value. A value that `is_new` must not replace one.
pub(crate) enum Change {
    Put {
        value: SharedValue,
        text: Zeroizing<Vec<u8>>,
        life: Duration,
        is_new: bool,
    },
    Remove(SharedValue),
}

/// A state machine without I/O: [`Self::wants`] lists the values to read, [`Self::take`] takes them and returns the
/// values to write.
pub(crate) struct CertificateExchange {
    /// Random ID of this process.
    token: [u8; TOKEN],
    certificates: Vec<SharedCertificate>,
    /// Number of configured certificates. On-demand certificates follow.
    configured: usize,
    has_on_demand: bool,
    outputs: UnboundedSender<SharingOutput>,
    /// Bundles in use; `None` while the companion is not connected.
    held: Option<Vec<Option<BundleFacts>>>,
    entries: Vec<ExchangeEntry>,
    /// Certificates that are read before others.
    due: BTreeSet<usize>,
    /// Next certificate to read.
    next: usize,
    own: OwnChallenges,
    theirs: Vec<(Challenge, Duration)>,
    reported: Option<Vec<u16>>,
    /// Bundles of the companion that are not in the store yet.
    given: Vec<(usize, Zeroizing<Vec<u8>>)>,
}

#[derive(Clone, Debug, Default)]
struct ExchangeEntry {
    is_read: bool,
    is_claimed: bool,
    /// A newer bundle in the store.
    newer: Option<BundleFacts>,
    /// The bundle that was passed to the companion last, and the time until which it is not passed again.
    passed: Option<(BundleFacts, Duration)>,
}

#[derive(Debug, Default)]
struct OwnChallenges {
    number: u32,
    challenges: Vec<Challenge>,
    slot: u8,
    /// Time of the set, until it is reported as served.
    since: Option<Duration>,
    written: Option<Duration>,
    /// `true` if the set in the store is an earlier one.
    is_changed: bool,
}

impl OwnChallenges {
    /// Returns whether the set in the store ends soon.
    fn is_old(&self, now: Duration) -> bool {
        self.written.is_none_or(|at| now >= at + CHALLENGE_LIFE / 3)
    }
}

impl CertificateExchange {
    pub(crate) fn new(
        token: [u8; TOKEN],
        (certificates, has_on_demand): (Vec<SharedCertificate>, bool),
        outputs: UnboundedSender<SharingOutput>,
    ) -> Self {
        Self {
            token,
            configured: certificates.len(),
            entries: vec![ExchangeEntry::default(); certificates.len()],
            certificates,
            has_on_demand,
            outputs,
            held: None,
            due: BTreeSet::new(),
            next: 0,
            own: OwnChallenges {
                slot: token[0] % SLOTS,
                ..OwnChallenges::default()
            },
            theirs: Vec::new(),
            reported: None,
            given: Vec::new(),
        }
    }

    pub(crate) fn input(&mut self, input: SharingInput, now: Duration) {
        match input {
            SharingInput::Held(on_demand, held)
                if held.len() == self.configured + on_demand.len() =>
            {
                self.set_held(on_demand, held);
            }
            // A companion with another configuration is about to be replaced.
            SharingInput::Held(..) | SharingInput::Answered => {}
            SharingInput::Challenges(number, challenges) => {
                let own = &mut self.own;
                (own.number, own.challenges) = (number, challenges);
                (own.since, own.is_changed) = (Some(now), true);
            }
            SharingInput::Bundle(index, bundle) => self.given.push((index, bundle)),
            SharingInput::Disconnected => {
                self.held = None;
                self.reported = None;
                self.own.challenges.clear();
                (self.own.since, self.own.is_changed) = (None, true);
            }
        }
    }

    fn set_held(&mut self, on_demand: Vec<SharedCertificate>, held: Vec<Option<BundleFacts>>) {
        let before = self.certificates.split_off(self.configured);
        self.entries.resize(held.len(), ExchangeEntry::default());
        for (index, certificate) in (self.configured..).zip(&on_demand) {
            if before.get(index - self.configured) != Some(certificate)
                && let Some(entry) = self.entries.get_mut(index)
            {
                *entry = ExchangeEntry::default();
                self.due.insert(index);
            }
        }
        self.certificates.extend(on_demand);
        let known = self.held.take().unwrap_or_default();
        let changed = (0..).zip(&held);
        let changed = changed.filter(|(index, held)| known.get(*index) != Some(held));
        self.due.extend(changed.map(|(index, _)| index));
        for (entry, held) in self.entries.iter_mut().zip(&held) {
            entry.passed.take_if(|(passed, _)| Some(*passed) == *held);
        }
        self.held = Some(held);
        self.reported = None;
    }

    /// Returns whether certificates are shared at all.
    pub(crate) fn is_needed(&self) -> bool {
        self.has_on_demand || !self.certificates.is_empty()
    }

    /// Returns the values to read now, and the certificates that they are about.
    pub(crate) fn wants(&mut self) -> (Vec<SharedValue>, Vec<usize>) {
        let mut indices = Vec::new();
        // In a store that refuses claims, many certificates stay due. They take half of the turn, and from the other end.
        while indices.len() < VISITED_AT_ONCE / 2
            && let Some(index) = self.due.pop_last()
        {
            indices.push(index);
        }
        for _ in indices.len()..VISITED_AT_ONCE.min(self.certificates.len()) {
            self.next = (self.next + 1) % self.certificates.len();
            self.due.remove(&self.next);
            indices.push(self.next);
        }
        indices.sort_unstable();
        indices.dedup();
        // An unused index of an on-demand certificate has no names.
        indices.retain(|index| self.tag(*index).is_some());
        let tags = indices.iter().filter_map(|index| self.tag(*index));
        let values = tags.flat_map(|tag| [SharedValue::Claim(tag), SharedValue::Facts(tag)]);
        let slots = (0..SLOTS).map(SharedValue::Challenges);
        (slots.chain(values).collect(), indices)
    }

    /// Takes the values that were read, and returns the changes of the store.
    pub(crate) fn take(
        &mut self,
        read: &OpenedValues,
        indices: &[usize],
        now: Duration,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        self.take_challenges(read, now);
        self.put_challenges(read, now, &mut changes);
        for index in indices {
            self.visit(*index, read, &mut changes);
        }
        for (index, bundle) in std::mem::take(&mut self.given) {
            self.put_bundle(index, bundle, &mut changes);
        }
        self.report();
        changes
    }

    fn take_challenges(&mut self, read: &OpenedValues, now: Duration) {
        let mut theirs = Vec::new();
        let mut known_names = None;
        for slot in (0..SLOTS).map(SharedValue::Challenges) {
            let Some(opened) = read.get(&slot) else {
                continue;
            };
            let Some((token, encoded)) = opened.text.split_first_chunk() else {
                continue;
            };
            if *token == self.token {
                continue;
            }
            let decoded: Vec<Challenge> = postcard::from_bytes(encoded).unwrap_or_default();
            let until = now + opened.left.min(CHALLENGE_LIFE);
            let names = known_names.get_or_insert_with(|| {
                let all = self.certificates.iter().flat_map(|it| &it.names);
                all.collect::<HashSet<&String>>()
            });
            let known = decoded.into_iter().filter(|it| {
                let is_known = self.has_on_demand || names.contains(&it.name);
                it.answer.is_valid() && is_known
            });
            theirs.extend(known.take(MOST_CHALLENGES).map(|it| (it, until)));
        }
        let is_same = |(was, is): (&(Challenge, Duration), &(Challenge, Duration))| {
            was.0 == is.0 && was.1 + CHALLENGE_LIFE / 3 > is.1
        };
        let both = self.theirs.iter().zip(&theirs);
        if self.theirs.len() != theirs.len() || !both.into_iter().all(is_same) {
            self.theirs.clone_from(&theirs);
            self.output(SharingOutput::Challenges(theirs));
        }
    }

    fn put_challenges(&mut self, read: &OpenedValues, now: Duration, changes: &mut Vec<Change>) {
        let own = &mut self.own;
        let value = SharedValue::Challenges(own.slot);
        let found = read.get(&value).map(|it| it.text.starts_with(&self.token));
        if own.challenges.is_empty() {
            if found == Some(true) {
                changes.push(Change::Remove(value));
            }
            own.written = own.is_changed.then_some(now).or(own.written);
        } else if found == Some(false) {
            // Another host uses this place.
            own.slot = (own.slot + 1) % SLOTS;
            own.is_changed = true;
            return;
        } else if found.is_none() || own.is_changed || own.is_old(now) {
            let mut text = Zeroizing::new(self.token.to_vec());
            text.extend(postcard::to_allocvec(&own.challenges).unwrap_or_default());
            changes.push(Change::Put {
                value,
                text,
                life: CHALLENGE_LIFE,
                is_new: false,
            });
            own.written = Some(now);
        }
        own.is_changed = false;
    }

    /// Reports the challenges of this host as served if all hosts have read them, or if the store is not available for
    /// long.
    pub(crate) fn report_served(&mut self, now: Duration) {
        let own = &mut self.own;
        let Some(since) = own.since else { return };
        let is_read = !own.is_changed && own.written.is_some_and(|at| now >= at + READ_TIME);
        if is_read || own.challenges.is_empty() || now >= since + LONGEST_WAIT {
            own.since = None;
            let number = own.number;
            self.output(SharingOutput::Served(number));
        }
    }

    fn visit(&mut self, index: usize, read: &OpenedValues, changes: &mut Vec<Change>) {
        let (Some(tag), Some(held)) = (self.tag(index), self.held_bundle(index)) else {
            return;
        };
        let life = CLAIM_LIFE + 3 * TURN * (self.certificates.len() / VISITED_AT_ONCE) as u32;
        let claim = read.get(&SharedValue::Claim(tag));
        let is_own = claim.is_some_and(|it| *it.text == self.token);
        if is_own || claim.is_none() {
            let is_due = claim.is_none_or(|it| it.left < life / 2);
            let put = Change::Put {
                value: SharedValue::Claim(tag),
                text: Zeroizing::new(self.token.to_vec()),
                life,
                is_new: !is_own,
            };
            changes.extend(is_due.then_some(put));
            if !is_own {
                // Another host may have put its claim before.
                self.due.insert(index);
            }
        }
        let stored = read.get(&SharedValue::Facts(tag));
        let stored = stored.and_then(|it| postcard::from_bytes::<BundleFacts>(&it.text).ok());
        let newer = stored.filter(|stored| held.is_none_or(|held| *stored > held));
        if let Some(entry) = self.entries.get_mut(index) {
            entry.is_read = true;
            entry.is_claimed = is_own;
            entry.newer = newer;
        }
        if held.is_some_and(|held| stored.is_none_or(|stored| held > stored)) {
            self.output(SharingOutput::Send(index));
        }
    }

    fn put_bundle(&self, index: usize, bundle: Zeroizing<Vec<u8>>, changes: &mut Vec<Change>) {
        let held = self.held_bundle(index).flatten();
        let held = held.filter(|held| is_bundle(held, &bundle));
        let (Some(tag), Some(held)) = (self.tag(index), held) else {
            return;
        };
        let Ok(facts) = postcard::to_allocvec(&held) else {
            return;
        };
        let facts = Zeroizing::new(facts);
        // The facts follow, so that a host that reads them finds the bundle.
        for (value, text) in [
            (SharedValue::Bundle(tag), bundle),
            (SharedValue::Facts(tag), facts),
        ] {
            changes.push(Change::Put {
                value,
                text,
                life: BUNDLE_LIFE,
                is_new: false,
            });
        }
    }

    /// Returns the newer bundles to read.
    pub(crate) fn wanted_bundles(&self, now: Duration) -> Vec<SharedValue> {
        let wanted = self.entries.iter().enumerate().filter(|(_, entry)| {
            let passed = entry.passed.filter(|(_, until)| now < *until);
            entry.newer.is_some() && entry.newer != passed.map(|(facts, _)| facts)
        });
        let tags = wanted.filter_map(|(index, _)| self.tag(index));
        tags.take(BUNDLES_AT_ONCE)
            .map(SharedValue::Bundle)
            .collect()
    }

    /// Passes bundles to the companion. Returns changes that remove the facts of missing bundles, so that a host that has
    /// them puts both again.
    pub(crate) fn take_bundles(
        &mut self,
        wanted: &[SharedValue],
        mut read: OpenedValues,
        now: Duration,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        for value in wanted {
            let tags = (0..self.certificates.len()).filter_map(|it| Some((it, self.tag(it)?)));
            let found = { tags }.find(|(_, tag)| SharedValue::Bundle(*tag) == *value);
            let Some((index, tag)) = found else { continue };
            let Some(entry) = self.entries.get_mut(index) else {
                continue;
            };
            self.due.insert(index);
            let found = entry.newer.zip(read.remove(value));
            if let Some((facts, opened)) = found.filter(|(facts, it)| is_bundle(facts, &it.text)) {
                entry.passed = Some((facts, now + REFUSAL_TIME));
                self.output(SharingOutput::Received(index, opened.text));
            } else {
                // The store removed it, or it is being replaced.
                entry.newer = None;
                changes.push(Change::Remove(SharedValue::Facts(tag)));
            }
        }
        changes
    }

    fn report(&mut self) {
        let is_read = |(index, entry): (usize, &ExchangeEntry)| {
            entry.is_read || index >= self.configured || self.tag(index).is_none()
        };
        if self.held.is_none() || !self.entries.iter().enumerate().all(is_read) {
            return;
        }
        let ranks = self.entries.iter().map(|entry| {
            // Different on most hosts.
            let later = 1 + u16::from(self.token[1] % LAST_RANK);
            let rank = if entry.is_claimed { 0 } else { later };
            // A host that is about to receive a newer bundle does not order.
            rank + u16::from(entry.newer.is_some())
        });
        let ranks: Vec<u16> = ranks.collect();
        if self.reported.as_ref() != Some(&ranks) {
            self.reported = Some(ranks.clone());
            self.output(SharingOutput::Ranks(ranks));
        }
    }

    fn held_bundle(&self, index: usize) -> Option<Option<BundleFacts>> {
        self.held.as_ref()?.get(index).copied()
    }

    fn tag(&self, index: usize) -> Option<CertificateTag> {
        let certificate = self.certificates.get(index);
        certificate
            .filter(|it| !it.names.is_empty())
            .map(|it| it.tag)
    }

    fn output(&self, output: SharingOutput) {
        // Fails only when this process exits.
        self.outputs.send(output).ok();
    }
}

fn is_bundle(facts: &BundleFacts, bytes: &[u8]) -> bool {
    bytes.len() == facts.length as usize && digest(&SHA256, bytes).as_ref() == facts.digest
}

impl SharedValue {
    /// Returns the bytes that its name in the store is derived from, and that are bound to its text.
    pub(crate) fn context(self) -> Vec<u8> {
        let (kind, number) = match self {
            Self::Challenges(slot) => (&b"becket acme challenges"[..], u64::from(slot)),
            Self::Claim(tag) => (&b"becket acme claim"[..], tag.0),
            Self::Facts(tag) => (&b"becket acme facts"[..], tag.0),
            Self::Bundle(tag) => (&b"becket acme bundle"[..], tag.0),
        };
        [kind, &number.to_be_bytes()].concat()
    }
}

/// Length of the random ID of a process.
pub(crate) const TOKEN: usize = 16;
/// Interval at which hosts read the store.
pub(crate) const TURN: Duration = Duration::from_secs(1);
/// Number of hosts that can order at the same time.
const SLOTS: u8 = 4;
/// Maximum number of certificates that are read at once.
const VISITED_AT_ONCE: usize = 64;
/// Maximum number of bundles that are read at once, each at most 64 KiB.
const BUNDLES_AT_ONCE: usize = 4;
/// Maximum number of challenges of one host.
const MOST_CHALLENGES: usize = 256;
/// Time for which other hosts answer a challenge after its last repetition.
const CHALLENGE_LIFE: Duration = Duration::from_secs(30);
/// Time in which all hosts read the challenges.
const READ_TIME: Duration = Duration::from_secs(2);
/// Time after which an order continues although not all hosts may have read the challenges.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Time after which the claim of a host that has ended expires, with few certificates.
const CLAIM_LIFE: Duration = Duration::from_secs(60);
/// Lifetime of a bundle in the store. A host that has one puts it again.
const BUNDLE_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Time for which a bundle that the companion did not take is not passed again.
const REFUSAL_TIME: Duration = Duration::from_secs(600);
/// Highest rank of a host without a claim.
const LAST_RANK: u8 = 63;

#[cfg(test)]
mod tests {
    use becket_proto::acme::ChallengeAnswer;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;

    /// The store, without secrets: texts and the times at which they end, and whether it refuses all writes.
    #[derive(Default)]
    struct Memory(BTreeMap<SharedValue, (Vec<u8>, Duration)>, bool);

    impl Memory {
        fn read(&self, values: &[SharedValue], now: Duration) -> OpenedValues {
            let opened = values.iter().filter_map(|value| {
                let (text, end) = self.0.get(value)?;
                let left = end.checked_sub(now).filter(|left| !left.is_zero())?;
                let text = Zeroizing::new(text.clone());
                Some((*value, Opened { text, left }))
            });
            opened.collect()
        }

        fn write(&mut self, changes: Vec<Change>, now: Duration) {
            self.0.retain(|_, (_, end)| *end > now);
            for change in changes.into_iter().filter(|_| !self.1) {
                match change {
                    Change::Put {
                        value,
                        text,
                        life,
                        is_new,
                    } => {
                        let put = (text.to_vec(), now + life);
                        if is_new {
                            self.0.entry(value).or_insert(put);
                        } else {
                            self.0.insert(value, put);
                        }
                    }
                    Change::Remove(value) => drop(self.0.remove(&value)),
                }
            }
        }
    }

    struct ExchangeHost {
        exchange: CertificateExchange,
        outputs: UnboundedReceiver<SharingOutput>,
        bundles: Vec<Option<Vec<u8>>>,
        ranks: Option<Vec<u16>>,
        answers: Vec<String>,
        served: Option<u32>,
    }

    fn facts(bundle: &[u8]) -> BundleFacts {
        BundleFacts {
            ordered: bundle[0].into(),
            digest: digest(&SHA256, bundle).as_ref().try_into().unwrap(),
            length: bundle.len() as u32,
        }
    }

    impl ExchangeHost {
        fn new(number: u8, certificates: u64) -> Self {
            let (sender, outputs) = unbounded_channel();
            let certificates = (0..certificates).map(|tag| SharedCertificate {
                tag: CertificateTag(tag),
                names: vec![format!("{tag}.test")],
            });
            let certificates: Vec<_> = certificates.collect();
            let mut host = Self {
                bundles: vec![None; certificates.len()],
                exchange: CertificateExchange::new([number; TOKEN], (certificates, false), sender),
                outputs,
                ranks: None,
                answers: Vec::new(),
                served: None,
            };
            host.hold(Duration::ZERO);
            host
        }

        fn hold(&mut self, now: Duration) {
            let held = self.bundles.iter().map(|it| it.as_deref().map(facts));
            let held = SharingInput::Held(Vec::new(), held.collect());
            self.exchange.input(held, now);
        }

        fn orders(&mut self, index: usize, bundle: &[u8], now: Duration) {
            self.bundles[index] = Some(bundle.to_vec());
            self.hold(now);
        }

        fn challenge(&mut self, number: u32, name: &str, now: Duration) {
            let answer = ChallengeAnswer::TlsAlpn([1; 32]);
            let name = name.to_owned();
            let challenges = vec![Challenge { name, answer }];
            self.exchange
                .input(SharingInput::Challenges(number, challenges), now);
        }

        /// One turn, as the service does it.
        fn turn(&mut self, store: &mut Memory, now: Duration) {
            let (values, indices) = self.exchange.wants();
            let read = store.read(&values, now);
            store.write(self.exchange.take(&read, &indices, now), now);
            let wanted = self.exchange.wanted_bundles(now);
            let bundles = store.read(&wanted, now);
            store.write(self.exchange.take_bundles(&wanted, bundles, now), now);
            self.exchange.report_served(now);
            while let Ok(output) = self.outputs.try_recv() {
                match output {
                    SharingOutput::Challenges(answers) => {
                        self.answers = answers.into_iter().map(|it| it.0.name).collect();
                    }
                    SharingOutput::Served(number) => self.served = Some(number),
                    SharingOutput::Ranks(ranks) => self.ranks = Some(ranks),
                    SharingOutput::Send(index) => {
                        let bundle = Zeroizing::new(self.bundles[index].clone().unwrap());
                        self.exchange
                            .input(SharingInput::Bundle(index, bundle), now);
                    }
                    SharingOutput::Received(index, bundle) => {
                        self.orders(index, &bundle, now);
                    }
                }
            }
        }

        fn first(&self, index: usize) -> bool {
            self.ranks.as_ref().is_some_and(|ranks| ranks[index] == 0)
        }
    }

    fn run(hosts: &mut [ExchangeHost], store: &mut Memory, seconds: std::ops::Range<u64>) {
        for second in seconds {
            for host in &mut *hosts {
                host.turn(store, Duration::from_secs(second));
            }
        }
    }

    #[test]
    fn one_host_orders_each_certificate_and_another_one_after_it_has_ended() {
        let mut store = Memory::default();
        let mut hosts = [ExchangeHost::new(1, 200), ExchangeHost::new(2, 200)];
        run(&mut hosts, &mut store, 0..20);
        for index in 0..200 {
            let first = hosts.iter().filter(|host| host.first(index));
            assert_eq!(first.count(), 1, "{index}");
        }
        run(&mut hosts[1..], &mut store, 20..200);
        assert!((0..200).all(|index| hosts[1].first(index)));
    }

    #[test]
    fn hosts_answer_a_challenge_before_it_is_reported_as_served_and_while_it_is_pending() {
        let mut store = Memory::default();
        let mut hosts = [1, 5, 9].map(|number| ExchangeHost::new(number, 2));
        // All use one place at first. The name of the third is unknown to others.
        for (host, name) in hosts.iter_mut().zip(["0.test", "1.test", "2.test"]) {
            host.challenge(7, name, Duration::ZERO);
        }
        for second in 0..100 {
            run(&mut hosts, &mut store, second..second + 1);
            for (host, other) in [(0, 1), (1, 0)] {
                let name = format!("{host}.test");
                let is_answered = hosts[other].answers.contains(&name);
                assert!(is_answered || hosts[host].served.is_none(), "{second}");
            }
        }
        assert!(hosts.iter().all(|host| host.served == Some(7)));
        assert!(hosts[0].answers == ["1.test"] && hosts[1].answers == ["0.test"]);
        for host in &mut hosts {
            let none = SharingInput::Challenges(8, Vec::new());
            host.exchange.input(none, Duration::from_secs(100));
        }
        run(&mut hosts, &mut store, 100..103);
        assert!(hosts.iter().all(|host| host.answers.is_empty()));
        assert!(hosts.iter().all(|host| host.served == Some(8)));
    }

    #[test]
    fn the_newest_bundle_reaches_all_hosts_and_an_older_one_none() {
        let mut store = Memory::default();
        let mut hosts = [1, 2, 3].map(|number| ExchangeHost::new(number, 100));
        hosts[0].orders(70, b"2 old", Duration::ZERO);
        run(&mut hosts[..2], &mut store, 0..10);
        assert_eq!(hosts[1].bundles[70].as_deref(), Some(&b"2 old"[..]));
        hosts[1].orders(70, b"3 new", Duration::from_secs(10));
        run(&mut hosts[1..2], &mut store, 10..20);
        run(&mut hosts, &mut store, 20..30);
        for host in &hosts {
            assert_eq!(host.bundles[70].as_deref(), Some(&b"3 new"[..]));
        }
        // The store loses everything.
        store.0.clear();
        hosts[2].bundles[70] = None;
        hosts[2].hold(Duration::from_secs(30));
        run(&mut hosts, &mut store, 30..40);
        assert_eq!(hosts[2].bundles[70].as_deref(), Some(&b"3 new"[..]));
    }

    #[test]
    fn challenges_that_a_store_lost_are_put_again() {
        let mut store = Memory::default();
        let mut hosts = [1, 2].map(|number| ExchangeHost::new(number, 1));
        hosts[0].challenge(1, "0.test", Duration::ZERO);
        store.1 = true;
        run(&mut hosts, &mut store, 0..2);
        store.1 = false;
        run(&mut hosts, &mut store, 2..4);
        assert_eq!(
            (&hosts[1].answers[..], hosts[0].served),
            (&["0.test".to_owned()][..], None)
        );
        run(&mut hosts, &mut store, 4..6);
        assert_eq!(hosts[0].served, Some(1));
    }

    #[test]
    fn a_store_that_refuses_claims_delays_no_other_certificate() {
        let mut store = Memory(BTreeMap::new(), true);
        let mut hosts = [ExchangeHost::new(1, 1000)];
        run(&mut hosts, &mut store, 0..40);
        assert!(hosts[0].ranks.is_some(), "all are read");
    }

    #[test]
    fn a_bundle_that_the_store_removed_blocks_no_other_and_is_put_again() {
        let mut store = Memory::default();
        let mut hosts = [1, 2].map(|number| ExchangeHost::new(number, 10));
        (0..10).for_each(|index| hosts[0].orders(index, b"2 bundle", Duration::ZERO));
        run(&mut hosts[..1], &mut store, 0..5);
        let is_lost = |tag| tag < 8;
        store
            .0
            .retain(|value, _| !matches!(value, SharedValue::Bundle(tag) if is_lost(tag.0)));
        run(&mut hosts, &mut store, 5..20);
        assert!(hosts[1].bundles.iter().all(Option::is_some));
    }

    #[test]
    fn challenges_are_reported_as_served_although_the_store_is_gone() {
        let mut host = ExchangeHost::new(1, 1);
        host.challenge(1, "0.test", Duration::ZERO);
        host.exchange.report_served(LONGEST_WAIT / 2);
        assert!(host.outputs.try_recv().is_err());
        host.exchange.report_served(LONGEST_WAIT);
        assert_eq!(host.outputs.try_recv(), Ok(SharingOutput::Served(1)));
    }
}
