//! Tests of PostgreSQL clients before TLS: the backend by name, and unencrypted cancels.

use std::io::{ErrorKind, Read};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::{House, server_got};
use crate::script::link::End;
use crate::script::net::Plan;
use crate::script::stage::Stage;
use crate::starttls::{begin_tls_as, enter, house, say};
use becket_proto::close_reason::CloseReason;
use becket_proxy::backend::inbox::{BackendEvent, Inbox};

#[test]
fn postgresql_clients_are_routed_by_name_and_cancels_go_to_all_backends() {
    let backend = |name: &str, port: u16| {
        format!("[[backend]]\nname = '{name}'\n[[backend.server]]\naddress = '127.0.0.1:{port}'\n")
    };
    let house = House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:5432']\n\
         certificates = ['b.pem', 'a.pem']\nstarttls = 'postgresql'\n\
         backend = 'a'\n\
         [[listener.route]]\nnames = ['*.b.test']\nbackend = 'b'\n{}{}",
        backend("a", 81),
        backend("b", 82),
    ));
    let request = [0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f];
    for at_once in [false, true] {
        for (name, server) in [
            (Some("a.test"), Some("127.0.0.1:81")),
            (Some("x.b.test"), Some("127.0.0.1:82")),
            (Some("c.test"), None),
            (None, Some("127.0.0.1:81")),
        ] {
            let (mut stage, mut end, _) = enter(&house, b"");
            if !at_once {
                assert_eq!(say(&mut stage, &mut end, &request), "S");
            }
            assert!(stage.net.dialled.is_empty(), "no name is known yet");
            let mut client = begin_tls_as(&house, end, name, &[b"postgresql"]);
            client.say(b"startup");
            client.talk(&mut stage);
            let dialled = stage.net.dialled.first();
            let dialled = dialled.map(|dialled| dialled.address.to_string());
            assert_eq!(dialled.as_deref(), server, "{name:?}");
            if server.is_some() {
                assert_eq!(server_got(&mut stage), b"startup");
                continue;
            }
            drop(client);
            stage.settle();
            assert_eq!(stage.closed(), Some(CloseReason::UnknownName));
        }
    }

    let (mut stage, mut end, _) = enter(&house, b"");
    assert_eq!(say(&mut stage, &mut end, &CANCEL), "");
    let mut next = pin!(stage.cancels.next());
    let Poll::Ready(cancel) = next.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("no cancel");
    };
    let told = cancel
        .backends
        .iter()
        .map(|(backend, _)| &*backend.keys.name);
    assert_eq!(told.collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(*cancel.request, CANCEL);

    let (mut stage, _end, _) = enter(&house, b"");
    stage.wait(house.config.file.timeouts.hello);
    stage.settle();
    assert_eq!(stage.closed(), Some(CloseReason::HelloTimeout));
}

/// A CancelRequest with a number and a secret.
const CANCEL: [u8; 16] = [0, 0, 0, 16, 4, 0xd2, 0x16, 0x2e, 0, 0, 1, 2, 9, 8, 7, 6];

#[test]
fn a_cancel_connection_closes_after_delivery_or_a_timeout() {
    let house = house("postgresql", "");
    for is_told in [true, false] {
        let (mut stage, mut end, _) = enter(&house, b"");
        assert_eq!(say(&mut stage, &mut end, &CANCEL), "");
        let mut rest = [0];
        let waits = end.read(&mut rest).unwrap_err();
        assert_eq!(waits.kind(), ErrorKind::WouldBlock, "it is under way");
        assert!(stage.net.dialled.is_empty(), "and needs no server for that");
        if is_told {
            // Control drops the request after all servers have received it.
            drop(std::mem::take(&mut stage.cancels));
        } else {
            stage.wait(Duration::from_secs(10));
        }
        stage.settle();
        assert_eq!(end.read(&mut rest).unwrap(), 0, "that is all it hears");
        drop(end);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::Cancel));
        assert_eq!(stage.counters.handshakes_ended.value(), 1);
    }
}

#[test]
fn excess_cancels_are_rejected() {
    let house = house("postgresql", "");
    let cancels = Arc::default();
    let mut waiting = Vec::new();
    for number in 0..66 {
        let mut stage = house.stage();
        stage.cancels = Arc::clone(&cancels);
        let mut end = stage.admit(house.listener(0), [Plan::Accept]);
        stage.settle();
        assert_eq!(say(&mut stage, &mut end, &CANCEL), "");
        if number < 64 {
            waiting.push((stage, end));
            continue;
        }
        drop(end);
        stage.settle();
        assert_eq!(stage.closed(), Some(CloseReason::CancelLimit));
    }
}

#[test]
fn cancels_of_one_source_do_not_displace_those_of_another() {
    let house = House::new(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:5432']\nbackend = 'app'\n\
         certificates = ['a.pem']\nstarttls = 'postgresql'\naccept-proxy = 'v1'\n\
         trusted-networks = ['0.0.0.0/0', '::/0']\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n",
    );
    let cancels = Arc::default();
    let cancel = |from: &str| {
        let mut stage = house.stage();
        stage.cancels = Arc::clone(&cancels);
        let mut end = stage.admit(house.listener(0), [Plan::Accept]);
        let header = format!("PROXY TCP4 {from} 192.0.2.1 5000 5432\r\n");
        say(&mut stage, &mut end, header.as_bytes());
        assert_eq!(say(&mut stage, &mut end, &CANCEL), "");
        (stage, end)
    };
    let closed = |(mut stage, end): (Stage, End)| {
        // The connections share a mailbox, and the last one has read it.
        stage.inbox.deliver(BackendEvent::Look(0));
        stage.settle();
        drop(end);
        stage.settle();
        stage.closed()
    };
    let mut many: Vec<_> = (0..64).map(|_| cancel("198.51.100.7")).collect();
    let other = cancel("198.51.100.8");
    let newest = many.pop().unwrap();
    assert_eq!(closed(newest), Some(CloseReason::CancelLimit));
    assert_eq!(closed(other), None);
}
