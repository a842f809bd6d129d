//! What replication costs per record without its cryptography: offering, packing, receiving.
//!
//! Run with `cargo bench -p becket-cluster --bench replica`. The vault seals nothing and opens everything, so a datagram's
//! seal and open come on top, some 1 us each for ten records. A state has 78 bytes, as rustls' TLS 1.2 state without a
//! client chain.

use std::time::Duration;

use becket_cluster::replica::{
    Boot, DumpSource, PeerName, PeerRecord, PeerStick, Replica, ReplicaLimits, SessionRecord, Sink,
    SinkOutcome, StickCursor,
};
use becket_proto::bounded_table::Cursor;
use becket_proto::session::PolicyTag;
use becket_proto::ticket::{NodeId, OriginId};
use clear_vault::Clear;
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};

#[path = "../../../fuzz/src/replica.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "the fuzz target's vault is borrowed, the rest is its own"
)]
mod clear_vault;

const RECORDS: usize = 1000;

fn main() {
    divan::main();
}

/// Encodes 1000 records and copies them into the queues of so many peers.
#[divan::bench(args = [1, 3, 15])]
fn offer(bencher: Bencher<'_, '_>, peers: u16) {
    bencher
        .counter(ItemsCount::new(RECORDS))
        .with_inputs(|| Hub::new(peers))
        .bench_refs(|hub| hub.offer());
}

/// Packs 1000 records into datagrams and hands them to the socket, for each of so many peers.
#[divan::bench(args = [1, 3, 15])]
fn poll(bencher: Bencher<'_, '_>, peers: u16) {
    bencher
        .counter(ItemsCount::new(RECORDS))
        .with_inputs(|| {
            let mut hub = Hub::new(peers);
            hub.offer();
            hub
        })
        .bench_refs(|hub| hub.poll(&mut |bytes| _ = black_box(bytes)));
}

/// Receives 1000 records in their datagrams, and hands them to a sink that only looks.
#[divan::bench]
fn receive(bencher: Bencher<'_, '_>) {
    bencher
        .counter(ItemsCount::new(RECORDS))
        .with_inputs(|| {
            let mut hub = Hub::new(1);
            hub.offer();
            let mut datagrams = Vec::new();
            hub.poll(&mut |bytes| datagrams.push(bytes.to_vec()));
            (hub, datagrams)
        })
        .bench_refs(|(hub, datagrams)| {
            let node = &mut hub.nodes[0];
            for datagram in datagrams {
                node.receive(address(0), datagram, SECOND * 6, &mut TestSink);
            }
            assert!(node.total().received_records >= RECORDS as u64);
        });
}

/// A node and its peers, joined.
struct Hub {
    node: Replica<Clear>,
    nodes: Vec<Replica<Clear>>,
}

impl Hub {
    fn new(peers: u16) -> Self {
        let limits = ReplicaLimits::default();
        let start = |number: u16| {
            let boot = Boot(number.into());
            Replica::new(NodeId(number), boot, limits, Clear::new(number))
        };
        let mut hub = Self {
            node: start(0),
            nodes: (1..=peers).map(start).collect(),
        };
        let list: Vec<_> = (1..=peers).map(address).collect();
        hub.node.set_peers(&list);
        for turn in 1..4 {
            hub.exchange(SECOND * turn);
        }
        assert_eq!(hub.node.live(), peers.into());
        hub
    }

    fn exchange(&mut self, now: Duration) {
        let mut out = Vec::new();
        self.node.poll(now, &mut TestSink, &mut |to, bytes| {
            out.push((to, bytes.to_vec()));
            true
        });
        for (to, mut bytes) in out {
            let number = to.port() - PORT;
            let peer = &mut self.nodes[usize::from(number) - 1];
            peer.receive(address(0), &mut bytes, now, &mut TestSink);
            let mut back = Vec::new();
            peer.poll(now, &mut TestSink, &mut |_, bytes| {
                back.push(bytes.to_vec());
                true
            });
            for mut bytes in back {
                self.node.receive(to, &mut bytes, now, &mut TestSink);
            }
        }
    }

    fn offer(&mut self) {
        for serial in 0..RECORDS as u64 {
            let mut id = [0x5a; 32];
            id[..8].copy_from_slice(&serial.to_be_bytes());
            let record = PeerRecord::New(SessionRecord {
                policy: PolicyTag(1),
                id: &id,
                ttl: SECOND * 300,
                age: Duration::ZERO,
                origin: OriginId(serial),
                state: &[0x5a; 78],
            });
            self.node.offer(black_box(&record));
        }
    }

    /// Until nothing waits.
    fn poll(&mut self, sent: &mut impl FnMut(&[u8])) {
        let now = SECOND * 6;
        while self.node.next_deadline().is_some_and(|due| due <= now) {
            self.node.poll(now, &mut TestSink, &mut |_, bytes| {
                sent(bytes);
                true
            });
        }
    }
}

fn address(number: u16) -> std::net::SocketAddr {
    ([192, 0, 2, 1], PORT + number).into()
}

/// Looks at what comes, and holds nothing.
struct TestSink;

impl Sink for TestSink {
    fn take(&mut self, _: PeerName, record: PeerRecord<'_>) -> SinkOutcome {
        black_box(record);
        SinkOutcome::Taken
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

const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 7000;
