//! Soak test of keys on a token, which an agent process accesses. Clients connect, leave, resume
//! sessions and send partial ClientHellos. The agent fails, hangs, exits, returns wrong signatures
//! or finds no token. Reloads keep, change and remove the key. At the end, no connection and no
//! token request may remain.
//!
//! A seed decides the steps. The agent is a thread of the test, so that it can fail on command. The
//! test also acts as the supervisor that replaces the agent.

use std::fs;
use std::io::Write;
use std::thread::{self, JoinHandle};

use becket_sys::clock::Stopwatch;
use rcgen::KeyPair;
use rustls::{ClientConfig, HandshakeKind, RootCertStore};

use super::soak::{LONG, MOST_TURNS, Soak, VERSIONS, lives, server, trust, without_sessions};
use super::*;
use becket_keys::signing::token::script::{AgentBehaviour, FIRST_KEY, SECOND_KEY, Script};

#[test]
fn no_state_remains_after_random_token_failures_and_sessions_resume() {
    let mut seen = [0; 7];
    for seed in lives(LIVES) {
        let new = Soak::<OnToken>::begin(seed).live();
        seen = std::array::from_fn(|i| seen[i] + new[i]);
    }
    println!("{NAMES:?}: {seen:?}");
    assert!(seen[..6].iter().all(|count| *count > 0));
}

struct OnToken {
    script: Arc<Script>,
    /// Configurations with three keys: the first and the second key of the token, and a key in a
    /// file.
    texts: [String; 3],
    running: (Arc<Config>, usize),
    /// A configuration that a thread is preparing, and its index in `texts`.
    reload: Option<(JoinHandle<Option<Arc<Config>>>, usize)>,
    /// Number of rejected reloads (index 0) and accepted reloads (index 1).
    reloads: [u64; 2],
    halves: Vec<TcpStream>,
    roots: RootCertStore,
    server: SocketAddr,
    /// Number of clients that resumed while no signature was available.
    resumed: u64,
    _folder: tempfile::TempDir,
}

impl Soak<OnToken> {
    fn begin(seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut roots = RootCertStore::empty();
        let keys = [(); 3].map(|()| KeyPair::generate().unwrap());
        let files = [0, 1, 2].map(|at| folder.path().join(format!("{at}.pem")));
        for (key, file) in keys.iter().zip(&files) {
            let params = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
            let certificate = params.self_signed(key).unwrap();
            roots.add(certificate.der().clone()).unwrap();
            fs::write(file, certificate.pem() + &key.serialize_pem()).unwrap();
        }
        let files = files.map(|file| file.display().to_string());
        let text = |chain: &str, key: &str| {
            let millis = TIME_OUT.as_millis();
            format!(
                "certificates = [{{ chain = '{chain}', key = '{key}' }}]\n[process]\npkcs11-sessions = {SESSIONS}\n\
                 [timeouts]\npkcs11 = '{millis}ms'"
            )
        };
        let texts = [
            text(&files[0], FIRST_KEY),
            text(&files[1], SECOND_KEY),
            text(&files[2], &files[2]),
        ];
        let [first, second, _] = keys;
        let script = Script::new(vec![first, second]);
        let server = server();
        let address = server.local_addr().unwrap();
        let tokens = Tokens::adopt(script.start(0), &Tokens::default());
        let config = config_with(address, &texts[0], tokens);
        let config = config.unwrap_or_else(|all| panic!("{all}"));
        config.tokens.serve().unwrap();
        let worker = worker_with(&config, Arc::new(SigningQueue::new(0, None)));
        let trusts = VERSIONS.map(|version| {
            let trust = trust(version, &roots);
            [Arc::new(trust.clone()), Arc::new(without_sessions(trust))]
        });
        let on_token = OnToken {
            script,
            texts,
            running: (Arc::clone(&config), 0),
            reload: None,
            reloads: [0; 2],
            halves: Vec::new(),
            roots,
            server: address,
            resumed: 0,
            _folder: folder,
        };
        Self::new(worker, server, trusts.concat(), seed, on_token)
    }

