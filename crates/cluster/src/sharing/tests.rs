//! Nodes with perfect companions exchange records over a network that loses some.

use becket_proto::acme::ChallengeAnswer;
use becket_proto::ticket::NodeId;
use proptest::prelude::*;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::intervals::ACK_TIME;
use super::*;
use crate::replica::{Boot, ChunkName, MAX_DATAGRAM, PeerRecord};

const CERTIFICATES: usize = 3;
const STEP: Duration = Duration::from_millis(50);

/// Nodes with perfect companions, and a network that loses records.
struct Net {
    nodes: Vec<Member>,
    now: Duration,
    random: fastrand::Rng,
    /// Probability that a record is lost.
    loss: f64,
    /// Pairs of nodes that cannot reach each other.
    cut: BTreeSet<(usize, usize)>,
}

struct Member {
    name: PeerName,
    sharing: CertificateSharing,
    outputs: UnboundedReceiver<SharingOutput>,
    on_demand: Vec<SharedCertificate>,
    bundles: Vec<Option<(u64, Vec<u8>)>>,
    ranks: Option<Vec<u16>>,
    served: Vec<u32>,
    answers: Vec<(Challenge, Duration)>,
    is_running: bool,
    /// `true` if its companion takes nothing.
    is_deaf: bool,
}

impl Member {
    fn new(node: u16) -> Self {
        let (sender, outputs) = unbounded_channel();
        let certificates = (0..CERTIFICATES).map(|index| shared(index as u64));
        let node = NodeId(node);
        Self {
            name: PeerName {
                node,
                boot: Boot(7),
            },
            sharing: CertificateSharing::new(node, (certificates.collect(), false), sender),
            outputs,
            on_demand: Vec::new(),
            bundles: vec![None; CERTIFICATES],
            ranks: None,
            served: Vec::new(),
            answers: Vec::new(),
            is_running: true,
            is_deaf: false,
        }
    }

    fn keep(&mut self, index: usize, ordered: u64, bytes: Vec<u8>, now: Duration) {
        self.bundles[index] = Some((ordered, bytes));
        self.hold(now);
    }

    fn hold(&mut self, now: Duration) {
        let held = (0..self.bundles.len()).map(|index| self.facts(index));
        let held = SharingInput::Held(self.on_demand.clone(), held.collect());
        self.sharing.input(held, now);
    }

    /// Adds an on-demand certificate, or none, at an index after the configured ones.
    fn set_on_demand(&mut self, place: usize, tag: Option<u64>, now: Duration) {
        let none = SharedCertificate {
            tag: CertificateTag(u64::MAX),
            names: Vec::new(),
        };
        if self.on_demand.len() <= place {
            self.on_demand.resize(place + 1, none.clone());
            self.bundles.resize(CERTIFICATES + place + 1, None);
        }
        self.on_demand[place] = tag.map_or(none, shared);
        self.bundles[CERTIFICATES + place] = None;
        self.hold(now);
    }

    fn rank(&self, index: usize) -> u16 {
        self.ranks.as_ref().unwrap()[index]
    }

    /// Acts as companion and control.
    fn act(&mut self, now: Duration) {
        while let Ok(output) = self.outputs.try_recv() {
            match output {
                SharingOutput::Challenges(answers) => {
                    self.answers = answers;
                    self.sharing.input(SharingInput::Answered, now);
                }
                SharingOutput::Served(number) => self.served.push(number),
                SharingOutput::Ranks(ranks) => self.ranks = Some(ranks),
                SharingOutput::Send(index) => {
                    let (_, bytes) = self.bundles[index].clone().unwrap();
                    let bundle = SharingInput::Bundle(index, Zeroizing::new(bytes));
                    self.sharing.input(bundle, now);
                }
                SharingOutput::Received(index, bytes) => {
                    // The first bytes are the date, as in a certificate.
                    let at = u64::from_be_bytes(*bytes.first_chunk().unwrap());
                    if Some(facts(at, &bytes)) > self.facts(index) {
                        self.keep(index, at, bytes.to_vec(), now);
                    }
                }
            }
        }
    }

