//! Datagrams between nodes of a cluster, with encryption disabled: the input of an attacker, and that of a node with the
//! right keys.
//!
//! The input is a list of datagrams, each after its length. A node receives each datagram twice: unchanged, and inside
//! the envelope of a joined pair, so that its records are parsed.

use std::time::Duration;

use becket_cluster::replica::{
    Boot, DropCause, DumpSource, JOIN_NONCE_LEN, MAX_DATAGRAM, PeerName, PeerRecord, PeerStick,
    Replica, ReplicaLimits, Role, SHARE_LEN, SessionRecord, Sink, StickCursor, TAG_LEN, Transcript,
    Vault,
};
use becket_proto::bounded_table::Cursor;
use becket_proto::ticket::{NodeId, SecretId};

/// Checks one input. Returns the number of records that the node delivered.
///
/// # Panics
///
/// If a record changes when it is written and read again, if an invariant is violated, if the two nodes do not join, or if
/// a node has overdue work forever.
pub fn run(data: &[u8]) -> usize {
    let (mut one, mut two) = joined();
    let mut sink = TestSink::default();
    let mut now = SECOND * 10;
    let mut rest = data;
    let mut sequence = 1000;
    while let Some((len, more)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*len) & 0x7ff).min(more.len());
        let (bytes, after) = more.split_at(len);
        rest = after;
        now += Duration::from_millis(len as u64);
        let mut datagram = bytes.to_vec();
        one.receive(TWO.into(), &mut datagram, now, &mut sink);
        let Some(envelope) = envelope(&mut two, now) else {
            continue;
        };
        sequence += 1;
        let mut datagram = enclosed(&envelope, sequence, bytes);
        one.receive(TWO.into(), &mut datagram, now, &mut sink);
        settle(&mut one, now, &mut Vec::new());
        one.check_invariants();
    }
    round_trip(data);
    assert!(one.live() <= 4 * ReplicaLimits::default().peers);
    sink.records
}

/// Asserts that a decoded record is unchanged after it is encoded and decoded again.
fn round_trip(data: &[u8]) {
    if let Some((record, len)) = PeerRecord::decode(data) {
        assert!(len <= data.len());
        let mut written = vec![0; MAX_DATAGRAM];
        if let Some(len) = record.encode(&mut written) {
            assert_eq!(PeerRecord::decode(&written[..len]), Some((record, len)));
        } else {
            assert!(len > 1000, "a short record was not written");
        }
    }
}

/// Makes two nodes that have joined.
fn joined() -> (Replica<Clear>, Replica<Clear>) {
    let node = |number: u16| {
        let boot = Boot(number.into());
        Replica::new(
            NodeId(number),
            boot,
            ReplicaLimits::default(),
            Clear::new(number),
        )
    };
    let (mut one, mut two) = (node(1), node(2));
    one.set_peers(&[TWO.into()]);
    let mut sink = TestSink::default();
    for turn in 1..5 {
        let now = SECOND * turn;
        let (mut to_two, mut to_one) = (Vec::new(), Vec::new());
        settle(&mut one, now, &mut to_two);
        for datagram in &mut to_two {
            two.receive(ONE.into(), datagram, now, &mut sink);
        }
        settle(&mut two, now, &mut to_one);
        for datagram in &mut to_one {
            one.receive(TWO.into(), datagram, now, &mut sink);
        }
    }
    assert!(one.live() == 1 && two.live() == 1, "the nodes did not join");
    (one, two)
}

/// Returns the first eight bytes of a datagram that node two sends to node one to delete a session.
fn envelope(two: &mut Replica<Clear>, now: Duration) -> Option<[u8; 8]> {
    let record = PeerRecord::Del {
        policy: becket_proto::session::PolicyTag(1),
        id: &[1],
    };
    two.offer(&record);
    let mut sent = Vec::new();
    settle(two, now + SECOND, &mut sent);
    let pair = sent.iter().find(|bytes| bytes.get(4..8) != Some(&[0; 4]))?;
    pair.first_chunk::<8>().copied()
}

fn enclosed(envelope: &[u8; 8], sequence: u64, text: &[u8]) -> Vec<u8> {
    let mut datagram = envelope.to_vec();
    datagram.extend(sequence.to_be_bytes());
    datagram.extend(text);
    datagram.extend([0; TAG_LEN]);
    datagram
}

fn settle(node: &mut Replica<Clear>, now: Duration, sent: &mut Vec<Vec<u8>>) {
    let mut turns = 0;
    loop {
        node.poll(now, &mut TestSink::default(), &mut |_, bytes| {
            sent.push(bytes.to_vec());
            true
        });
        turns += 1;
        assert!(turns < 1000, "work remains overdue");
        if node.next_deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
const ONE: ([u8; 4], u16) = ([192, 0, 2, 1], 7000);
const TWO: ([u8; 4], u16) = ([192, 0, 2, 2], 7000);

/// Accepts every record and stores none.
#[derive(Default)]
struct TestSink {
    records: usize,
}

impl Sink for TestSink {
    fn take(&mut self, _: PeerName, record: PeerRecord<'_>) -> Result<(), DropCause> {
        self.records += 1;
        if let PeerRecord::New(session) | PeerRecord::Sync(session) = record {
            assert!((1..=32).contains(&session.id.len()));
        }
        Ok(())
    }
}

impl DumpSource for TestSink {
    fn visit(
        &mut self,
        _: Cursor,
        _: Duration,
        _: usize,
        _: &mut dyn FnMut(SessionRecord<'_>),
    ) -> Option<Cursor> {
        None
    }

    fn visit_sticks(
        &mut self,
        _: StickCursor,
        _: Duration,
        _: usize,
        _: &mut dyn FnMut(PeerStick),
    ) -> Option<StickCursor> {
        None
    }

    fn held(&self) -> u32 {
        0
    }
}

/// A vault without encryption.
pub struct Clear {
    random: u64,
}

impl Clear {
    /// Creates a vault. Its random bytes depend on `number`.
    pub fn new(number: u16) -> Self {
        let random = 0x9e37_79b9_7f4a_7c15 ^ u64::from(number) << 40;
        Self { random }
    }
}

impl Vault for Clear {
    type Share = ();
    type Keys = ();

    fn random(&mut self, out: &mut [u8]) {
        for byte in out {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            *byte = (self.random >> 24) as u8;
        }
    }

    fn secrets(&self) -> &[SecretId] {
        &[SecretId(1)]
    }

    fn share(&mut self) -> Option<((), [u8; SHARE_LEN])> {
        Some(((), [1; SHARE_LEN]))
    }

    fn agree(&mut self, _: &(), _: &Transcript, _: Role) -> Option<()> {
        Some(())
    }

    fn seal_join(
        &mut self,
        _: SecretId,
        _: &[u8; JOIN_NONCE_LEN],
        _: &[u8],
        _: &mut [u8],
    ) -> Option<[u8; TAG_LEN]> {
        Some([0; TAG_LEN])
    }

    fn open_join(&mut self, _: SecretId, _: &[u8; JOIN_NONCE_LEN], _: &[u8], _: &mut [u8]) -> bool {
        true
    }

    fn seal(&mut self, _: &mut (), _: u64, _: &[u8], _: &mut [u8]) -> Option<[u8; TAG_LEN]> {
        Some([0; TAG_LEN])
    }

    fn open(&mut self, _: &mut (), _: u64, _: &[u8], _: &mut [u8]) -> bool {
        true
    }
}
