//! Tests of files that the kernel sends: whole, in order and with their ends, without TLS and with
//! kernel TLS.
//!
//! The real file system reports which bytes are in memory. If it cannot, threads read everything.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use crate::common::{Client, pattern};
use crate::kernel::NEW;
use crate::script::kernel::Refused;
use crate::script::link::{End, Watch};
use crate::script::stage::Stage;
use crate::serving::{Answer, Site};
use becket_proto::close_reason::CloseReason;
use becket_proxy::metrics::KernelTlsRefusal;
use becket_proxy::socket::StreamSocket;
use becket_sys::kernel_tls::{Direction, Support};
use proptest::prelude::*;
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

/// A folder with one large file; its last listener is for bulk data.
fn site() -> Site {
    let site = Site::with(
        "",
        "[[listener]]\nname = 'bulk'\nbind = ['127.0.0.1:444']\nbackend = 'site'\ncertificates = ['a.pem']\n\
         kernel-tls = 'bulk'\n[limits]\nkernel-tls-after = 200000\n",
    );
    site.put("large", &pattern(0, LEN));
    site
}

/// Connects a TLS client with keys; the listener's side has a kernel.
fn secure(
    site: &Site,
    version: &'static SupportedProtocolVersion,
    (support, refuses): (Support, Option<Refused>),
    capacity: usize,
) -> (Stage, Client) {
    let mut stage = site.house.stage_of(capacity);
    let config = Arc::new(site.house.client(version));
    let listener = site.house.listener(3);
    let mut client = Client::enter_before(&mut stage, listener, &config, "a.test", []);
    client.end.watch_peer().give_kernel(support, refuses);
    client.talk(&mut stage);
    assert!(!client.tls.is_handshaking(), "{:?}", stage.closed());
    (stage, client)
}

fn ask(range: &Range<usize>, more: &str) -> String {
    let (first, last) = (range.start, range.end - 1);
    format!("GET /large HTTP/1.1\r\nHost: a.test\r\nRange: bytes={first}-{last}\r\n{more}\r\n")
}

/// Returns the body of the first answer after it has arrived.
fn body(received: &[u8], len: usize) -> Option<&[u8]> {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    received.get(end..end + len)
}

/// Returns the bytes after a correct answer.
#[track_caller]
fn behind<'a>(received: &'a [u8], range: &Range<usize>) -> &'a [u8] {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n");
    let (got, rest) = received[end.expect("a head") + 4..].split_at(range.len());
    assert!(got == pattern(range.start, range.len()), "bytes differ");
    rest
}

/// Exchanges data until this range of the file has arrived.
fn await_body(stage: &mut Stage, client: &mut Client, range: &Range<usize>) {
    while body(&client.received, range.len()).is_none() {
        assert_eq!(client.talk(stage), None);
        assert!(!client.end.watch_peer().is_kept_waiting());
        std::thread::yield_now();
    }
    let got = body(&client.received, range.len());
    assert!(
        got == Some(&pattern(range.start, range.len())[..]),
        "bytes differ"
    );
}

/// Asserts that the kernel has sent files, if the file system can report which bytes are in memory.
#[track_caller]
fn was_sent(stage: &Stage) {
    let counters = &stage.counters;
    let (sent, waits) = (counters.sendfile_bytes.value(), counters.file_waits.value());
    assert!(sent > 0 || waits > 0, "all was read");
}

/// Downloads a part of the file to a client without TLS, until the connection closes.
fn download(site: &Site, capacity: usize, prepare: impl Fn(&Watch)) -> Stage {
    let mut stage = site.house.stage_of(capacity);
    let mut end = stage.admit(site.house.listener(1), []);
    prepare(&end.watch_peer());
    stage.settle();
    let range = 1000..LEN - 3;
    write(&mut end, &ask(&range, "Connection: close\r\n"));
    let mut got = Vec::new();
    while !end.watch().is_ended() {
        assert!(stage.settle(), "the connection does not come to rest");
        assert!(!end.watch_peer().is_kept_waiting());
        got.extend(end.receive_all());
        std::thread::yield_now();
    }
    got.extend(end.receive_all());
    let answer = Answer::of(&got);
    assert!(
        answer.body == pattern(range.start, range.len()),
        "bytes differ"
    );
    drop(end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::Finished));
    let record = stage.record().unwrap();
    assert_eq!(record.client_traffic.sent, got.len() as u64);
    assert_eq!(stage.counters.client_bytes_out.value(), got.len() as u64);
    stage
}