    /// Runs the test. Returns the counts named in [`NAMES`].
    fn live(mut self) -> [u64; 7] {
        let mut stacks = 0;
        for _ in 0..ROUNDS {
            (0..STEPS).for_each(|_| self.step());
            self.come_to_rest();
            self.nothing_is_asked();
            self.sessions_resume();
            self.come_to_rest();
            self.nothing_is_asked();
            let free = self.worker.newcomers.signing.free_stacks();
            assert!(free >= stacks, "{free} stacks of {stacks}");
            stacks = free;
        }
        (0..STEPS).for_each(|_| self.step());
        self.end()
    }

    fn step(&mut self) {
        match self.dice.u8(..40) {
            0..12 => self.come(),
            12 => self.say_half_a_hello(),
            13..17 => self.leave(),
            17..19 => {
                let way = *self.dice.choice(&WAYS).unwrap();
                self.signer.script.go(way);
            }
            19..23 => self.signer.script.go(AgentBehaviour::Signs),
            23 => self.signer.script.kill(),
            24..26 => self.begin_reload(),
            _ => self.talk(),
        }
        self.end_reload(false);
        self.supervise();
        self.turn(Duration::ZERO);
    }

    fn say_half_a_hello(&mut self) {
        let hello = include_bytes!("../../../../../proto/testdata/client_hello/openssl-tls13.bin");
        let length = self.dice.usize(..hello.len());
        let mut socket = TcpStream::connect(self.web).unwrap();
        socket.write_all(&hello[..length]).unwrap();
        self.signer.halves.push(socket);
    }

    fn supervise(&self) {
        let (config, key) = &self.signer.running;
        self.signer.script.supervise(&config.tokens, *key);
    }

    /// Starts to prepare a configuration on another thread, unless such a thread is already
    /// running.
    fn begin_reload(&mut self) {
        let text = self.dice.usize(..self.signer.texts.len());
        self.prepare(text);
    }

    fn prepare(&mut self, text: usize) {
        if self.signer.reload.is_some() {
            return;
        }
        let signer = &mut self.signer;
        let (server, written) = (signer.server, signer.texts[text].clone());
        let tokens = Tokens::adopt(signer.script.start(text), &signer.running.0.tokens);
        let load = move || config_with(server, &written, tokens).ok();
        signer.reload = Some((thread::spawn(load), text));
    }

    /// Applies the prepared configuration when it is ready, unless it was rejected.
    fn end_reload(&mut self, waits: bool) {
        let is_over = |reload: &mut (JoinHandle<_>, usize)| waits || reload.0.is_finished();
        let Some((reload, text)) = self.signer.reload.take_if(is_over) else {
            return;
        };
        let config = reload.join().unwrap();
        self.signer.reloads[usize::from(config.is_some())] += 1;
        if let Some(config) = config {
            config.tokens.serve().unwrap();
            self.reload(&config);
            self.signer.running = (config, text);
            self.supervise();
        }
    }

    /// Makes the token sign again. At random, either all clients are served, or all clients leave.
    fn come_to_rest(&mut self) {
        self.signer.script.go(AgentBehaviour::Signs);
        self.end_reload(true);
        if self.dice.bool() {
            self.until(|soak| {
                soak.talk();
                soak.clients.is_empty()
            });
        }
        self.clients.clear();
        self.signer.halves.clear();
        // Waits until the unanswered signature requests have timed out.
        self.until(|soak| {
            soak.is_alone() && soak.worker.newcomers.signing.asked_of_tokens().1 == 0
        });
        self.nothing_is_left();
    }

    /// Checks that each requested signature succeeded or failed exactly once, and that no token
    /// request is in progress.
    fn nothing_is_asked(&self) {
        let (asked, _) = self.worker.newcomers.signing.asked_of_tokens();
        let counts = self.signer.script.counts();
        assert_eq!(asked, counts.iter().sum::<u64>(), "{counts:?}");
        assert!(self.closed(CloseReason::Token) <= counts[1]);
        assert!(self.deceived <= self.signer.script.odd());
        let status = self.signer.running.0.tokens.status();
        assert!(status.len() <= 1 && status.iter().all(|token| token.in_flight == 0));
    }

