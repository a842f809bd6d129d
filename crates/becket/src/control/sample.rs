//! A server that the tests of the admin pages look at: two listeners, three certificates, one
//! backend, and a reload that failed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_cluster::replica::{self, Boot, PeerState, PeerStatus, WarmUp};
use becket_cluster::stud::StudStatus;
use becket_cluster::{ClusterStatus, ConfiguredPeer, Numbers};
use becket_proto::session_table::SessionTable;
use becket_proto::ticket::{NodeId, SecretId};
use becket_sys::clock::Clock;
use rustls::crypto::aws_lc_rs as provider;
use rustls::sign::CertifiedKey;

use super::rotation::Rotation;
use super::snapshot::Reload;
use super::state::{MainProcess, Replication, State};
use crate::config::{
    Backend, ClientAuth, Config, Listener, Log, Policy, Route, Server, ServerAddress, Sessions,
    SocketOptions, Versions,
};
use crate::log::Timestamp;
use crate::pki::certificates::{CertificateMap, KeySet};
use crate::shared::Shared;
use becket_config::address::NamePattern;
use becket_config::choices::{LogFormat, UnknownNames};
use becket_config::listener::ListenMode;
use becket_config::process::{Limits, Process, Timeouts};

/// The server, of one worker.
pub(super) fn state() -> State {
    let config = Arc::new(config());
    let table = || Arc::new(SessionTable::new(Default::default(), Default::default()));
    let shared = Arc::new(Shared::new(1, Clock::start(), table(), table()));
    shared.backends.adopt(&config);
    let now = shared.clock.now();
    let rotation = Rotation::start(config.sessions.ticket_rotation, now).unwrap();
    let state = State::new(
        MainProcess {
            pid: 1,
            restarts: 2,
        },
        shared,
        config,
        &rotation,
        Replication::default(),
    );
    let errors = vec!["listener.web.bind: \"<b>\" is not an address".to_owned()];
    let time = Timestamp::from_unix(now.unix);
    state.set_reload(Reload { time, errors }, false);
    state
}

/// A live peer, and a name that does not resolve.
pub(super) fn cluster() -> ClusterStatus {
    let address = SocketAddr::from(([192, 0, 2, 1], 7443));
    ClusterStatus {
        replica: replica::Status {
            node: NodeId(2),
            boot: Boot(0x0123_4567_89ab_cdef),
            warm_up: WarmUp::Done,
            peers: vec![PeerStatus {
                name: None,
                address,
                state: PeerState::Live,
                node: NodeId(1),
                boot: Boot(0xfedc_ba98_7654_3210),
                secret: SecretId(0x0a0b_0c0d),
                peer_for: Duration::from_secs(60),
                heard_ago: Duration::from_millis(500),
                sessions_held: 7,
                entries: 3,
                sticks: 2,
                queued_bytes: 0,
                dumping: false,
                traffic: replica::Traffic::default(),
            }],
            unanswered: Vec::new(),
            collisions: Vec::new(),
            refused: Vec::new(),
            refused_left_out: 0,
            total: replica::Traffic::default(),
        },
        listen: SocketAddr::from(([192, 0, 2, 2], 7443)),
        multicast: None,
        secrets: vec![SecretId(0x0a0b_0c0d)],
        faults: Vec::new(),
        names: vec![ConfiguredPeer {
            name: "b.test:7443".into(),
            addresses: vec![address],
            ignored: 0,
            problem: Some("no such host".to_owned()),
        }],
        unknown_policies: Vec::new(),
        sessions: Numbers::default(),
    }
}

/// Sessions of stud and hitch, good and bad.
pub(super) fn stud() -> StudStatus {
    StudStatus {
        listen: ([10, 0, 0, 1], 8890).into(),
        receiving: true,
        datagrams: vec![("stored", 5), ("bad-seal", 2)],
    }
}

