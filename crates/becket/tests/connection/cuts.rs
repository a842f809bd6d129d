//! Tests connections that are cut off, in any order of events: no side takes a part for the whole,
//! and bytes are counted equally for the connection and the worker. With copies and with splices.

use std::io::Write;
use std::time::Duration;

use crate::script::link::{End, Watch};
use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use becket_proxy::socket::StreamSocket;
use proptest::prelude::*;
use rustls::version::{TLS12, TLS13};

use crate::common::{House, house, pattern, server_got, server_says};

/// A listener and a server without TLS.
pub(crate) fn plain() -> House {
    House::new(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:80']\nbackend = 'app'\ntls = false\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n",
    )
}

/// Next event.
#[derive(Clone, Debug)]
enum Event {
    Says(Side, usize),
    Arrives(Side, usize),
    Reads(Side, usize),
    Ends(Side),
    Resets(Side),
    Connected,
    Turn,
    Wait(u64),
    Unspliceable(Side),
    Stop,
}

/// Owner of an end of the streams.
#[derive(Clone, Copy, Debug)]
enum Side {
    Client,
    Server,
}

const BOTH: [Side; 2] = [Side::Client, Side::Server];

fn event() -> impl Strategy<Value = Event> {
    let size = || prop_oneof![1..40usize, 40..5000usize];
    let side = || prop_oneof![Just(Side::Client), Just(Side::Server)];
    prop_oneof![
        6 => (side(), size()).prop_map(|(side, n)| Event::Says(side, n)),
        6 => (side(), size()).prop_map(|(side, n)| Event::Arrives(side, n)),
        6 => (side(), size()).prop_map(|(side, n)| Event::Reads(side, n)),
        2 => side().prop_map(Event::Ends),
        1 => side().prop_map(Event::Resets),
        2 => Just(Event::Connected),
        12 => Just(Event::Turn),
        1 => (0..20u64).prop_map(|log| Event::Wait(1 << log)),
        1 => side().prop_map(Event::Unspliceable),
        1 => Just(Event::Stop),
    ]
}

struct World {
    stage: Stage,
    client: End,
    client_near: Watch,
    /// Bytes that each side's stream has accepted, and whether its end followed.
    said: [usize; 2],
    ended: [bool; 2],
    got: [usize; 2],
}

impl World {
    /// At most `pipes` pipes are lent; without pipes, bytes are copied.
    fn new(house: &House, capacity: usize, budget: usize, pipes: usize) -> Self {
        let mut stage = house.stage_of(capacity);
        stage.limits.bytes_per_turn = budget;
        stage.splice(pipes);
        let client = stage.admit(house.listener(0), [Plan::Later]);
        let client_near = client.watch_peer();
        client_near.hold();
        Self {
            stage,
            client,
            client_near,
            said: [0; 2],
            ended: [false; 2],
            got: [0; 2],
        }
    }

    fn end(&mut self, side: Side) -> Option<&mut End> {
        match side {
            Side::Client => Some(&mut self.client),
            Side::Server => self.stage.net.dialled.first_mut().map(|one| &mut one.far),
        }
    }

    /// Returns the connection's socket towards a side; data sent to it is held.
    fn near(&self, side: Side) -> Option<Watch> {
        let near = match side {
            Side::Client => Some(self.client_near.clone()),
            Side::Server => self.stage.net.near().cloned(),
        };
        near.inspect(Watch::hold)
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Says(side, n) if !self.ended[side as usize] => {
                let bytes = pattern(self.said[side as usize], n);
                let said = self.end(side).map(|end| end.write(&bytes));
                self.said[side as usize] += said.and_then(Result::ok).unwrap_or(0);
            }
            Event::Says(..) => {}
            Event::Arrives(side, n) => drop(self.near(side).map(|near| near.deliver(n))),
            Event::Reads(side, n) => drop(self.read(side, n)),
            Event::Ends(side) => {
                self.ended[side as usize] |= self.end(side).map(End::finish).is_some();
            }
            Event::Resets(side) => drop(self.end(side).map(End::reset)),
            Event::Connected => drop(self.near(Side::Server).map(|near| near.establish())),
            Event::Turn => drop(self.stage.turn()),
            Event::Wait(ms) => self.stage.wait(Duration::from_millis(ms)),
            Event::Unspliceable(side) => drop(self.near(side).map(|near| near.refuse_to_splice())),
            Event::Stop => self.stage.stop(),
        }
    }

    fn read(&mut self, side: Side, n: usize) -> bool {
        let mut buffer = vec![0; n];
        let end = self.end(side);
        let n = end.map_or(0, |end| end.receive(&mut buffer).unwrap_or(0));
        assert_eq!(buffer[..n], pattern(self.got[side as usize], n));
        self.got[side as usize] += n;
        n > 0
    }

    /// Delivers everything, and leaves the connection to its timeouts.
    fn run_out(&mut self) {
        while self.stage.closed().is_none() {
            for side in BOTH {
                if let Some(near) = self.near(side) {
                    near.establish();
                    near.deliver(usize::MAX);
                }
            }
            let mut moved = self.stage.turn();
            for side in BOTH {
                while self.read(side, 1 << 16) {
                    moved = true;
                }
            }
            if !moved {
                self.stage.wait(self.stage.timeouts.idle);
            }
        }
        for side in BOTH {
            while self.read(side, 1 << 16) {}
        }
    }

    /// Asserts that a side that saw an end got all data of the other side, and that the other side
    /// had ended. A server that was connected in vain may have got nothing, but not a part.
    fn check_end(&mut self, side: Side, other: Side) {
        let (got, said) = (self.got[side as usize], self.said[other as usize]);
        let in_vain = got == 0 && matches!(side, Side::Server);
        if self.end(side).is_some_and(|end| end.watch().is_ended()) && !in_vain {
            assert!(self.ended[other as usize], "{side:?} was told of an end");
            assert_eq!(got, said, "{side:?} got a part");
        }
    }
}

