//! Tests arbitrary orders of events: no byte is lost, doubled or reordered, and ends are passed on.

use std::io::Write;
use std::sync::Arc;

use crate::script::link::Watch;
use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_proto::close_reason::CloseReason;
use becket_proxy::socket::StreamSocket;
use proptest::prelude::*;
use rustls::version::{TLS12, TLS13};

use crate::common::{Client, House, house, pattern};

/// Next event.
#[derive(Clone, Debug)]
enum Event {
    ClientSays(usize),
    ServerSays(usize),
    /// Sends this many bytes in a record each, after a change of keys.
    ClientTrickles(usize),
    /// This many bytes arrive at the connection's socket towards the client or the server.
    ClientArrives(usize),
    ServerArrives(usize),
    ClientReads(usize),
    ServerReads(usize),
    Connected,
    Turn,
    ClientEnds,
    ServerEnds,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![1..40usize, 40..2000usize, 2000..70_000usize]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => size().prop_map(Event::ClientSays),
        3 => size().prop_map(Event::ServerSays),
        1 => (1..300usize).prop_map(Event::ClientTrickles),
        4 => size().prop_map(Event::ClientArrives),
        4 => size().prop_map(Event::ServerArrives),
        4 => size().prop_map(Event::ClientReads),
        4 => size().prop_map(Event::ServerReads),
        1 => Just(Event::Connected),
        8 => Just(Event::Turn),
        1 => Just(Event::ClientEnds),
        1 => Just(Event::ServerEnds),
    ]
}

struct World {
    stage: Stage,
    client: Client,
    client_near: Watch,
    client_said: usize,
    client_ended: bool,
    client_closed: bool,
    server_said: usize,
    server_ended: bool,
    /// Bytes sent but not yet accepted by the stream.
    server_waiting: Vec<u8>,
    server_got: Vec<u8>,
}

impl World {
    fn new(house: &House, tls13: bool, capacity: usize, budget: usize) -> Self {
        let mut stage = house.stage_of(capacity);
        stage.limits.bytes_per_turn = budget;
        let version = if tls13 { &TLS13 } else { &TLS12 };
        let config = Arc::new(house.client(version));
        let plans = [Plan::Later];
        let mut client =
            Client::enter_before(&mut stage, house.listener(0), &config, "a.test", plans);
        client.tls.set_buffer_limit(None);
        let client_near = client.end.watch_peer();
        client_near.hold();
        Self {
            stage,
            client,
            client_near,
            client_said: 0,
            client_ended: false,
            client_closed: false,
            server_said: 0,
            server_ended: false,
            server_waiting: Vec::new(),
            server_got: Vec::new(),
        }
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::ClientSays(n) if !self.client_ended => {
                self.client.say(&pattern(self.client_said, n));
                self.client_said += n;
            }
            Event::ServerSays(n) if !self.server_ended => {
                self.server_waiting.extend(pattern(self.server_said, n));
                self.server_said += n;
            }
            Event::ClientTrickles(n) if !self.client_ended => {
                // Only TLS 1.3 has a change of keys.
                drop(self.client.tls.refresh_traffic_keys());
                for at in self.client_said..self.client_said + n {
                    self.client.say(&pattern(at, 1));
                }
                self.client_said += n;
            }
            Event::ClientSays(_) | Event::ServerSays(_) | Event::ClientTrickles(_) => {}
            Event::ClientArrives(n) => self.client_near.deliver(n),
            Event::ServerArrives(n) => {
                if let Some(near) = self.stage.net.near() {
                    near.hold();
                    near.deliver(n);
                }
            }
            Event::ClientReads(n) => {
                self.client.bite = n;
                self.client.bite();
            }
            Event::ServerReads(n) => {
                self.server_reads(n);
            }
            Event::Connected => {
                if let Some(near) = self.stage.net.near() {
                    near.establish();
                }
            }
            Event::Turn => drop(self.stage.turn()),
            Event::ClientEnds => self.client_ended = true,
            Event::ServerEnds => self.server_ended = true,
        }
        self.client_sends();
        self.server_sends();
    }

    /// Sends a close_notify only after the handshake, because it would end the handshake.
    fn client_sends(&mut self) -> bool {
        if self.client_ended && !self.client_closed && !self.client.tls.is_handshaking() {
            self.client_closed = true;
            self.client.tls.send_close_notify();
        }
        self.client.flush()
    }

    fn server_reads(&mut self, n: usize) -> bool {
        let mut buffer = vec![0; n];
        let Some(server) = self.stage.net.dialled.last_mut() else {
            return false;
        };
        let n = server.far.receive(&mut buffer).unwrap_or(0);
        self.server_got.extend(&buffer[..n]);
        n > 0
    }

    fn server_sends(&mut self) -> bool {
        let Some(server) = self.stage.net.dialled.last_mut() else {
            return false;
        };
        let n = server.far.write(&self.server_waiting).unwrap_or(0);
        self.server_waiting.drain(..n);
        if self.server_ended && self.server_waiting.is_empty() {
            server.far.finish();
        }
        n > 0
    }

    /// Runs until nothing more can happen.
    fn run_out(&mut self) {
        loop {
            let mut moved = self.client_sends() | self.server_sends();
            self.client_near.deliver(usize::MAX);
            if let Some(near) = self.stage.net.near() {
                near.establish();
                near.deliver(usize::MAX);
            }
            for turn in 0.. {
                assert!(turn < MOST_TURNS, "the connection does not come to rest");
                if !self.stage.turn() {
                    break;
                }
                moved = true;
            }
            self.client.bite = usize::MAX;
            while self.client.bite() {
                moved = true;
            }
            while self.server_reads(1 << 16) {
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }
}

/// More than any payload takes, even one byte at a time.
const MOST_TURNS: u32 = 10_000_000;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn bytes_arrive_once_and_in_order_before_the_end(
        tls13: bool,
        capacity in prop_oneof![1..300usize, 300..5000usize, 5000..200_000usize],
        budget in prop_oneof![1..100usize, 100..100_000usize],
        events in prop::collection::vec(event(), 0..80),
    ) {
        thread_local!(static HOUSE: House = house(""));
        HOUSE.with(|house| {
            let mut world = World::new(house, tls13, capacity, budget);
            for event in &events {
                world.happen(event);
            }
            world.run_out();
            assert!(!world.client.tls.is_handshaking(), "{:?}", world.stage.closed());
            assert_eq!(world.server_got, pattern(0, world.client_said));
            assert_eq!(world.client.received, pattern(0, world.server_said));
            let both = world.client_ended && world.server_ended;
            assert_eq!(world.stage.closed(), both.then_some(CloseReason::Finished));
            let server = world.stage.net.dialled[0].far.watch();
            assert_eq!(server.is_ended(), world.client_ended);
            assert_eq!(world.client.closed, world.server_ended);

            world.happen(&Event::ClientEnds);
            world.happen(&Event::ServerEnds);
            world.run_out();
            assert_eq!(world.stage.closed(), Some(CloseReason::Finished));
            assert!(world.client.closed && server.is_ended());
            assert_eq!(world.client.fault, None);
        });
    }
}
