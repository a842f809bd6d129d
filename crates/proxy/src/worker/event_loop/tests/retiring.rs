//! Tests of retiring sockets. Their queues are emptied before they are closed, unless another
//! process also listens on them.

use super::*;

#[test]
fn a_retiring_socket_is_drained_even_at_the_connection_limit() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut worker, web) = worker(&server, "tls = false\n[limits]\nconnections = 1");
    let _inside = TcpStream::connect(web).unwrap();
    while worker.connections.is_empty() {
        turn(&mut worker);
    }
    let _queued = [(); 3].map(|()| TcpStream::connect(web).unwrap());
    worker.mailbox.post(WorkerMessage::Drain([].into()));
    while !worker.acceptors.sockets.is_empty() {
        turn(&mut worker);
    }
    let counters = &worker.counters;
    let closed = counters.closed.of(CloseReason::ConnectionLimit);
    assert_eq!((counters.accepted.value(), closed.value()), (4, 3));
    let open = (worker.connections.len(), worker.shared.connections());
    assert_eq!(open, (1, 1));
}

#[test]
fn a_yielding_process_drains_only_sockets_that_are_not_passed_on() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    for (passed_on, has_accepted, served) in [(false, true, 1), (true, true, 0), (false, false, 0)]
    {
        let (mut worker, web) = worker(&server, "tls = false");
        if !has_accepted {
            worker.acceptors.accepts_since = None;
        }
        let (parked, _said) = channel();
        worker.mailbox.post(WorkerMessage::Park(parked));
        turn(&mut worker);
        let _client = TcpStream::connect(web).unwrap();
        let passed_on = passed_on.then(|| WEB.parse().unwrap());
        worker
            .mailbox
            .post(WorkerMessage::Drain(passed_on.into_iter().collect()));
        while !worker.acceptors.sockets.is_empty() {
            turn(&mut worker);
        }
        assert_eq!(worker.counters.accepted.value(), served);
    }
}
