//! A soak of signatures off the loop: clients come, leave and are timed out while theirs is awaited; who signs fails, lies or
//! stands still; the configuration changes; and then the worker is as it was.
//!
//! The test is the crypto threads, and goes by a seed. Nothing waits for a clock: only how much fits into a turn is the machine's.

use std::fs;
use std::io::ErrorKind;

use becket_sys::socket::reset_on_close;
use fastrand::Rng;
use mio::net::TcpStream;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, Error, RootCertStore};

use super::*;
use crate::signing::Request;
use crate::signing::queue::{SigningQueue, answer};

#[test]
fn whatever_happens_while_signatures_are_awaited_nothing_is_left_of_it() {
    let mut seen = [0; 4];
    for seed in 0..LIVES {
        println!("seed {seed}");
        let mut soak = Soak::new(seed);
        soak.live();
        let counters = &soak.worker.counters;
        let abandoned = counters.signatures_abandoned.value();
        let failed = counters.signatures_failed.value();
        let resumed = [1, 3].map(|kind| counters.handshakes[kind].value());
        let new = [soak.served, abandoned, failed, resumed.iter().sum()];
        seen = std::array::from_fn(|i| seen[i] + new[i]);
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

/// A worker and all around it.
struct Soak {
    worker: Worker,
    web: SocketAddr,
    /// Sends everybody away.
    server: TcpListener,
    signatures: Arc<SigningQueue>,
    /// With a key that signs slowly, and with one for batches.
    configs: [Arc<Config>; 2],
    trusts: [Arc<ClientConfig>; 2],
    clients: Vec<Client>,
    /// Nobody signs now.
    stands_still: bool,
    dice: Rng,
    seed: u64,
    /// Clients whose handshakes were completed.
    served: u64,
    _folder: tempfile::TempDir,
}

/// A client that never waits.
struct Client {
    tls: ClientConnection,
    socket: TcpStream,
}

impl Client {
    /// Says and hears what it can now. False when it is over.
    fn talk(&mut self) -> bool {
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
                Ok(_) if self.tls.process_new_packets().is_ok() => {}
                Ok(_) => {
                    // The alert: nobody may be there to hear it.
                    drop(self.tls.write_tls(&mut self.socket));
                    return false;
                }
                Err(error) => return later(&error),
            }
        }
    }
}