/// Asserts that the line of the access log matches the worker's counters.
fn check_sums(stage: &Stage) {
    let (record, counters) = (stage.record().unwrap(), &stage.counters);
    let line = [
        record.client_traffic.received,
        record.client_traffic.sent,
        record.facts.server_traffic.received,
        record.facts.server_traffic.sent,
    ];
    let counted = [
        &counters.client_bytes_in,
        &counters.client_bytes_out,
        &counters.server_bytes_in,
        &counters.server_bytes_out,
    ];
    assert_eq!(line, counted.map(|counter| counter.value()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1024) })]

    #[test]
    fn plain_connections_forward_every_end_and_the_byte_counts_agree(
        capacity in prop_oneof![1..300usize, 300..20_000usize],
        budget in prop_oneof![1..100usize, 100..10_000usize],
        pipes in 0..3usize,
        events in prop::collection::vec(event(), 0..80),
    ) {
        thread_local!(static HOUSE: House = plain());
        HOUSE.with(|house| {
            let mut world = World::new(house, capacity, budget, pipes);
            world.happen(&Event::Turn);
            world.happen(&Event::Connected);
            for event in &events {
                world.happen(event);
            }
            world.run_out();
            world.check_end(Side::Client, Side::Server);
            world.check_end(Side::Server, Side::Client);
            check_sums(&world.stage);
            let counters = &world.stage.counters;
            assert_eq!(counters.pipes_lent.value(), counters.pipes_returned.value());
        });
    }
}

#[test]
fn a_reset_detected_by_a_send_is_not_treated_as_an_end() {
    let house = plain();
    let mut stage = house.stage_of(100);
    let mut client = stage.admit(house.listener(0), [Plan::Accept]);
    stage.settle();
    // The client reads nothing, so the server is not read either, and only a send detects the
    // reset.
    server_says(&mut stage, &[7; 100]);
    stage.settle();
    server_says(&mut stage, &[7; 100]);
    stage.settle();
    server_says(&mut stage, b"half an ans");
    stage.net.dialled[0].far.reset();
    client.write_all(b"upload").unwrap();
    stage.settle();
    assert_eq!(stage.closed(), None, "what came is still to be passed on");
    let mut received = 0;
    while let Ok(n @ 1..) = client.receive(&mut [0; 64]) {
        received += n;
        stage.settle();
    }
    assert_eq!(stage.closed(), Some(CloseReason::ServerReset));
    assert!(client.watch().is_broken());
    assert!(received >= 200);
}

#[test]
fn a_stop_resets_both_sides_of_an_open_connection() {
    let house = plain();
    let mut stage = house.stage();
    let mut client = stage.admit(house.listener(0), [Plan::Accept]);
    stage.settle();
    client.write_all(b"half an upl").unwrap();
    server_says(&mut stage, b"half an ans");
    stage.settle();
    assert_eq!(server_got(&mut stage), b"half an upl");
    stage.stop();
    assert_eq!(stage.closed(), Some(CloseReason::Stopped));
    assert!(client.watch().is_broken());
    assert!(stage.net.dialled[0].far.watch().is_broken());
    check_sums(&stage);
}

#[test]
fn a_client_that_received_the_end_of_stream_is_not_reset_by_a_stop() {
    let house = plain();
    let mut stage = house.stage();
    let mut client = stage.admit(house.listener(0), [Plan::Accept]);
    stage.settle();
    server_says(&mut stage, b"answer");
    stage.net.dialled[0].far.finish();
    stage.settle();
    stage.stop();
    assert_eq!(stage.closed(), Some(CloseReason::Stopped));
    assert_eq!(client.receive_all(), b"answer");
    assert!(client.watch().is_ended());
}

#[test]
fn a_client_that_sends_a_mebibyte_after_the_end_is_reset() {
    for version in [&TLS12, &TLS13] {
        let (mut stage, mut client) = house("").relaying(version);
        server_says(&mut stage, b"413 too large");
        stage.net.dialled[0].far.finish();
        client.talk(&mut stage);
        stage.net.dialled[0]
            .near
            .fail(std::io::ErrorKind::BrokenPipe);
        client.say(b"more");
        assert_eq!(client.talk(&mut stage), None, "lingers");
        assert_eq!(client.received, b"413 too large");
        let before = stage.counters.client_bytes_in.value();
        while stage.closed().is_none() && stage.counters.client_bytes_in.value() < 1 << 24 {
            client.say(&[7; 10_000]);
            client.talk(&mut stage);
        }
        assert_eq!(stage.closed(), Some(CloseReason::LingerLimit));
        assert!(client.end.watch().is_broken());
        let dropped = stage.counters.client_bytes_in.value() - before;
        assert!(
            (1 << 20..(1 << 20) + (1 << 17)).contains(&dropped),
            "{dropped}"
        );
        check_sums(&stage);
    }
}