    fn facts(&self, index: usize) -> Option<BundleFacts> {
        let (ordered, bytes) = self.bundles[index].as_ref()?;
        Some(facts(*ordered, bytes))
    }

    fn answers(&self, name: &str, now: Duration) -> bool {
        let mut answers = self.answers.iter();
        answers.any(|(challenge, until)| challenge.name == name && now < *until)
    }
}

impl Net {
    fn new(nodes: &[u16], seed: u64, loss: f64) -> Self {
        Self {
            nodes: nodes.iter().map(|node| Member::new(*node)).collect(),
            now: Duration::from_secs(1),
            random: fastrand::Rng::with_seed(seed),
            loss,
            cut: BTreeSet::new(),
        }
    }

    fn connect_all(&mut self) {
        for node in &mut self.nodes {
            node.hold(self.now);
        }
    }

    fn newest(&self, index: usize) -> Option<BundleFacts> {
        let held = self.nodes.iter().map(|node| node.facts(index));
        held.max().flatten()
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.step();
        }
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        let is_cut = self.cut.contains(&(from.min(to), from.max(to)));
        from != to && !is_cut && self.nodes[from].is_running && self.nodes[to].is_running
    }

    fn step(&mut self) {
        let mut sent = Vec::new();
        for from in 0..self.nodes.len() {
            let all = 0..self.nodes.len();
            let peers = all.filter(|to| self.reaches(from, *to));
            let peers = peers.map(|to| self.nodes[to].name).collect();
            let member = &mut self.nodes[from];
            let is_due = member.sharing.next_deadline().unwrap() <= self.now;
            if is_due && member.is_running {
                member.sharing.poll(self.now, peers, |to, record| {
                    let mut bytes = [0; MAX_DATAGRAM];
                    let len = PeerRecord::Acme(record).encode(&mut bytes).unwrap();
                    sent.push((from, to, bytes[..len].to_vec()));
                });
            }
        }
        for (from, receiver, bytes) in sent {
            for to in 0..self.nodes.len() {
                let is_addressed = receiver.is_none_or(|it| it == self.nodes[to].name);
                if !is_addressed || !self.reaches(from, to) || self.random.f64() < self.loss {
                    continue;
                }
                let (record, _) = PeerRecord::decode(&bytes).unwrap();
                let PeerRecord::Acme(record) = record else {
                    panic!("another record");
                };
                let name = self.nodes[from].name;
                // A record can be late.
                self.nodes[to].sharing.take(name, record, self.now).ok();
            }
        }
        for node in self.nodes.iter_mut().filter(|node| !node.is_deaf) {
            node.act(self.now);
        }
    }
}

fn shared(tag: u64) -> SharedCertificate {
    SharedCertificate {
        tag: CertificateTag(tag),
        names: vec![format!("{tag}.test")],
    }
}

fn facts(ordered: u64, bytes: &[u8]) -> BundleFacts {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    BundleFacts {
        ordered,
        digest: digest.as_ref().try_into().unwrap(),
        length: bytes.len() as u32,
    }
}

fn bundle(ordered: u64, length: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = ordered.to_be_bytes().to_vec();
    bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(length));
    bytes
}

fn challenge(name: &str) -> Challenge {
    Challenge {
        name: name.to_owned(),
        answer: ChallengeAnswer::TlsAlpn([9; 32]),
    }
}

