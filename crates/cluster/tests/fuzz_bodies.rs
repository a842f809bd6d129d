//! Runs the bodies of the fuzz targets without a fuzzer: on real inputs, mutated by a seeded generator.
//!
//! A failure prints the input; `cargo +nightly fuzz run` searches deeper.

#[path = "../../../fuzz/src/mutations.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod mutations;
#[path = "../../../fuzz/src/replica.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod replica;

use std::time::Duration;

use becket_cluster::replica::{PeerRecord, PeerStick, ServerTag, SessionRecord};
use becket_proto::session::PolicyTag;
use becket_proto::ticket::OriginId;
use mutations::run_on_mutations;

#[test]
fn datagrams_of_other_nodes_survive_mutation() {
    let id = [7; 32];
    let session = SessionRecord {
        policy: PolicyTag(1),
        id: &id,
        ttl: Duration::from_secs(300),
        age: Duration::from_secs(1),
        origin: OriginId(2),
        state: &[9; 80],
    };
    let stick = PeerStick {
        origin: OriginId(2),
        server: ServerTag(3),
        life: Duration::from_secs(60),
    };
    let records = [
        PeerRecord::New(session),
        PeerRecord::Sync(session),
        PeerRecord::Stick(stick),
        PeerRecord::Stuck(stick),
        PeerRecord::Del {
            policy: PolicyTag(1),
            id: &id,
        },
    ];
    let mut all = Vec::new();
    for record in &records {
        let mut text = vec![0; 200];
        let len = record.encode(&mut text).unwrap();
        all.extend(&text[..len]);
    }
    // Messages that maintain a pair, an unknown kind, a goodbye, and a HELLO in clear.
    let frames = b"\x05\x00\x10aaaaaaaaaaaaaaaa\x06\x00\x04\0\0\0\x01\x07\x00\x04\xff\xff\xff\xff\x08\x00\x04\0\0\0\x01\x63\0\x01a\x0a\0\0";
    let mut hello =
        b"BKT3\0\0\0\0\0\0\0\x01\0\0\0\0nnnnnnnnnnnn\x01\0\x03bbbbbbbb\0\0\0\x05".to_vec();
    hello.extend([0x55; 16 + 16 + 32 + 16]);
    let datagrams = [&all[..], frames, &hello];
    let framed = datagrams.map(|datagram| {
        let len = u16::try_from(datagram.len()).unwrap();
        [&len.to_be_bytes()[..], datagram].concat()
    });
    let mut inputs = framed.to_vec();
    inputs.push(framed.concat());
    inputs.push(all);
    run_on_mutations(&inputs, replica::run);
}
