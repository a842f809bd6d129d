//! The life of a connection under any script of bytes, readiness, closes, faults and time.
//!
//! A script is a list of two-byte events after a first byte, which selects the client. The first kind of client sends
//! raw bytes. The second uses TLS. The third uses TLS until it has keys, then seals arbitrary content into records.
//! Such records pass decryption with content that no honest client sends.

use std::cell::RefCell;
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::script::link::End;
use crate::script::net::Plan;
use crate::script::stage::Stage;
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use becket_config::read::read;
use becket_control::rotation::Rotation;
use becket_keys::signing::queue::SigningQueue;
use becket_multibuffer::Multibuffer;
use becket_prepare::{Environment, ServerNames, prepare};
use becket_proto::session_table::SessionTable;
use becket_proxy::backend::inbox::TestInbox;
use becket_proxy::backend::pool::Pool;
use becket_proxy::connection::listener::ListenerState;
use becket_proxy::metrics::Counters;
use becket_proxy::socket::StreamSocket;
use becket_sys::clock::Clock;
use becket_sys::clock::Now;
use becket_tls::config::Config;
use becket_tls::hello_router::HelloRouter;
use becket_tls::route_configs::RouteParts;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, RootCertStore, version};

/// Plays one script. `heap` returns the total number of allocated bytes. Returns 1 if the connection
/// reached a server.
///
/// # Panics
///
/// If a connection never becomes idle, holds too much memory, outlives its timeouts or leaks
/// resources.
pub fn run(script: &[u8], heap: impl Fn() -> usize) -> usize {
    let Some((&kind, script)) = script.split_first() else {
        return 0;
    };
    PLACE.with_borrow_mut(|place| {
        let before = heap();
        let mut play = Play::begin(place, kind);
        let mut events = Events(script);
        while let Some((event, amount)) = events.next() {
            play.happen(place, event, amount, &mut events);
            assert!(place.stage.settle(), "never becomes idle");
            let held = heap().saturating_sub(before);
            assert!(held < MOST_HELD, "{held} bytes are held");
        }
        play.run_out(place)
    })
}

/// Events of a script that are not played yet.
struct Events<'a>(&'a [u8]);

