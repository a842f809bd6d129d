//! Common parts of the soak tests of a worker: clients that connect and leave at random, a server
//! that closes every connection, and a check that no connection remains.
//!
//! `BECKET_SOAK=500` sets the number of runs; `BECKET_SOAK_SEED` is the seed of the first run.

use std::env;
use std::io::ErrorKind;
use std::ops::Range;

use becket_sys::clock::Stopwatch;
use becket_sys::socket::reset_on_close;
use fastrand::Rng;
use mio::net::TcpStream;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, HandshakeKind, RootCertStore,
    SupportedProtocolVersion, version,
};

use super::*;

pub(super) struct Soak<S> {
    pub(super) worker: Worker,
    pub(super) clients: Vec<Client>,
    pub(super) trusts: Vec<Arc<ClientConfig>>,
    pub(super) dice: Rng,
    pub(super) seed: u64,
    pub(super) served: u64,
    pub(super) deceived: u64,
    pub(super) signer: S,
    pub(super) web: SocketAddr,
    server: TcpListener,
}

pub(super) struct Client {
    tls: ClientConnection,
    socket: TcpStream,
    was_deceived: bool,
}

/// Returns the seeds of all runs. `BECKET_SOAK` overrides the number of runs, and
/// `BECKET_SOAK_SEED` sets the first seed.
pub(super) fn lives(most: u64) -> Range<u64> {
    let number = |name| env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("BECKET_SOAK_SEED").unwrap_or(0);
    first..first + number("BECKET_SOAK").unwrap_or(most)
}

pub(super) fn server() -> TcpListener {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    server
}

/// Returns a client configuration for this version. Clients with the same configuration share
/// sessions.
pub(super) fn trust(
    version: &'static SupportedProtocolVersion,
    roots: &RootCertStore,
) -> ClientConfig {
    let client = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let client = client.with_protocol_versions(&[version]).unwrap();
    client
        .with_root_certificates(roots.clone())
        .with_no_client_auth()
}

pub(super) fn without_sessions(mut trust: ClientConfig) -> ClientConfig {
    trust.resumption = Resumption::disabled();
    trust
}

impl Client {
    pub(super) fn new(web: SocketAddr, trust: &Arc<ClientConfig>) -> Self {
        Self {
            tls: ClientConnection::new(Arc::clone(trust), "a.test".try_into().unwrap()).unwrap(),
            socket: TcpStream::connect(web).unwrap(),
            was_deceived: false,
        }
    }

    pub(super) fn talk(&mut self) -> bool {
        let later = |error: &io::Error| error.kind() == ErrorKind::WouldBlock;
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if later(&error) => break,
                Err(_) => return false,
            }
        }
        loop {
            match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return false,
                Ok(_) => {
                    if let Err(error) = self.tls.process_new_packets() {
                        self.was_deceived = error == CertificateError::BadSignature.into();
                        // Sends the alert. An error is ignored, because the server may have stopped
                        // reading.
                        drop(self.tls.write_tls(&mut self.socket));
                        return false;
                    }
                }
                Err(error) => return later(&error),
            }
        }
    }

    pub(super) fn handshake(&self) -> Option<HandshakeKind> {
        let kind = self.tls.handshake_kind();
        kind.filter(|_| !self.tls.is_handshaking())
    }
}

impl<S> Soak<S> {
    pub(super) fn new(
        (worker, web): (Worker, SocketAddr),
        server: TcpListener,
        trusts: Vec<Arc<ClientConfig>>,
        seed: u64,
        signer: S,
    ) -> Self {
        println!("seed {seed}");
        Self {
            worker,
            clients: Vec::new(),
            trusts,
            dice: Rng::with_seed(seed),
            seed,
            served: 0,
            deceived: 0,
            signer,
            web,
            server,
        }
    }

    pub(super) fn come(&mut self) {
        let trust = Arc::clone(self.dice.choice(&self.trusts).unwrap());
        let client = self.client(&trust);
        self.clients.extend(client);
    }

    pub(super) fn client(&self, trust: &Arc<ClientConfig>) -> Option<Client> {
        let mut client = Client::new(self.web, trust);
        client.talk().then_some(client)
    }

    pub(super) fn leave(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let client = self
            .clients
            .swap_remove(self.dice.usize(..self.clients.len()));
        if self.dice.bool() {
            reset_on_close(&client.socket).unwrap();
        }
    }

    pub(super) fn talk(&mut self) {
        self.clients.retain_mut(|client| {
            let was_handshaking = client.tls.is_handshaking();
            let stays = self.dice.bool() || client.talk();
            self.served += u64::from(was_handshaking && !client.tls.is_handshaking());
            self.deceived += u64::from(client.was_deceived);
            stays
        });
    }

    pub(super) fn reload(&self, config: &Arc<Config>) {
        let adopted = self.worker.shared.backends.adopt(config);
        self.worker.mailbox.post(WorkerMessage::Config {
            adopted,
            added: Vec::new(),
            outbox: None,
        });
    }

    pub(super) fn turn(&mut self, most: Duration) {
        while self.server.accept().is_ok() {}
        let mut events = Events::with_capacity(EVENTS);
        let worker = &mut self.worker;
        let most = worker.timeout().unwrap_or(most).min(most);
        let waited = worker
            .mailbox
            .wait(&mut worker.poll, &mut events, Some(most));
        waited.unwrap();
        worker.turn(&events, Some(most));
    }

    #[track_caller]
    pub(super) fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        // The loop is limited by time and not by turns, because turns are short and other threads
        // need time on a busy host.
        let clock = Stopwatch::start();
        while clock.elapsed() < LONG {
            self.turn(TICK);
            if is_so(self) {
                return;
            }
        }
        panic!("{} are there still", self.worker.connections.len());
    }

    /// Returns `true` if no connection is open or waits to be accepted.
    pub(super) fn is_alone(&self) -> bool {
        let mut acceptors = self.worker.acceptors.sockets.iter();
        self.worker.connections.is_empty() && acceptors.all(|(_, one)| !one.ready)
    }

    pub(super) fn closed(&self, reason: CloseReason) -> u64 {
        self.worker.counters.closed.of(reason).value()
    }

    pub(super) fn resumed(&self) -> u64 {
        let handshakes = &self.worker.counters.handshakes;
        handshakes.iter().map(|[_, resumed]| resumed.value()).sum()
    }

    /// Checks that no connection is left. Abandoned signatures may still be in progress.
    pub(super) fn nothing_is_left(&self) {
        let (worker, counters) = (&self.worker, &self.worker.counters);
        assert!(worker.connections.is_empty());
        assert_eq!(
            (worker.newcomers.handshakes, worker.shared.connections()),
            (0, 0)
        );
        let anybody = Room {
            threads: true,
            tokens: true,
        };
        assert!(!worker.newcomers.unsigned.can_go(anybody));
        assert!(worker.newcomers.without_hello.first().is_none());
        let servers = worker.shared.backends.by_name("app").unwrap();
        assert_eq!(servers.servers()[0].in_use(), 0);
        let ended = [&counters.handshakes_begun, &counters.handshakes_ended];
        assert_eq!(ended[0].value(), ended[1].value());
        assert_eq!(counters.accepted.value(), counters.closed.total());
        assert_eq!(self.closed(CloseReason::Internal), 0);
    }
}

pub(super) const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];
/// Time limit that a working test never reaches.
pub(super) const LONG: Duration = Duration::from_secs(60);
/// Many more turns than any part of the test needs.
pub(super) const MOST_TURNS: usize = 5000;