impl Soak {
    fn new(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let address = server.local_addr().unwrap();
        let slow = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384);
        let rsa = include_bytes!("../../../../multibuffer/testdata/rsa-2048.der").as_slice();
        let rsa = rcgen::KeyPair::try_from(rsa);
        let mut roots = RootCertStore::empty();
        let configs = [("slow.pem", slow), ("rsa.pem", rsa)].map(|(name, key)| {
            let (key, path) = (key.unwrap(), folder.path().join(name));
            let params = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            roots.add(certificate.der().clone()).unwrap();
            fs::write(&path, certificate.pem() + &key.serialize_pem()).unwrap();
            let path = path.display();
            let keys = format!("certificates = ['{path}']\n[process]\nrsa-batch = 'auto'");
            config(address, &keys)
        });
        let signatures = Arc::new(SigningQueue::new(THREADS, configs[0].batches));
        let (worker, web) = worker_with(&configs[0], Arc::clone(&signatures));
        let trusts = [&TLS12, &TLS13].map(|version| {
            let client = ClientConfig::builder_with_provider(Arc::new(default_provider()));
            let client = client.with_protocol_versions(&[version]).unwrap();
            let client = client.with_root_certificates(roots.clone());
            Arc::new(client.with_no_client_auth())
        });
        Self {
            worker,
            web,
            server,
            signatures,
            configs,
            trusts,
            clients: Vec::new(),
            stands_still: false,
            dice: Rng::with_seed(seed),
            seed,
            served: 0,
            _folder: folder,
        }
    }

    fn live(&mut self) {
        let mut stacks = 0;
        for _ in 0..ROUNDS {
            (0..STEPS).for_each(|_| self.step());
            self.come_to_rest();
            self.nothing_is_left();
            // It never makes more than it needs at once, so that one that is lost would be missed now or later.
            let free = self.worker.signing.free_stacks();
            assert!(free >= stacks, "{free} stacks of {stacks}");
            stacks = free;
        }
        (0..STEPS).for_each(|_| self.step());
        self.end();
        self.clients.clear();
        self.nothing_is_left();
        assert!(self.worker.signing.free_stacks() >= stacks);
    }

    fn step(&mut self) {
        match self.dice.u8(..40) {
            0..12 => self.come(),
            12..18 => self.leave(),
            18..26 if !self.stands_still => drop(self.sign_somehow()),
            26 => self.stands_still = self.dice.bool(),
            27 => self.reload(),
            _ => self.talk(),
        }
        self.turn(Duration::ZERO);
    }

    fn come(&mut self) {
        let trust = Arc::clone(self.dice.choice(&self.trusts).unwrap());
        let tls = ClientConnection::new(trust, "a.test".try_into().unwrap()).unwrap();
        let socket = TcpStream::connect(self.web).unwrap();
        let mut client = Client { tls, socket };
        if client.talk() {
            self.clients.push(client);
        }
    }

    fn leave(&mut self) {
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

    /// About half of them do.
    fn talk(&mut self) {
        let (clients, dice, served) = (&mut self.clients, &mut self.dice, &mut self.served);
        clients.retain_mut(|client| {
            let was_handshaking = client.tls.is_handshaking();
            let stays = dice.bool() || client.talk();
            *served += u64::from(was_handshaking && !client.tls.is_handshaking());
            stays
        });
    }

    fn reload(&mut self) {
        let config = self.dice.choice(&self.configs).unwrap();
        let adopted = self.worker.shared.backends.adopt(config);
        self.worker.mailbox.post(Message::Config {
            adopted,
            added: Vec::new(),
            outbox: None,
        });
    }

    /// Answers what is taken from the queue at once. False when there was nothing.
    fn sign(&self, sign: impl FnOnce(&[&Request]) -> Vec<Result<Vec<u8>, Error>>) -> bool {
        let jobs = self.signatures.try_pop();
        let any = !jobs.is_empty();
        answer(jobs, sign);
        any
    }

    fn sign_well(&self) -> bool {
        self.sign(|requests| requests.iter().map(|it| it.sign()).collect())
    }

    fn sign_somehow(&mut self) -> bool {
        let fails = || Err(Error::General("it fails".into()));
        match self.dice.u8(..8) {
            0 => self.sign(|requests| requests.iter().map(|_| fails()).collect()),
            1 => self.sign(|requests| vec![Ok(vec![7; 70]); requests.len()]),
            // A lie, and for whoever else is in the batch nothing.
            2 => self.sign(|_| vec![Ok(vec![8; 256])]),
            _ => self.sign_well(),
        }
    }

    fn turn(&mut self, most: Duration) {
        while self.server.accept().is_ok() {}
        let mut events = Events::with_capacity(EVENTS);
        let timeout = self.worker.timeout().unwrap_or(most).min(most);
        self.worker.poll.poll(&mut events, Some(timeout)).unwrap();
        self.worker.turn(&events);
    }

    #[track_caller]
    fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        for _ in 0..MOST_TURNS {
            self.turn(TICK);
            if is_so(self) {
                return;
            }
        }
        panic!("{} are there still", self.worker.connections.len());
    }

    /// All are served, or all leave: nobody is signed for then.
    fn come_to_rest(&mut self) {
        self.stands_still = false;
        if self.dice.bool() {
            self.until(|soak| {
                soak.sign_well();
                soak.talk();
                soak.clients.is_empty()
            });
        }
        self.clients.clear();
        self.until(|soak| soak.is_alone());
        self.until(|soak| {
            soak.sign(|_| panic!("signs for nobody"));
            soak.signatures_under_way() == 0
        });
    }

    /// Nobody is there, nor waits to be accepted.
    fn is_alone(&self) -> bool {
        let mut acceptors = self.worker.acceptors.iter();
        self.worker.connections.is_empty() && acceptors.all(|(_, one)| !one.ready)
    }

    fn signatures_under_way(&self) -> u64 {
        let counters = &self.worker.counters;
        counters.signatures_begun.value() - counters.signatures_ended.value()
    }

    /// By a drain, a stop, or after an hour in which nobody signs or says a word.
    fn end(&mut self) {
        match self.seed % 3 {
            0 => {
                self.worker.mailbox.post(Message::Drain([].into()));
                self.until(|soak| {
                    soak.sign_somehow();
                    soak.talk();
                    soak.worker.is_over()
                });
            }
            1 => {
                self.worker.mailbox.post(Message::Stop);
                self.turn(TICK);
                assert!(self.worker.is_over());
                self.worker.cut_off();
            }
            _ => {
                for _ in 0..MOST_TURNS {
                    self.worker.now.mono += Duration::from_secs(3600);
                    self.worker.expire();
                }
            }
        }
        self.worker.signing.flush();
        while self.sign(|_| panic!("signs for nobody")) {}
        self.worker.read_mail();
        let is_deaf = self.worker.ending == Ending::Now;
        assert!(is_deaf || self.signatures_under_way() == 0);
    }

    /// Of connections; signatures may be under way of which nobody will hear.
    fn nothing_is_left(&self) {
        let (worker, counters) = (&self.worker, &self.worker.counters);
        assert!(worker.connections.is_empty());
        assert_eq!((worker.handshakes, worker.shared.connections()), (0, 0));
        assert!(worker.unsigned.is_empty_here() && worker.unsigned.len_elsewhere() == 0);
        assert!(worker.without_hello.first().is_none());
        let servers = worker.shared.backends.by_name("app").unwrap();
        assert_eq!(servers.servers()[0].in_use(), 0);
        let ended = [&counters.handshakes_begun, &counters.handshakes_ended];
        assert_eq!(ended[0].value(), ended[1].value());
        assert_eq!(counters.accepted.value(), counters.closed.total());
        let internal = counters.closed.of(CloseReason::Internal).value();
        assert_eq!(internal, 0);
    }
}

const LIVES: u64 = 6;
const ROUNDS: usize = 5;
const STEPS: usize = 80;
const THREADS: usize = 2;
/// Many more than anything here takes.
const MOST_TURNS: usize = 5000;