impl Events<'_> {
    fn next(&mut self) -> Option<(u8, usize)> {
        let [event, amount] = *self.take(2).first_chunk()?;
        Some((event, usize::from(amount)))
    }

    fn take(&mut self, n: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Client that a script plays.
struct Play {
    end: Option<End>,
    tls: Option<ClientConnection>,
    forged: bool,
    sealer: Option<Sealer>,
    clear: Clear,
    /// The worker's traffic counters before the connection.
    before: [u64; 4],
}

/// State of an honest client before TLS.
enum Clear {
    /// Waits for a greeting, then requests TLS.
    Greeting(&'static [u8]),
    /// Requests TLS.
    Request(&'static [u8]),
    /// Waits for the answer to the request.
    Answer,
    /// Ready for TLS.
    Done,
}

impl Play {
    fn begin(place: &mut Place, kind: u8) -> Self {
        place.stage.limits.bytes_per_turn = 1 << (kind >> 5);
        place.stage.net.capacity = [1, 100, 5000, 65_536][usize::from(kind >> 3) % 4];
        let plans = match kind & 4 {
            0 => [Plan::Accept; 2],
            _ => [Plan::Refuse(ErrorKind::ConnectionRefused), Plan::Later],
        };
        let listener =
            [OPEN, COSTLY, PASSING, PLAIN, ASKING, MAIL, DATABASE, BEHIND][usize::from(kind >> 5)];
        // The bits of the capacity also select an RSA key, whose signatures may be computed in batches.
        let listener = match (listener, kind >> 3 & 3) {
            (COSTLY, 1 | 3) => BATCHED,
            (listener, _) => listener,
        };
        // Select whether passthrough copies or splices.
        place.stage.splice(usize::from(kind >> 3 & 1) * 2);
        let mut end = place
            .stage
            .admit(Rc::clone(&place.listeners[listener]), plans);
        if listener == BEHIND && kind & 3 != 0 {
            // A client with TLS behind a proxy starts with a PROXY header, truncated to the stream's capacity.
            drop(end.write(b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 443\r\n"));
        }
        let config = &place.clients[usize::from(kind & 1)];
        let name = ServerName::try_from("a.test").expect("a name");
        let tls = ClientConnection::new(Arc::clone(config), name).expect("a client");
        Self {
            before: traffic(&place.stage.counters),
            end: Some(end),
            tls: (kind & 3 != 0).then_some(tls),
            forged: kind & 3 == 3,
            sealer: None,
            clear: match listener {
                MAIL => Clear::Greeting(b"STARTTLS\r\n"),
                DATABASE => Clear::Request(&[0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f]),
                _ => Clear::Done,
            },
        }
    }

    fn happen(&mut self, place: &mut Place, event: u8, amount: usize, events: &mut Events<'_>) {
        let many = amount * 64 + 1;
        match event % 24 {
            0..4 => {
                let content = events.take(amount);
                if let Some(sealer) = &mut self.sealer {
                    let kind = [20, 21, 22, 23][usize::from(event % 4)];
                    sealer.seal(kind, content);
                } else if let Some(end) = &mut self.end
                    && self.tls.is_none()
                {
                    drop(end.write(content));
                }
            }
            4..8 => {
                sign(place, amount < 255);
                self.talk();
            }
            8 => {
                if let Some(tls) = &mut self.tls {
                    drop(tls.writer().write(&vec![7; amount]));
                }
            }
            9 => {
                if let Some(tls) = self.tls.as_mut().filter(|tls| !tls.is_handshaking()) {
                    tls.send_close_notify();
                }
            }
            10 => self.with_end(|end| end.watch_peer().hold()),
            11 | 12 => self.with_end(|end| end.watch_peer().deliver(many)),
            13 => self.with_end(|end| end.finish()),
            14 if amount < 64 => self.with_end(End::reset),
            15 => drop(self.end.take_if(|_| amount < 32)),
            16 | 17 => {
                let said = match amount % 2 {
                    0 => b"220 mx\r\n".to_vec(),
                    _ => vec![5; many],
                };
                for server in &mut place.stage.net.dialled {
                    drop(server.far.write(&said));
                }
            }
            18 | 19 => {
                for server in &mut place.stage.net.dialled {
                    server.far.receive_all();
                }
            }
            20 => {
                for server in &place.stage.net.dialled {
                    server.near.establish();
                }
            }
            21 => {
                for server in &mut place.stage.net.dialled {
                    match amount % 4 {
                        // rustls treats becket's close_notify as a fatal alert. In debug builds it asserts that no
                        // second alert follows, which a corrupt record would cause.
                        0 if self.forged && cfg!(debug_assertions) => {}
                        0 => server.far.finish(),
                        1 => server.far.reset(),
                        2 => server.near.fail(ErrorKind::TimedOut),
                        _ => server.near.hold(),
                    }
                }
            }
            22 => place.stage.wait(Duration::from_millis(1 << (amount % 16))),
            23 if amount < 16 => place.stage.stop(),
            _ => drop(place.stage.turn()),
        }
    }

    fn with_end(&mut self, act: impl FnOnce(&mut End)) {
        if let Some(end) = &mut self.end {
            act(end);
        }
    }

    /// Sends and receives once, as an honest client would.
    fn talk(&mut self) {
        let Some(end) = &mut self.end else {
            return;
        };
        if let Some(sealer) = &mut self.sealer {
            sealer.send(end);
            end.receive_all();
            return;
        }
        let Some(tls) = &mut self.tls else {
            end.receive_all();
            return;
        };
        match self.clear {
            Clear::Done => {}
            Clear::Request(words) => {
                drop(end.write(words));
                self.clear = Clear::Answer;
                return;
            }
            Clear::Greeting(_) | Clear::Answer if end.receive_all().is_empty() => return,
            Clear::Greeting(words) => {
                self.clear = Clear::Request(words);
                return;
            }
            Clear::Answer => {
                self.clear = Clear::Done;
                return;
            }
        }
        if tls.wants_write() {
            drop(tls.write_tls(end));
        }
        if tls.read_tls(end).is_ok_and(|n| n > 0) && tls.process_new_packets().is_ok() {
            let mut plain = Vec::new();
            drop(tls.reader().read_to_end(&mut plain));
        }
        if self.forged && !tls.is_handshaking() && !tls.wants_write() {
            let secrets = self
                .tls
                .take()
                .map(ClientConnection::dangerous_extract_secrets);
            self.sealer = secrets.and_then(Result::ok).and_then(Sealer::of);
        }
    }

    /// Waits for all timeouts, then asserts that the connection has ended.
    fn run_out(self, place: &mut Place) -> usize {
        let relaying = place.stage.net.dialled.len().min(1);
        let timeouts = &place.stage.timeouts;
        let longest = timeouts.idle + timeouts.half_closed + timeouts.handshake;
        for _ in 0..16 {
            place.stage.wait(longest);
            assert!(place.stage.settle(), "never becomes idle");
        }
        while place
            .stage
            .sign(|_| panic!("signs for a closed connection"))
        {}
        place.stage.turn();
        let record = place.stage.record().expect("the end of a client");
        assert!(place.stage.closed().is_some(), "outlives its timeouts");
        let counters = &place.stage.counters;
        let after = traffic(counters);
        let counted = std::array::from_fn(|i| after[i] - self.before[i]);
        let logged = [
            record.client_traffic.received,
            record.client_traffic.sent,
            record.facts.server_traffic.received,
            record.facts.server_traffic.sent,
        ];
        assert_eq!(logged, counted, "the log and the metric differ");
        assert_eq!(
            counters.handshakes_begun.value(),
            counters.handshakes_ended.value()
        );
        assert_eq!(
            counters.signatures_begun.value(),
            counters.signatures_ended.value()
        );
        place.stage.net.dialled.clear();
        relaying
    }
}

/// Returns the numbers of bytes from clients, to clients, from servers and to servers.
fn traffic(counters: &Counters) -> [u64; 4] {
    let servers = counters.server_traffic();
    [
        counters.client_bytes_in.value(),
        counters.client_bytes_out.value(),
        servers.received,
        servers.sent,
    ]
}

/// Completes a signature as a crypto thread would, even if the client has disconnected.
fn sign(place: &Place, works: bool) {
    place.stage.sign(|request| {
        if works {
            request.sign()
        } else {
            Err(rustls::Error::General("no".into()))
        }
    });
}

/// Seals TLS 1.3 records (RFC 8446, section 5.2) with arbitrary content.
struct Sealer {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    out: Vec<u8>,
}

impl Sealer {
    fn of(secrets: rustls::ExtractedSecrets) -> Option<Self> {
        let (sequence, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = secrets.tx else {
            return None;
        };
        let key = UnboundKey::new(&AES_128_GCM, key.as_ref()).ok()?;
        Some(Self {
            key: LessSafeKey::new(key),
            iv: iv.as_ref().try_into().ok()?,
            sequence,
            out: Vec::new(),
        })
    }

    fn seal(&mut self, kind: u8, content: &[u8]) {
        let mut nonce = self.iv;
        for (byte, sequence) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= sequence;
        }
        self.sequence += 1;
        let mut sealed = content.to_vec();
        sealed.push(kind);
        let length = (sealed.len() as u16 + 16).to_be_bytes();
        let header = [23, 3, 3, length[0], length[1]];
        let nonce = Nonce::assume_unique_for_key(nonce);
        let done = self
            .key
            .seal_in_place_append_tag(nonce, Aad::from(header), &mut sealed);
        if done.is_ok() {
            self.out.extend(header);
            self.out.extend(sealed);
        }
    }

    fn send(&mut self, end: &mut End) {
        if let Ok(n) = end.write(&self.out) {
            self.out.drain(..n);
        }
    }
}

/// Listeners and client configurations, shared by all scripts of a thread.
struct Place {
    stage: Stage,
    listeners: [Rc<ListenerState>; 9],
    clients: [Arc<ClientConfig>; 2],
}

thread_local!(static PLACE: RefCell<Place> = RefCell::new(Place::make()));

impl Place {
    fn make() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let made =
            rcgen::generate_simple_self_signed(["a.test".to_owned()]).expect("a certificate");
        let bundle = made.cert.pem() + &made.signing_key.serialize_pem();
        std::fs::write(folder.path().join("a.pem"), bundle).expect("written");
        // Signatures with this key are slow enough to be computed on crypto threads.
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
        let params = rcgen::CertificateParams::new(["a.test".to_owned()]).expect("a name");
        let costly = params.self_signed(&key).expect("a certificate");
        let bundle = costly.pem() + &key.serialize_pem();
        std::fs::write(folder.path().join("costly.pem"), bundle).expect("written");
        let key = include_bytes!("../../crates/multibuffer/testdata/rsa-2048.der").as_slice();
        let key = rcgen::KeyPair::try_from(key).expect("a key");
        let params = rcgen::CertificateParams::new(["a.test".to_owned()]).expect("a name");
        let rsa = params.self_signed(&key).expect("a certificate");
        let bundle = rsa.pem() + &key.serialize_pem();
        std::fs::write(folder.path().join("rsa.pem"), bundle).expect("written");
        let environment = Environment {
            now: UnixTime::now(),
            multibuffer: Some(Multibuffer::portable()),
            ..Environment::system(
                folder.path(),
                UnixTime::now(),
                ServerNames::Later,
                becket_keys::files::Files::default(),
            )
        };
        let reading = read(CONFIG, &Default::default());
        let config = prepare(reading, &environment)
            .expect("a configuration")
            .config;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).expect("a root");
        roots.add(costly.der().clone()).expect("a root");
        roots.add(rsa.der().clone()).expect("a root");
        let now = Clock::start().now();
        let mut stage = Stage::new(config.file.limits, config.file.timeouts.clone(), now, 1);
        let queue = Arc::new(SigningQueue::new(1, config.batches));
        // Pretend that many signatures are queued, so that all of them may be batched.
        stage.defer_to(&queue, usize::MAX / 2);
        Self {
            listeners: [
                OPEN, ASKING, BEHIND, PASSING, PLAIN, MAIL, DATABASE, COSTLY, BATCHED,
            ]
            .map(|listener| listener_state(&config, listener, now)),
            clients: [&version::TLS12, &version::TLS13].map(|version| {
                let provider = Arc::new(default_provider());
                let mut client = ClientConfig::builder_with_provider(provider)
                    .with_protocol_versions(&[version])
                    .expect("a version")
                    .with_root_certificates(roots.clone())
                    .with_no_client_auth();
                client.enable_secret_extraction = true;
                Arc::new(client)
            }),
            stage,
        }
    }
}

fn listener_state(config: &Config, listener: usize, now: Now) -> Rc<ListenerState> {
    let rotation = Rotation::start(config.file.ticket_rotation(), now).expect("random");
    let parts = RouteParts {
        table: Arc::new(SessionTable::new(Default::default(), Default::default())),
        early: Arc::new(SessionTable::new(Default::default(), Default::default())),
        secrets: Arc::clone(rotation.secrets()),
        file: Arc::clone(&config.file),
        key_log: false,
        keys: Arc::default(),
        outbox: None,
    };
    let pools = config.backends.iter();
    let pools = pools.map(|one| Rc::new(Pool::lone(Arc::clone(one), Arc::<TestInbox>::default())));
    let router = HelloRouter::new(Arc::clone(&config.listeners[listener]), &parts);
    Rc::new(ListenerState::new(
        router.expect("a router"),
        pools.collect(),
    ))
}

// Indices of the listeners in the configuration.
const OPEN: usize = 0;
const ASKING: usize = 1;
const BEHIND: usize = 2;
const PASSING: usize = 3;
const PLAIN: usize = 4;
const MAIL: usize = 5;
const DATABASE: usize = 6;
const COSTLY: usize = 7;
const BATCHED: usize = 8;

/// Listeners without and with client certificates, behind a proxy, with passthrough, without TLS and with STARTTLS. The last two
/// have keys whose signatures are made on crypto threads, one at a time and in batches.
const CONFIG: &str = "
[[listener]]
name = 'open'
bind = ['127.0.0.1:443']
backend = 'plain'
certificates = ['a.pem']
[[listener]]
name = 'asking'
bind = ['127.0.0.1:444']
backend = 'introduced'
certificates = ['a.pem']
policy = 'asking'
[[listener]]
name = 'behind'
bind = ['127.0.0.1:445']
backend = 'introduced'
certificates = ['a.pem']
accept-proxy = 'any'
trusted-networks = ['192.0.2.0/24']
[[listener]]
name = 'passing'
bind = ['127.0.0.1:446']
mode = 'passthrough'
backend = 'farm'
certificates = ['a.pem']
[[listener.route]]
names = ['own.test']
mode = 'terminate'
backend = 'plain'
[[listener]]
name = 'local'
bind = ['127.0.0.1:447']
tls = false
backend = 'remote'
[[listener]]
name = 'mail'
bind = ['127.0.0.1:448']
backend = 'plain'
starttls = 'smtp'
certificates = ['a.pem']
[[listener]]
name = 'database'
bind = ['127.0.0.1:449']
backend = 'plain'
starttls = 'postgresql'
certificates = ['a.pem']
[[listener]]
name = 'costly'
bind = ['127.0.0.1:450']
backend = 'plain'
certificates = ['costly.pem']
[[listener]]
name = 'batched'
bind = ['127.0.0.1:451']
backend = 'plain'
certificates = ['rsa.pem']
[process]
rsa-batch = 'auto'
[[policy]]
name = 'asking'
client-certificates = 'optional'
client-ca = 'a.pem'
[[backend]]
name = 'plain'
[[backend.server]]
address = '127.0.0.1:81'
[[backend.server]]
address = '127.0.0.1:82'
[[backend]]
name = 'farm'
stick = 'tls-session'
[[backend.server]]
address = '127.0.0.1:84'
node = 1
[[backend.server]]
address = '127.0.0.1:85'
[[backend]]
name = 'remote'
[backend.tls]
ca = 'a.pem'
[[backend.server]]
address = '127.0.0.1:86'
[[backend]]
name = 'introduced'
proxy-header = 'v2'
[[backend.server]]
address = '127.0.0.1:83'
";

/// Memory limit per connection in bytes: four streams of 64 KiB in growing buffers, queued data, and the TLS state of both sides.
const MOST_HELD: usize = 2 * 1024 * 1024;
