//! Tests of `idle-reclaim`: which connections are closed while clients wait for a slot.

use super::*;
use becket_tls::config::Backend;

/// A worker whose server has reached `maxconn`. `served` lists the clients in the order in which
/// they received their responses.
struct Full {
    worker: Worker,
    web: SocketAddr,
    served: Vec<(TcpStream, TcpStream)>,
    server: TcpListener,
}

const AFTER: Duration = Duration::from_secs(3600);

fn full(maxconn: u32, idle_reclaim: Option<Duration>) -> Full {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(server.local_addr().unwrap(), "tls = false");
    let backend = Arc::get_mut(&mut config).unwrap().backends[0].clone();
    let mut backend = Arc::unwrap_or_clone(backend);
    backend.keys.idle_reclaim = idle_reclaim;
    backend.servers[0].keys.maxconn = Some(maxconn);
    Arc::get_mut(&mut config).unwrap().backends[0] = Arc::new(backend);
    let (worker, web) = worker_with(&config, Arc::new(SigningQueue::new(0, None)));
    let mut full = Full {
        worker,
        web,
        served: Vec::new(),
        server,
    };
    for _ in 0..maxconn {
        let client = TcpStream::connect(web).unwrap();
        let before = full.connects();
        full.turn_until(|it| it.connects() > before);
        let served = full.server.accept().unwrap().0;
        served.set_nonblocking(true).unwrap();
        full.served.push((client, served));
        full.ask(full.served.len() - 1);
        full.answer(full.served.len() - 1);
    }
    full
}

impl Full {
    fn turn_until(&mut self, mut is_done: impl FnMut(&mut Self) -> bool) {
        while !is_done(self) {
            turn(&mut self.worker);
        }
    }

    fn state(&self) -> Arc<crate::backend::backend_state::BackendState> {
        self.worker.shared.backends.by_name("app").unwrap()
    }

    fn connects(&self) -> u64 {
        self.state().servers()[0].connections()
    }

    fn ask(&mut self, number: usize) {
        self.served[number].0.write_all(b"?").unwrap();
        let mut asked = [0];
        self.turn_until(|it| it.served[number].1.read(&mut asked).is_ok());
    }

    /// Sends a response byte from the server, and waits until the worker has relayed it.
    fn answer(&mut self, number: usize) {
        let before = self.worker.counters.client_bytes_out.value();
        self.served[number].1.write_all(b"!").unwrap();
        self.turn_until(|it| it.worker.counters.client_bytes_out.value() > before);
    }

    fn come(&mut self) -> TcpStream {
        let client = TcpStream::connect(self.web).unwrap();
        let before = self.state().waiting();
        self.turn_until(|it| it.state().waiting() > before);
        client
    }

    fn come_in(&mut self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.web).unwrap();
        let before = self.connects();
        self.turn_until(|it| it.connects() > before);
        (client, self.server.accept().unwrap().0)
    }

    fn reclaim_after(&mut self, time: Duration) {
        self.worker.clocks.now.running += time;
        self.worker.reclaim();
    }

    fn ended(&mut self) -> Vec<usize> {
        let servers = self.served.iter_mut().enumerate();
        let is_over = |server: &mut TcpStream| match server.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        };
        let ended = servers.filter_map(|(number, it)| is_over(&mut it.1).then_some(number));
        ended.collect()
    }
}

#[test]
fn the_longest_idle_connection_is_closed_for_each_waiter() {
    let mut full = full(4, Some(AFTER));
    // Client 0 has been idle for less time than the other clients.
    full.ask(0);
    full.answer(0);
    full.reclaim_after(AFTER * 10);
    assert_eq!(full.ended(), [0; 0], "none waits");
    let _waits = [full.come(), full.come()];
    full.reclaim_after(Duration::ZERO);
    assert_eq!(full.ended(), [0; 0], "all moved a moment ago");
    full.reclaim_after(AFTER);
    assert_eq!(full.ended(), [1, 2]);
    assert_eq!(
        (full.state().waiting(), full.state().idle_reclaims()),
        (0, 2)
    );
    full.reclaim_after(AFTER * 10);
    assert_eq!(full.ended(), [1, 2]);
    full.turn_until(|it| it.connects() == 6);
}

#[test]
fn waiters_reclaim_nothing_without_idle_reclaim() {
    let mut full = full(2, None);
    let _waits = full.come();
    full.reclaim_after(AFTER * 1000);
    assert_eq!((full.ended(), full.state().waiting()), (vec![], 1));
    assert_eq!(full.worker.next_reclaim(), None);
}

#[test]
fn reclaim_is_scheduled_while_a_client_waits() {
    let mut full = full(1, Some(AFTER));
    assert_eq!(full.worker.next_reclaim(), None);
    let _waits = full.come();
    let next = full.worker.next_reclaim().unwrap();
    assert!(next < AFTER, "{next:?}");
}

#[test]
fn reclaim_spares_waiting_stalled_and_silent_connections() {
    let mut full = full(3, Some(AFTER));
    full.ask(0);
    // This response is larger than the receive buffer of the client's socket.
    let (answer, mut written) = (vec![b'!'; 1_000_000], 0);
    full.turn_until(|it| {
        let server = &mut it.served[1].1;
        written += server.write(&answer[written..]).unwrap_or(0);
        written == answer.len()
    });
    full.served.pop();
    full.turn_until(|it| it.state().servers()[0].in_use() == 2);
    let _silent = full.come_in();
    let _waits = full.come();
    for _ in 0..3 {
        full.reclaim_after(AFTER * 100);
        assert_eq!((full.ended(), full.state().waiting()), (vec![], 1));
    }
    // The client reads the whole response and is idle afterwards.
    let mut taken = vec![0; answer.len() + 1];
    full.served[1].0.set_nonblocking(true).unwrap();
    let mut read = 0;
    full.turn_until(|it| {
        while let Ok(n) = it.served[1].0.read(&mut taken[read..]) {
            read += n;
        }
        read == taken.len()
    });
    let connections = || full.worker.connections.iter();
    while !connections().all(|(_, it)| it.connection.is_acknowledged()) {
        std::thread::yield_now();
    }
    full.reclaim_after(AFTER * 1000);
    assert_eq!((full.ended(), full.state().waiting()), (vec![1], 0));
}

#[test]
fn idle_reclaim_set_by_a_reload_applies_to_existing_connections() {
    let mut full = full(1, None);
    let _waits = full.come();
    let mut config = Config::clone(&full.worker.served.config);
    let mut backend = Backend::clone(&config.backends[0]);
    backend.keys.idle_reclaim = Some(AFTER);
    config.backends[0] = Arc::new(backend);
    let adopted = full.worker.shared.backends.adopt(&Arc::new(config));
    full.worker.take_over(&adopted, Vec::new()).unwrap();
    full.worker.advance_sweeps();
    full.reclaim_after(AFTER);
    assert_eq!(full.ended(), [0]);
}
