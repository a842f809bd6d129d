//! What it costs the control thread to send and to receive 50 000 sessions a second.
//!
//! Run with `cargo bench -p becket --bench replication [-- SECONDS RATE]`. Two nodes over UDP on loopback, each on a thread
//! of its own as control is, and the main thread in the worker's place: it puts sessions into the first node's table
//! and leaves notes. The figure is CPU time of each control thread, system calls included. The promise: less than half
//! a core for the receiver. Without `--bench`, as in CI, it sends for a moment and looks whether sessions arrive.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use becket::clock::Clock;
use becket::cluster::membership::Membership;
use becket::cluster::outbox::{Note, Outbox};
use becket::cluster::socket;
use becket::cluster::status::ClusterStatus;
use becket::config::Config;
use becket::config::file::File;
use becket::config::prepare::{World, prepare};
use becket::secret::{base64, file};
use becket::shared::Shared;
use becket::tls::session_name::SessionName;
use becket_proto::session_table::{Limits, Lives, PolicyTag, Session, SessionTable};
use becket_proto::ticket::Lineage;
use becket_sys::cpu::thread_time;
use rustls::pki_types::UnixTime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = arguments.iter().filter_map(|a| a.parse().ok()).collect();
    let real = arguments.iter().any(|argument| argument == "--bench");
    let (seconds, rate) = match (real, &numbers[..]) {
        (false, _) => (1, 2_000),
        (true, [seconds, rate, ..]) => (*seconds, *rate),
        (true, _) => (10, 50_000),
    };
    let folder = tempfile::tempdir().expect("a folder");
    write_files(folder.path());
    let addresses = free_addresses();
    let [sender, receiver] =
        [0, 1].map(|node| Control::start(&config(folder.path(), node, addresses)));
    while sender.ask().0.peers.is_empty() || receiver.ask().0.peers.is_empty() {
        thread::sleep(PAUSE);
    }
    let before = [sender.ask().1, receiver.ask().1];
    sender.make_sessions(Duration::from_secs(seconds), rate);
    thread::sleep(50 * PAUSE);
    let after = [sender.ask(), receiver.ask()];
    let (told, stored) = (after[0].0.sessions.told, after[1].0.sessions.stored);
    assert!(stored > 0, "nothing arrived");
    println!("{told} sessions told and {stored} stored in {seconds} s");
    for ((what, before), (_, after)) in ["sender", "receiver"].iter().zip(before).zip(&after) {
        let time = (*after - before).as_secs_f64();
        let share = time * 100.0 / seconds as f64;
        let each = time * 1e6 / stored as f64;
        println!("{what}: {share:.1} % of a core, {each:.2} us for each session");
    }
}

/// What control says of itself: the cluster, and the CPU time of its thread.
type Answer = (ClusterStatus, Duration);

/// A node with its control thread, which ends with the process.
struct Control {
    shared: Arc<Shared>,
    policy: PolicyTag,
    outbox: Outbox,
    asks: UnboundedSender<SyncSender<Answer>>,
}

impl Control {
    fn start(config: &Config) -> Self {
        let limits = Limits {
            entries: 1_000_000,
            ..Limits::default()
        };
        let table = || Arc::new(SessionTable::new(limits, Default::default()));
        let shared = Arc::new(Shared::new(1, Clock::start(), table(), table()));
        let bound = socket::bind(config.cluster.as_ref()).expect("a free port");
        let membership = Membership::new(bound, config, &shared).expect("random bytes");
        let membership = membership.expect("a cluster");
        let outbox = membership.outboxes().remove(0);
        let (asks, asked) = unbounded_channel();
        let clock = shared.clock;
        thread::spawn(move || serve(membership, asked, clock));
        let digest = &config.listeners[0].routes[0].policy.digest;
        Self {
            shared,
            policy: PolicyTag::from_digest(digest),
            outbox,
            asks,
        }
    }

    fn ask(&self) -> Answer {
        let (answer, answered) = sync_channel(1);
        self.asks.send(answer).expect("control is there");
        answered.recv().expect("an answer")
    }

    /// Does what a worker does for each session by ID, at a rate.
    fn make_sessions(&self, time: Duration, rate: u64) {
        let clock = self.shared.clock;
        let (begun, mut made) = (clock.now().mono, 0_u64);
        loop {
            let now = clock.now();
            let past = now.mono - begun;
            if past >= time {
                return;
            }
            while made < (past.as_secs_f64() * rate as f64) as u64 {
                made += 1;
                let mut id = [0; 32];
                id[..8].copy_from_slice(&made.to_be_bytes());
                let session = Session::new(vec![1; STATE], Lineage(made), now.unix_seconds());
                let lives = Lives {
                    now: now.mono,
                    ttl: Duration::from_secs(300),
                };
                let table = &self.shared.table;
                table.insert(self.policy, &id, session, lives);
                let name = SessionName::new(self.policy, &id).expect("a name");
                self.outbox.leave(Note::Made(name));
            }
            thread::sleep(PAUSE);
        }
    }
}

fn serve(
    mut membership: Membership,
    mut asked: UnboundedReceiver<SyncSender<Answer>>,
    clock: Clock,
) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        membership.start();
        while let Some(answer) = asked.recv().await {
            let status = membership.node().status(clock.now());
            answer.send((status, thread_time())).expect("who asked");
        }
    });
}

fn config(folder: &Path, node: usize, addresses: [SocketAddr; 2]) -> Config {
    let (listen, peer) = (addresses[node], addresses[1 - node]);
    let text = format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['site.pem']\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n\
         [sessions]\ntable-entries = 1000000\n\
         [cluster]\nsecret = 'secret'\nnode = {}\nlisten = '{listen}'\npeers = ['{peer}']\n\
         [cluster.limits]\nentries-per-peer = 1000000\n",
        node + 1
    );
    let file = File::parse(&text).expect("the shape of the text is right");
    let world = World {
        base: folder,
        now: UnixTime::now(),
        ipv6: false,
        descriptors: 1 << 20,
        resolve: &|_| Ok(Vec::new()),
    };
    match prepare(&file, &world) {
        Ok(prepared) => prepared.config,
        Err(rejected) => panic!("{rejected}"),
    }
}

/// A configuration names its port, so two free ones are looked for.
fn free_addresses() -> [SocketAddr; 2] {
    let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.73.1:0").expect("a free port"));
    sockets.map(|socket| socket.local_addr().expect("its address"))
}

fn write_files(folder: &Path) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(["a.test".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let pem = certificate.pem() + &key.serialize_pem();
    std::fs::write(folder.join("site.pem"), pem).expect("a file");
    let text = base64::encode(&[7; 32]);
    file::create(&folder.join("secret"), &text).expect("a file");
}

/// Bytes of rustls' state for a TLS 1.2 session of a client without a certificate, with a server name.
const STATE: usize = 96;
const PAUSE: Duration = Duration::from_millis(1);