fn write(end: &mut End, text: &str) {
    end.write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_turn_sends_at_most_its_budget_of_a_file() {
    let site = site();
    let mut stage = site.house.stage_of(1 << 20);
    stage.limits.bytes_per_turn = 64 * 1024;
    let mut end = stage.admit(site.house.listener(1), []);
    stage.settle();
    write(&mut end, &ask(&(0..LEN), "Connection: close\r\n"));
    let mut got = 0;
    while !end.watch().is_ended() {
        stage.turn();
        let moved = end.receive_all().len();
        assert!(moved < 70 * 1024, "{moved}");
        got += moved;
        std::thread::yield_now();
    }
    assert!(got > LEN);
    was_sent(&stage);
}

#[test]
fn sendfile_is_used_without_tls_even_for_slow_clients() {
    let site = site();
    for capacity in [700, 5000, 1 << 20] {
        was_sent(&download(&site, capacity, |_| ()));
    }
}

#[test]
fn a_file_is_read_if_sendfile_is_refused() {
    let stage = download(&site(), 50_000, Watch::refuse_to_splice);
    assert_eq!(stage.counters.sendfile_bytes.value(), 0);
}

#[test]
fn a_short_file_is_read_instead_of_sent_by_the_kernel() {
    let site = site();
    site.put("large", &pattern(0, 60_000));
    let (stage, mut end) = site.plain(1, ask(&(0..60_000), "").as_bytes());
    assert!(Answer::of(&end.receive_all()).body == pattern(0, 60_000));
    assert_eq!(stage.counters.sendfile_bytes.value(), 0);
}

#[test]
fn requests_continue_after_a_large_file_starts_kernel_tls() {
    for version in [&TLS12, &TLS13] {
        let site = site();
        let (mut stage, mut client) = secure(&site, version, (NEW, None), 40_000);
        for (range, in_kernel) in [
            (0..70_000, false),
            (5..LEN, true),
            (7..9, true),
            (LEN - 90_000..LEN, true),
        ] {
            client.received.clear();
            client.say(ask(&range, "").as_bytes());
            await_body(&mut stage, &mut client, &range);
            assert_eq!(client.end.watch_peer().is_in_kernel(), in_kernel);
        }
        was_sent(&stage);
        assert_eq!(stage.counters.kernel_tls_legs.value(), 1);
        // Two requests at once, of which the second is the last.
        client.received.clear();
        let (first, second) = (3..100_000, 9..200_000);
        client.say(ask(&first, "").as_bytes());
        client.say(ask(&second, "Connection: close\r\n").as_bytes());
        while !client.closed {
            client.talk(&mut stage);
        }
        let mut rest = &client.received[..];
        for range in [first, second] {
            rest = behind(rest, &range);
        }
        assert!(rest.is_empty());
        drop(client.end);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::Finished));
    }
}

#[test]
fn a_client_may_update_its_keys_while_a_file_is_sent() {
    let site = site();
    let (mut stage, mut client) = secure(&site, &TLS13, (NEW, None), 40_000);
    for _ in 0..3 {
        client.received.clear();
        let range = 0..LEN;
        client.say(ask(&range, "").as_bytes());
        client.flush();
        stage.settle();
        client.tls.refresh_traffic_keys().unwrap();
        await_body(&mut stage, &mut client, &range);
    }
    assert!(client.end.watch_peer().is_in_kernel());
    // The client may close its side after a request, and still gets the answer.
    client.received.clear();
    client.say(ask(&(0..LEN), "").as_bytes());
    client.tls.send_close_notify();
    while !client.closed {
        client.talk(&mut stage);
    }
    assert!(body(&client.received, LEN) == Some(&pattern(0, LEN)[..]));
    client.end.finish();
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::Finished));
}

