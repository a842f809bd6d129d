//! Tests of ends, truncation and resets while relaying.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::close_reason::CloseReason;
use becket_proxy::socket::StreamSocket;
use rustls::version::{TLS12, TLS13};

use crate::common::{Client, house, server_got, server_says};

#[test]
fn a_server_end_sends_close_notify_to_the_client() {
    for version in [&TLS12, &TLS13] {
        let (mut stage, mut client) = house("").relaying(version);
        client.say(b"question");
        client.talk(&mut stage);
        assert_eq!(server_got(&mut stage), b"question");
        server_says(&mut stage, b"answer");
        stage.net.dialled[0].far.finish();
        client.talk(&mut stage);
        assert_eq!(client.received, b"answer");
        assert!(client.closed);
        client.tls.send_close_notify();
        assert_eq!(client.talk(&mut stage), Some(CloseReason::Finished));
        assert!(stage.net.dialled[0].far.watch().is_ended());
    }
}

#[test]
fn a_half_closed_client_receives_its_answer() {
    for version in [&TLS12, &TLS13] {
        let (mut stage, mut client) = house("").relaying(version);
        client.say(b"question");
        client.tls.send_close_notify();
        assert_eq!(client.talk(&mut stage), None);
        assert_eq!(server_got(&mut stage), b"question");
        assert!(stage.net.dialled[0].far.watch().is_ended());
        server_says(&mut stage, b"answer");
        client.talk(&mut stage);
        assert_eq!(client.received, b"answer");
        assert!(!client.closed);
        stage.net.dialled[0].far.finish();
        assert_eq!(client.talk(&mut stage), Some(CloseReason::Finished));
        assert!(client.closed);
    }
}

#[test]
fn a_client_truncated_without_close_notify_is_counted_and_served() {
    let (mut stage, mut client) = house("").relaying(&TLS13);
    client.say(b"question");
    client.flush();
    client.end.finish();
    client.talk(&mut stage);
    assert_eq!(server_got(&mut stage), b"question");
    server_says(&mut stage, b"answer");
    stage.net.dialled[0].far.finish();
    let reason = client.talk(&mut stage);
    assert_eq!(reason, Some(CloseReason::ClientTruncated));
    assert_eq!(client.received, b"answer");
    assert!(client.closed);
    assert_eq!(stage.counters.truncated.value(), 1);
}

#[test]
fn a_server_reset_delivers_received_data_without_close_notify() {
    for version in [&TLS12, &TLS13] {
        let (mut stage, mut client) = house("").relaying(version);
        server_says(&mut stage, b"half of the ans");
        stage.net.dialled[0].far.reset();
        client.talk(&mut stage);
        assert_eq!(client.received, b"half of the ans");
        assert!(!client.closed);
        assert!(
            client.end.watch().is_ended(),
            "FIN, so that it does not wait"
        );
        drop(client);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::ServerReset));
    }
}

#[test]
fn a_client_reset_resets_the_server() {
    let (mut stage, mut client) = house("").relaying(&TLS13);
    client.end.reset();
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ClientReset));
    assert!(stage.net.dialled[0].far.watch().is_broken());
}

#[test]
fn a_broken_record_causes_an_alert_and_a_server_reset() {
    let (mut stage, mut client) = house("").relaying(&TLS13);
    client.end.send(&[23, 3, 3, 0, 20]).unwrap();
    client.end.send(&[0; 20]).unwrap();
    client.talk(&mut stage);
    let alert = rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac);
    assert_eq!(client.fault, Some(alert));
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ClientTlsError));
    assert!(stage.net.dialled[0].far.watch().is_broken());
}

#[test]
fn an_end_signalled_together_with_data_is_detected_and_relayed_with_it() {
    let (mut stage, mut client) = house("").relaying(&TLS13);
    let near = stage.net.dialled[0].near.clone();
    near.hold();
    server_says(&mut stage, b"all");
    stage.net.dialled[0].far.finish();
    near.deliver(usize::MAX);
    client.talk(&mut stage);
    assert_eq!(client.received, b"all");
    assert!(client.closed);
    assert!(client.end.watch_peer().has_fin_with_data());
}