const LONG: Duration = Duration::from_secs(240);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// All nodes end with the newest bundles, no matter which node orders and which records are lost.
    #[test]
    fn nodes_end_with_the_newest_bundles(
        seed: u64,
        loss in 0.0..0.3,
        orders in prop::collection::vec((0..3_usize, 0..CERTIFICATES, 1..9_u64, 0..9000_usize), 1..8),
    ) {
        let mut net = Net::new(&[4, 2, 9], seed, loss);
        net.connect_all();
        for (node, index, at, length) in orders {
            let bytes = bundle(at, length, &mut net.random);
            let now = net.now;
            net.nodes[node].keep(index, at, bytes, now);
            let pause = net.random.u64(..8000);
            net.run(Duration::from_millis(pause));
        }
        let newest: Vec<_> = (0..CERTIFICATES).map(|index| net.newest(index)).collect();
        net.run(LONG);
        for (index, newest) in newest.into_iter().enumerate() {
            let last = net.newest(index);
            // A bundle that no node holds any more can be on its way.
            prop_assert!(last >= newest);
            let mut nodes = net.nodes.iter();
            prop_assert!(nodes.all(|node| node.facts(index) == last));
        }
    }

    /// Foreign records change nothing that this node did not configure, and never panic.
    #[test]
    fn foreign_records_are_bounded(
        records in prop::collection::vec((11_u8..16, prop::collection::vec(any::<u8>(), 0..60)), 0..60),
    ) {
        let mut net = Net::new(&[1, 2], 0, 0.0);
        net.connect_all();
        let name = net.nodes[1].name;
        for (kind, body) in records {
            let mut text = vec![kind, 0, body.len() as u8];
            text.extend(body);
            if let Some((PeerRecord::Acme(record), _)) = PeerRecord::decode(&text) {
                net.nodes[0].sharing.take(name, record, net.now).ok();
            }
            net.step();
        }
        prop_assert!(net.nodes[0].answers.is_empty());
        prop_assert!(net.nodes[0].bundles.iter().all(Option::is_none));
    }
}

#[test]
fn a_set_is_served_when_all_sharing_peers_answer_it() {
    let mut net = Net::new(&[1, 2, 3], 1, 0.0);
    net.connect_all();
    net.run(SETTLING_TIME);
    let set = vec![challenge("0.test"), challenge("2.test")];
    net.nodes[2]
        .sharing
        .input(SharingInput::Challenges(5, set), net.now);
    let started = net.now;
    while net.nodes[2].served.is_empty() {
        net.now += STEP;
        net.step();
    }
    assert!(net.now - started < ACK_TIME);
    assert!(
        net.nodes[..2]
            .iter()
            .all(|node| node.answers("0.test", net.now))
    );
    assert!(
        net.nodes[..2]
            .iter()
            .all(|node| node.answers("2.test", net.now))
    );
    // They stay while they are pending.
    net.run(3 * CHALLENGE_LIFE);
    assert!(net.nodes[0].answers("0.test", net.now));
    let now = net.now;
    net.nodes[2]
        .sharing
        .input(SharingInput::Challenges(6, Vec::new()), now);
    net.run(2 * CHALLENGE_LIFE);
    assert!(net.nodes[0].answers.is_empty());
    assert_eq!(net.nodes[2].served, [5, 6]);
}

#[test]
fn a_certificate_on_demand_is_ordered_by_one_node_and_received_by_the_others() {
    const FIRST: usize = CERTIFICATES;
    let mut net = Net::new(&[1, 2, 3], 1, 0.0);
    net.connect_all();
    net.run(3 * SETTLING_TIME);
    let (random, second) = (&mut fastrand::Rng::with_seed(1), Duration::from_secs(1));
    // Clients ask two nodes at once, which use different indices.
    let now = net.now;
    net.nodes[1].set_on_demand(1, Some(77), now);
    net.nodes[2].set_on_demand(0, Some(77), now);
    net.run(2 * second);
    assert_eq!(net.nodes[1].rank(FIRST + 1), 0);
    assert_eq!(net.nodes[2].rank(FIRST), 1);
    let now = net.now;
    net.nodes[1].keep(FIRST + 1, 5, bundle(5, 3000, random), now);
    net.run(10 * second);
    assert!(net.nodes[2].facts(FIRST).is_some());
    // A node that is asked later has the smallest number, and does not order either.
    let now = net.now;
    net.nodes[0].set_on_demand(0, Some(77), now);
    net.run(2 * second);
    assert!(net.nodes[0].facts(FIRST).is_some() || net.nodes[0].rank(FIRST) > 0);
    net.run(10 * second);
    assert_eq!(net.nodes[0].facts(FIRST), net.nodes[1].facts(FIRST + 1));
    // Another name takes the index. Nothing of the earlier one remains.
    let now = net.now;
    net.nodes[0].ranks = None;
    net.nodes[0].set_on_demand(0, Some(78), now);
    net.run(10 * second);
    assert_eq!(net.nodes[0].facts(FIRST), None);
    assert_eq!(net.nodes[0].rank(FIRST), 0);
    assert!(net.nodes[2].facts(FIRST).is_some());
    let now = net.now;
    net.nodes[0].set_on_demand(0, None, now);
    net.run(10 * second);
    assert_eq!(net.nodes[0].facts(FIRST), None);
}