    fn sessions_resume(&mut self) {
        let version = *self.dice.choice(&VERSIONS).unwrap();
        let trust = Arc::new(trust(version, &self.signer.roots));
        self.serve_by_token();
        self.until(|soak| soak.visit(&trust) == Some(HandshakeKind::Full));
        let way = *self.dice.choice(&WAYS).unwrap();
        self.signer.script.go(way);
        for _ in 0..CROWD {
            let fresh = Arc::clone(&self.trusts[self.dice.usize(..2) * 2 + 1]);
            let client = self.client(&fresh);
            self.clients.extend(client);
            self.turn(Duration::ZERO);
        }
        let overloaded = self.closed(CloseReason::Overload);
        let resumed = self.visit(&trust) == Some(HandshakeKind::Resumed);
        // After a stall of the host, the client may be rejected for overload.
        assert!(resumed || self.closed(CloseReason::Overload) > overloaded);
        self.signer.resumed += u64::from(resumed);
    }

    fn serve_by_token(&mut self) {
        self.end_reload(true);
        self.prepare(0);
        self.end_reload(true);
        let status = self.signer.running.0.tokens.status();
        assert!(status[0].available, "{}", status[0].fault);
    }

    /// Runs one client until it leaves, and returns its kind of handshake.
    fn visit(&mut self, trust: &Arc<ClientConfig>) -> Option<HandshakeKind> {
        let mut client = self.client(trust)?;
        self.until(|_| !client.talk());
        client.handshake()
    }

    /// Ends the worker by a drain, by a stop, or after an hour without activity. Checks that the
    /// token is no longer used.
    fn end(mut self) -> [u64; 7] {
        match self.seed % 3 {
            0 => {
                self.worker.mailbox.post(WorkerMessage::Drain([].into()));
                for _ in 0..STEPS {
                    self.talk();
                    self.turn(Duration::ZERO);
                }
            }
            1 => {
                self.worker.mailbox.post(WorkerMessage::Stop);
                self.turn(TICK);
                assert!(self.worker.is_over());
                self.worker.cut_off();
            }
            _ => {
                for _ in 0..MOST_TURNS {
                    self.worker.clocks.now.running += Duration::from_secs(3600);
                    self.worker.expire();
                }
            }
        }
        self.signer.script.go(AgentBehaviour::Signs);
        self.clients.clear();
        self.signer.halves.clear();
        self.end_reload(true);
        if self.worker.shutdown == Shutdown::Draining {
            self.until(|soak| soak.worker.is_over());
        } else if self.worker.shutdown == Shutdown::No {
            self.until(|soak| soak.is_alone());
        }
        self.nothing_is_left();
        let (asked, _) = self.worker.newcomers.signing.asked_of_tokens();
        let (refused, resumed) = (self.closed(CloseReason::Token), self.signer.resumed);
        let Self {
            worker,
            signer,
            served,
            ..
        } = self;
        drop(worker);
        // Requests in progress are answered even if their clients have left. The thread that reads
        // from an agent may notice later that the agent has exited.
        let clock = Stopwatch::start();
        drop(signer.running);
        let script = &signer.script;
        while script.agents() > 0 || script.counts().iter().sum::<u64>() < asked {
            assert!(clock.elapsed() < LONG, "an agent or a request is left");
            thread::yield_now();
        }
        let [signed, failed] = script.counts();
        assert_eq!(asked, signed + failed);
        let [not_taken, taken] = signer.reloads;
        [served, refused, resumed, signed, failed, taken, not_taken]
    }
}

/// Names of the counts, in the order in which `live` returns them. `refused` counts clients that
/// were rejected because of the token.
const NAMES: [&str; 7] = [
    "served",
    "refused",
    "resumed",
    "signed",
    "failed",
    "reloaded",
    "not reloaded",
];
const WAYS: [AgentBehaviour; 9] = [
    AgentBehaviour::Fails,
    AgentBehaviour::SignsOddly,
    AgentBehaviour::IsSilent,
    AgentBehaviour::Stands,
    AgentBehaviour::Dies,
    AgentBehaviour::Lies,
    AgentBehaviour::SaysMore,
    AgentBehaviour::Talks,
    AgentBehaviour::IsEmpty,
];
const LIVES: u64 = 3;
const ROUNDS: usize = 4;
const STEPS: usize = 120;
/// More than the maximum number of concurrent token requests.
const CROWD: usize = 12;
const SESSIONS: u16 = 4;
/// Time limit for a signature; enough for a busy host.
const TIME_OUT: Duration = Duration::from_millis(200);
