//! Two nodes in this process, and what they need of the environment.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use becket_cluster::{ClusterStatus, Membership, Outbox, SessionEvent};
use becket_config::file::File;
use becket_control::cluster;
use becket_prepare::resolver::HostResolver;
use becket_prepare::{Environment, ServerNames, prepare};
use becket_proto::session::{PolicyTag, Session, SessionName};
use becket_proto::session_table::{Limits, Lives, SessionTable};
use becket_proto::ticket::{Origin, OriginId};
use becket_proxy::shared::SharedState;
use becket_sys::clock::Clock;
use becket_sys::cpu::thread_time;
use becket_tls::config::Config;
use becket_tls::secret::{base64, file};
use rustls::pki_types::UnixTime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What control says of itself: the cluster, and the CPU time of its thread.
pub(crate) type Answer = (ClusterStatus, Duration);

/// A node with its control thread, which ends with the process.
pub(crate) struct Control {
    pub(crate) shared: Arc<SharedState>,
    pub(crate) policy: PolicyTag,
    outbox: Outbox,
    asks: UnboundedSender<SyncSender<Answer>>,
    /// Sessions that were made.
    made: AtomicU64,
}

impl Control {
    pub(crate) fn start(config: &Config) -> Self {
        let limits = Limits {
            entries: 1_000_000,
            ..Limits::default()
        };
        let table = || Arc::new(SessionTable::new(limits, Default::default()));
        let shared = Arc::new(SharedState::new(1, Clock::start(), table(), table()));
        let bound = cluster::bind(config, None).expect("a free port");
        let membership = cluster::membership(bound, config, &shared).expect("random bytes");
        let membership = membership.expect("a cluster");
        let outbox = membership.outboxes().remove(0);
        let (asks, asked) = unbounded_channel();
        let clock = shared.clock;
        thread::spawn(move || serve(membership, asked, clock));
        let digest = &config.listeners[0].routes[0]
            .policy
            .as_ref()
            .expect("TLS ends")
            .digest;
        Self {
            shared,
            policy: PolicyTag::from_digest(digest),
            outbox,
            asks,
            made: AtomicU64::new(0),
        }
    }

    pub(crate) fn ask(&self) -> Answer {
        let (answer, answered) = sync_channel(1);
        self.asks.send(answer).expect("control is there");
        answered.recv().expect("an answer")
    }

    /// Does what a worker does for each session by ID, at a rate.
    pub(crate) fn make_sessions(&self, time: Duration, rate: u64) {
        let clock = self.shared.clock;
        let (begun, before) = (clock.now().mono, self.made.load(Relaxed));
        loop {
            let now = clock.now();
            let past = now.mono - begun;
            if past >= time {
                return;
            }
            let due = before + (past.as_secs_f64() * rate as f64) as u64;
            for made in self.made.load(Relaxed) + 1..=due {
                let mut id = [0; 32];
                id[..8].copy_from_slice(&made.to_be_bytes());
                let session = Session::new(
                    vec![1; STATE],
                    Origin {
                        id: OriginId(made),
                        at: now.unix.into(),
                    },
                );
                let lives = Lives {
                    now: now.mono,
                    ttl: Duration::from_secs(300),
                };
                let table = &self.shared.table;
                table.insert(self.policy, &id, session, lives);
                let name = SessionName::new(self.policy, &id).expect("a name");
                self.outbox.leave(SessionEvent::Made(name));
            }
            self.made.store(due, Relaxed);
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

pub(crate) fn config(folder: &Path, node: usize, addresses: [SocketAddr; 2]) -> Config {
    let (listen, peer) = (addresses[node], addresses[1 - node]);
    let text = format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['site.pem']\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n\
         [sessions]\ntable-entries = 1000000\n\
         [cluster]\nsecret = 'secret'\nnode = {}\nlisten = '{listen}'\npeers = ['{peer}']\n\
         [cluster.limits]\nentries-per-peer = 20000000\n",
        node + 1
    );
    let file = File::parse(&text).expect("the shape of the text is right");
    let environment = Environment {
        base: folder,
        now: UnixTime::now(),
        ipv6: false,
        descriptors: 1 << 20,
        resolver: HostResolver::system(),
        server_names: ServerNames::Later,
        files: becket_keys::files::Files::default(),
        multibuffer: None,
        tokens: Default::default(),
        trials: Default::default(),
        running: None,
    };
    match prepare(&file, &environment) {
        Ok(prepared) => prepared.config,
        Err(rejected) => panic!("{rejected}"),
    }
}

/// A configuration names its port, so two free ones are looked for.
pub(crate) fn free_addresses() -> [SocketAddr; 2] {
    let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.73.1:0").expect("a free port"));
    sockets.map(|socket| socket.local_addr().expect("its address"))
}

pub(crate) fn write_files(folder: &Path) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(["a.test".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let pem = certificate.pem() + &key.serialize_pem();
    std::fs::write(folder.join("site.pem"), pem).expect("a file");
    let text = base64::encode(&[7; 32]);
    file::create(&folder.join("secret"), &text).expect("a file");
}

/// Bytes of rustls' state for a TLS 1.2 session of a client without a certificate, with a server name.
pub(crate) const STATE: usize = 96;
pub(crate) const PAUSE: Duration = Duration::from_millis(1);