#[test]
fn an_early_answer_reaches_a_client_that_is_still_sending() {
    let (mut stage, mut client) = house("").relaying(&TLS13);
    server_says(&mut stage, b"413 too large");
    stage.net.dialled[0].far.finish();
    client.talk(&mut stage);
    assert_eq!(client.received, b"413 too large");
    assert!(client.closed);
    assert_eq!(stage.closed(), None, "the client has not ended");
    client.say(&[7; 5000]);
    client.talk(&mut stage);
    assert_eq!(server_got(&mut stage).len(), 5000);
}

#[test]
fn idle_and_half_closed_connections_time_out() {
    let house = house("");
    let (mut stage, mut client) = house.relaying(&TLS13);
    stage.wait(house.config.file.timeouts.idle);
    client.talk(&mut stage);
    assert!(
        !client.closed,
        "no clean end for what may be half an answer"
    );
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::IdleTimeout));

    let (mut stage, mut client) = house.relaying(&TLS13);
    client.tls.send_close_notify();
    client.talk(&mut stage);
    stage.wait(house.config.file.timeouts.half_closed);
    client.talk(&mut stage);
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HalfClosedTimeout));
}

#[test]
fn a_drain_closes_idle_connections_and_none_that_await_an_answer() {
    let house = house("");
    let short = house.config.file.timeouts.drain_idle;
    let moment = Duration::from_millis(1);
    // Neither side has sent anything.
    let (mut stage, mut client) = house.relaying(&TLS13);
    stage.wait(short);
    assert_eq!(client.talk(&mut stage), None, "nothing drains");
    stage.drain();
    stage.wait(short - moment);
    assert_eq!(client.talk(&mut stage), None);
    stage.wait(moment);
    client.talk(&mut stage);
    assert!(client.end.watch().is_ended() && !client.closed);
    client.say(b"late");
    client.talk(&mut stage);
    assert_eq!(
        server_got(&mut stage),
        b"",
        "nobody has it, who could answer"
    );
    drop(client);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::Drained));

    // An answer is due, in the drain and before it; it is given, and a second question is asked.
    for drains_first in [false, true] {
        let (mut stage, mut client) = house.relaying(&TLS13);
        if drains_first {
            stage.drain();
        }
        client.say(b"question");
        client.talk(&mut stage);
        stage.drain();
        stage.wait(house.config.file.timeouts.idle - moment);
        assert_eq!(client.talk(&mut stage), None);
        server_says(&mut stage, b"answer");
        client.talk(&mut stage);
        assert_eq!(client.received, b"answer");
        stage.wait(short - moment);
        client.say(b"question");
        assert_eq!(client.talk(&mut stage), None);
        stage.wait(short);
        assert_eq!(client.talk(&mut stage), None);
        // After one side's end, the usual timeout applies.
        client.tls.send_close_notify();
        server_says(&mut stage, b"answer");
        client.talk(&mut stage);
        stage.wait(short);
        assert_eq!(client.talk(&mut stage), None);
        stage.net.dialled[0].far.finish();
        assert_eq!(client.talk(&mut stage), Some(CloseReason::Finished));
    }

    // Bytes of the answer wait for the client.
    let mut stage = house.stage_of(100);
    let config = Arc::new(house.client(&TLS13));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.say(b"question");
    client.talk(&mut stage);
    server_says(&mut stage, &[7; 100]);
    stage.settle();
    stage.drain();
    stage.wait(short);
    stage.settle();
    assert_eq!(stage.closed(), None);
    client.talk(&mut stage);
    assert_eq!(client.received.len(), 100);
}

#[test]
fn a_client_that_does_not_close_is_closed_at_the_linger_timeout() {
    let house = house("");
    let (mut stage, mut client) = house.relaying(&TLS13);
    stage.net.dialled[0].near.fail(ErrorKind::ConnectionReset);
    assert_eq!(client.talk(&mut stage), None);
    stage.wait(house.config.file.timeouts.linger);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::ServerReset));
}