#[test]
fn the_newest_challenge_for_a_name_comes_first() {
    for digests in [[1, 2], [2, 1]] {
        let mut net = Net::new(&[1, 2], 1, 0.0);
        net.connect_all();
        for digest in digests {
            let mut set = vec![challenge("0.test")];
            set[0].answer = ChallengeAnswer::TlsAlpn([digest; 32]);
            let now = net.now;
            net.nodes[1]
                .sharing
                .input(SharingInput::Challenges(digest.into(), set), now);
            net.run(TICK);
        }
        let (first, _) = &net.nodes[0].answers[0];
        assert_eq!(first.answer, ChallengeAnswer::TlsAlpn([digests[1]; 32]));
    }
}

#[test]
fn a_peer_that_does_not_answer_delays_an_order_only_for_a_time() {
    let mut net = Net::new(&[1, 2], 1, 0.0);
    net.connect_all();
    net.run(SETTLING_TIME);
    net.loss = 1.0;
    let set = vec![challenge("0.test")];
    net.nodes[0]
        .sharing
        .input(SharingInput::Challenges(1, set), net.now);
    net.run(ACK_TIME - 2 * STEP);
    assert!(net.nodes[0].served.is_empty());
    net.run(REPEAT);
    assert_eq!(net.nodes[0].served, [1]);
}

#[test]
fn challenges_for_other_names_are_dropped_and_counted() {
    let mut net = Net::new(&[1, 2], 1, 0.0);
    let from = net.nodes[1].name;
    let mut learn = |name: &str, digest: u16| {
        let mut challenge = challenge(name);
        let [high, low] = digest.to_be_bytes();
        challenge.answer = ChallengeAnswer::TlsAlpn([high, low].repeat(16).try_into().unwrap());
        let challenge = challenge.encode().unwrap();
        let record = AcmeRecord::Challenge {
            life: Duration::from_secs(9),
            challenge: &challenge,
        };
        net.nodes[0].sharing.take(from, record, net.now)
    };
    assert_eq!(learn("other.test", 0), Err(DropCause::Unwanted));
    for digest in 0..256 {
        learn("0.test", digest).unwrap();
    }
    assert_eq!(learn("0.test", 256), Err(DropCause::Unwanted));
    // A repetition is not another challenge.
    learn("0.test", 255).unwrap();
    let mut net = Net::new(&[1, 2], 1, 0.0);
    net.nodes[0].sharing.has_on_demand = true;
    let challenge = challenge("other.test").encode().unwrap();
    let record = AcmeRecord::Challenge {
        life: Duration::from_secs(9),
        challenge: &challenge,
    };
    let from = net.nodes[1].name;
    net.nodes[0].sharing.take(from, record, net.now).unwrap();
}

