//! Measures the heap that becket holds for an idle connection.
//!
//! This is a separate test binary, because it counts every allocation of its process. Streams,
//! stage and client are measured separately; the kernel's sockets are not included.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "connection/common.rs"]
#[expect(dead_code, reason = "shared with the other tests of connections")]
mod common;
#[expect(dead_code, reason = "shared with the other tests of connections")]
mod script;

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use crate::script::net::ScriptedNet;
use becket_proxy::connection::Connection;
use becket_proxy::worker::net::RealNet;
use cap::Cap;
use rustls::version::{TLS12, TLS13};

use crate::common::{Client, House, house, server_got, server_says};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Returns the heap of one connection that has relayed a question and an answer: at once, and after
/// `rest`. Both figures are the memory that its close frees.
fn idle(
    house: &House,
    version: &'static rustls::SupportedProtocolVersion,
    rest: Duration,
) -> (usize, usize) {
    let mut stage = house.stage();
    let config = Arc::new(house.client(version));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.say(b"question");
    client.talk(&mut stage);
    server_got(&mut stage);
    server_says(&mut stage, b"answer");
    client.talk(&mut stage);
    assert_eq!(client.received, b"answer");
    let used = HEAP.allocated();
    stage.wait(rest);
    let before = HEAP.allocated();
    client.say(b"another");
    client.talk(&mut stage);
    assert_eq!(server_got(&mut stage), b"another");
    server_says(&mut stage, b"and its answer");
    client.talk(&mut stage);
    assert_eq!(client.received, b"answerand its answer");
    client.end.reset();
    while stage.turn() {}
    stage.net.dialled[0].far.reset();
    assert!(stage.closed().is_some());
    let closed = HEAP.allocated();
    (used - closed, before - closed)
}

#[test]
fn an_idle_connection_uses_little_memory() {
    let house = house("");
    let on_the_worker = size_of::<Connection<RealNet>>();
    let scripted = size_of::<Connection<ScriptedNet>>();
    println!("size of a connection: {on_the_worker} bytes, {scripted} on scripted sockets");
    assert!(
        on_the_worker <= MOST_IN_THE_SLAB,
        "{on_the_worker} bytes in the slab"
    );
    for version in [&TLS12, &TLS13] {
        idle(&house, version, REST);
        let (held, rested) = idle(&house, version, REST);
        let version = version.version;
        println!("heap while idle, {version:?}: {held} bytes, later {rested}");
        assert!(held <= MOST_HEAP, "{version:?}: {held} bytes of heap");
        assert!(rested <= MOST_LATER, "{version:?}: {rested} bytes of heap");
    }
}

/// Maximum size in the worker's slab of a connection, in any phase.
const MOST_IN_THE_SLAB: usize = 1024;
/// 4 KiB per idle connection, minus the slab's part and the memory of the kernel and of timers.
const MOST_HEAP: usize = 3 * 1024;
/// Maximum heap after [`REST`], without the state of rustls.
const MOST_LATER: usize = 1280;
const REST: Duration = Duration::from_secs(5);