#[test]
fn a_refused_tls_layer_is_tolerated_and_a_refused_key_ends_the_connection() {
    let site = site();
    for (kernel, why) in [
        ((Support::default(), None), KernelTlsRefusal::Unsupported),
        ((NEW, Some(Refused::Layer)), KernelTlsRefusal::Layer),
    ] {
        let (mut stage, mut client) = secure(&site, &TLS13, kernel, 40_000);
        for _ in 0..2 {
            client.received.clear();
            client.say(ask(&(0..LEN), "").as_bytes());
            await_body(&mut stage, &mut client, &(0..LEN));
        }
        let refusals = &stage.counters.kernel_tls_refusals;
        assert_eq!(refusals[why as usize].value(), 1, "asked once");
        assert_eq!(stage.counters.sendfile_bytes.value(), 0);
    }
    let kernel = (NEW, Some(Refused::Key(Direction::Send)));
    let (mut stage, mut client) = secure(&site, &TLS13, kernel, 1 << 20);
    client.say(ask(&(0..LEN), "").as_bytes());
    client.talk(&mut stage);
    assert!(!client.closed && client.received.len() < LEN);
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::KernelTls));
}

#[test]
fn a_shrinking_file_truncates_the_answer_under_kernel_tls() {
    let site = site();
    let (mut stage, mut client) = secure(&site, &TLS13, (NEW, None), 40_000);
    client.say(ask(&(0..LEN), "").as_bytes());
    await_body(&mut stage, &mut client, &(0..LEN));
    assert!(client.end.watch_peer().is_in_kernel());
    client.received.clear();
    client.say(ask(&(0..LEN), "").as_bytes());
    client.flush();
    stage.settle();
    let file = File::options()
        .write(true)
        .open(site.root.path().join("large"));
    file.unwrap().set_len(1000).unwrap();
    while !client.end.watch().is_ended() {
        client.talk(&mut stage);
        std::thread::yield_now();
    }
    client.talk(&mut stage);
    assert!(!client.closed, "no close_notify");
    let got = Answer::of(&client.received).body;
    assert!(got.len() < LEN && got == pattern(0, got.len()));
    drop(client.end);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::FileCut));
}

#[test]
fn the_idle_timeout_restarts_while_the_client_reads_an_answer() {
    let site = site();
    let timeouts = site.house.config.file.timeouts.clone();
    let mut stage = site.house.stage_of(20_000);
    let mut end = stage.admit(site.house.listener(1), []);
    write(&mut end, &ask(&(0..LEN), ""));
    for _ in 0..10 {
        stage.settle();
        end.receive_all();
        stage.wait(timeouts.idle * 2 / 3);
    }
    stage.settle();
    assert_eq!(stage.closed(), None);
    stage.wait(timeouts.idle);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::IdleTimeout));
    assert!(end.watch().is_broken());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The answers are the requested bytes in order, for all requests, socket capacities and
    /// arrivals.
    #[test]
    fn answers_contain_the_requested_bytes(
        ranges in prop::collection::vec((0..LEN - 1, 1..LEN), 1..5),
        (capacity, bite) in (700..150_000_usize, 1..100_000_usize),
        (is_new, tls12, updates) in (any::<bool>(), any::<bool>(), any::<bool>()),
    ) {
        let site = site();
        let version = if tls12 { &TLS12 } else { &TLS13 };
        let support = if is_new { NEW } else { Support::default() };
        let (mut stage, mut client) = secure(&site, version, (support, None), capacity);
        client.bite = bite.max(capacity / 50);
        let ranges = ranges.iter().map(|(first, len)| *first..LEN.min(first + len));
        let ranges: Vec<_> = ranges.collect();
        for (at, range) in ranges.iter().enumerate() {
            let is_last = at + 1 == ranges.len();
            client.say(ask(range, if is_last { "Connection: close\r\n" } else { "" }).as_bytes());
            if updates && !tls12 {
                client.tls.refresh_traffic_keys().unwrap();
            }
            client.flush();
            stage.settle();
        }
        while !client.closed {
            client.talk(&mut stage);
            prop_assert!(!client.end.watch_peer().is_kept_waiting());
            prop_assert_eq!(&client.fault, &None);
            std::thread::yield_now();
        }
        let mut rest = &client.received[..];
        for range in ranges {
            rest = behind(rest, &range);
        }
        prop_assert!(rest.is_empty());
    }
}

/// Length of the file: several windows, but not a multiple of one.
const LEN: usize = 1_000_003;