#[test]
fn ranks_follow_the_numbers_of_the_living_nodes() {
    let mut net = Net::new(&[30, 10, 20], 1, 0.0);
    net.connect_all();
    net.run(SETTLING_TIME - 2 * STEP);
    assert!(net.nodes.iter().all(|node| node.ranks.is_none()));
    net.run(2 * TICK);
    let ranks = |net: &Net| -> Vec<u16> {
        let ranks = net.nodes.iter().map(|node| node.ranks.clone().unwrap());
        ranks.map(|ranks| ranks[1]).collect()
    };
    assert_eq!(ranks(&net), [2, 0, 1]);
    net.nodes[1].is_running = false;
    net.run(FRESH / 2);
    // A restart must not change who orders.
    assert_eq!(ranks(&net)[0], 2);
    net.run(FRESH);
    assert_eq!(ranks(&net), [1, 0, 0]);
    net.cut.insert((0, 2));
    net.run(2 * FRESH);
    assert_eq!(ranks(&net), [0, 0, 0]);
}

#[test]
fn a_node_that_returns_receives_what_it_missed_before_it_orders() {
    let mut net = Net::new(&[1, 2], 1, 0.1);
    net.nodes[0].is_running = false;
    net.nodes[1].hold(net.now);
    for index in 0..CERTIFICATES {
        let bytes = bundle(1, 3000, &mut net.random);
        let now = net.now;
        net.nodes[1].keep(index, 1, bytes, now);
    }
    net.run(FRESH);
    net.nodes[0].is_running = true;
    net.nodes[0].hold(net.now);
    let end = net.now + 2 * SETTLING_TIME;
    while net.now < end {
        net.now += STEP;
        net.step();
        let node = &net.nodes[0];
        let mut ranks = node.ranks.iter().flatten().zip(&node.bundles);
        assert!(ranks.all(|(rank, bundle)| *rank > 0 || bundle.is_some()));
    }
    assert_eq!(net.nodes[0].ranks, Some(vec![0; CERTIFICATES]));
}

#[test]
fn requests_of_a_peer_that_left_do_not_stop_others() {
    let mut net = Net::new(&[1, 2], 1, 0.0);
    let now = net.now;
    for index in 0..2 {
        let bytes = bundle(1, 3000, &mut net.random);
        net.nodes[0].keep(index, 1, bytes, now);
    }
    let first = net.nodes[0].facts(0).unwrap().digest;
    let left = PeerName {
        node: NodeId(9),
        boot: Boot(9),
    };
    for chunk in 0..200 {
        let name = ChunkName {
            certificate: CertificateTag(0),
            version: u64::from_be_bytes(*first.first_chunk().unwrap()),
            chunk,
        };
        let want = AcmeRecord::Want(name);
        net.nodes[0].sharing.take(left, want, now).unwrap();
    }
    net.nodes[1].hold(now);
    net.run(Duration::from_secs(10));
    assert!(net.nodes[1].bundles[..2].iter().all(Option::is_some));
}

#[test]
fn a_bundle_that_the_companion_rejects_is_pulled_again_only_later() {
    let mut net = Net::new(&[1, 2], 1, 0.0);
    net.connect_all();
    net.run(TICK);
    let bytes = bundle(3, 5000, &mut net.random);
    let now = net.now;
    net.nodes[1].keep(0, 3, bytes, now);
    net.nodes[0].is_deaf = true;
    let mut received = 0;
    let end = net.now + REFUSED_TWICE;
    while net.now < end {
        net.now += STEP;
        net.step();
        while let Ok(output) = net.nodes[0].outputs.try_recv() {
            received += u32::from(matches!(output, SharingOutput::Received(..)));
        }
    }
    assert_eq!(received, 2);
}

#[test]
fn a_newer_bundle_is_pulled_soon_after_another_one_and_an_own_order() {
    let mut net = Net::new(&[1, 2], 1, 0.0);
    net.connect_all();
    for (ordered, node) in [(1, 1), (2, 0), (3, 1)] {
        let bytes = bundle(ordered, 3000, &mut net.random);
        let now = net.now;
        net.nodes[node].keep(0, ordered, bytes, now);
        net.run(Duration::from_secs(10));
        assert_eq!(net.nodes[0].facts(0), net.nodes[1].facts(0));
    }
}

const REFUSED_TWICE: Duration = Duration::from_secs(90);