/// `web` has two named certificates, one of them its default; `other` has only a default.
pub(crate) fn config() -> Config {
    let named = key("example.org");
    let mut web = CertificateMap::new(set(Arc::clone(&named)));
    web.insert(NamePattern::Exact("example.org".to_owned()), named);
    let wildcard = NamePattern::Wildcard("example.net".to_owned());
    web.insert(wildcard, key("*.example.net"));
    let other = CertificateMap::new(set(key("other.example")));
    Config {
        file: Arc::default(),
        listeners: vec![listener("web", web), listener("other", other)],
        backends: vec![Arc::new(Backend::plain("app", vec![server()]))],
        limits: LIMITS,
        connections: 10,
        timeouts: TIMEOUTS,
        sessions: SESSIONS,
        admission: crate::config::Admission::default(),
        cluster: None,
        log: Log {
            level: "info".to_owned(),
            format: LogFormat::Text,
            file: None,
            access: None,
        },
        admin: None,
        process: Process {
            workers: None,
            pin: false,
            user: None,
            group: None,
            core_dumps: false,
            key_log: false,
        },
    }
}

fn server() -> Server {
    let address = ServerAddress::Tcp(([127, 0, 0, 1], 8080).into());
    Server::plain("localhost:8080", vec![address])
}

fn listener(name: &str, certificates: CertificateMap) -> Arc<Listener> {
    Arc::new(Listener {
        name: name.into(),
        mode: ListenMode::Tls,
        bind: vec![([127, 0, 0, 1], 8443).into()],
        socket: SocketOptions {
            backlog: 16,
            defer_accept: None,
            fast_open: None,
            keepalive: None,
            receive_buffer: None,
            send_buffer: None,
        },
        certificates: Arc::new(certificates),
        unknown_names: UnknownNames::Default,
        allow: None,
        deny: Default::default(),
        accept_proxy: None,
        cancel_requests: false,
        routes: vec![Route {
            names: vec![NamePattern::Wildcard("example.net".to_owned())],
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            alpn_only: false,
            alpn_mismatch: becket_config::choices::AlpnMismatch::Continue,
            policy: Some(Arc::new(Policy {
                name: name.into(),
                digest: [0xab; 32],
                versions: Versions {
                    tls12: true,
                    tls13: true,
                },
                suites: provider::DEFAULT_CIPHER_SUITES.to_vec(),
                groups: provider::DEFAULT_KX_GROUPS.to_vec(),
                client_auth: ClientAuth::Off,
                client_names: Vec::new(),
                revocation: Default::default(),
                verifier: None,
                require_ems: false,
                tls12_tickets: false,
                early_data: 0,
            })),
            backend: 0,
        }],
    })
}

fn set(key: Arc<CertifiedKey>) -> KeySet {
    let mut set = KeySet::default();
    set.insert(key);
    set
}

fn key(name: &str) -> Arc<CertifiedKey> {
    let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    let pair = rcgen::KeyPair::generate().unwrap();
    let leaf = params.self_signed(&pair).unwrap();
    let der = rustls_pki_types::PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
    let signer = provider::sign::any_supported_type(&der).unwrap();
    Arc::new(CertifiedKey::new(vec![leaf.der().clone()], signer))
}

const LIMITS: Limits = Limits {
    connections: None,
    handshakes: 10,
    client_hello: 16 * 1024,
    certificate_chain: 16 * 1024,
    chain_intermediates: 6,
    chain_same_subject: 2,
    accepts_per_turn: 1,
    handshakes_per_turn: 1,
    handshake_time_per_turn: Duration::from_millis(1),
    bytes_per_turn: 64 * 1024,
};

const TIMEOUTS: Timeouts = Timeouts {
    hello: Duration::from_secs(3),
    handshake: Duration::from_secs(10),
    connect: Duration::from_secs(5),
    idle: Duration::from_secs(600),
    half_closed: Duration::from_secs(60),
    drain_idle: Duration::from_secs(5),
    linger: Duration::from_secs(5),
    drain: Duration::from_secs(30),
};

const SESSIONS: Sessions = Sessions {
    table_entries: 200_000,
    table_bytes: 128 * 1024 * 1024,
    longest_ticket: 8 * 1024,
    id_lifetime: Duration::from_secs(300),
    ticket_rotation: Duration::from_secs(8 * 3600),
    max_age: Duration::from_secs(24 * 3600),
};
