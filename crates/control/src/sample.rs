//! Test data for the admin pages: a server with two listeners, three certificates, one backend, and
//! a failed reload.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use becket_cluster::replica::{self, Boot, PeerState, PeerStatus, WarmUp};
use becket_cluster::{ClusterStatus, ConfiguredPeer, SinkCounts};
use becket_config::address::NamePattern;
use becket_config::choices::DefaultCertificate;
use becket_config::{listener, policy};
use becket_proto::session_table::SessionTable;
use becket_proto::ticket::{NodeId, SecretId};
use becket_sys::clock::Clock;
use rustls::crypto::aws_lc_rs as provider;

use super::rotation::Rotation;
use super::state::{AdminState, MainProcess};
use super::status::ReloadOutcome;
use becket_keys::certificates::{CertificateMap, Listed};
use becket_keys::facts;
use becket_keys::issuers::IssuerTable;
use becket_keys::loaded::{Extras, HeldKey, Loaded, LoadedParts};
use becket_keys::signing::Offload;
use becket_keys::stored_key::{StoredKey, StoredKind};
use becket_log::Timestamp;
use becket_process::protocol::Restarts;
use becket_proxy::shared::SharedState;
use becket_tls::config::{Backend, Config, Listener, Policy, Route, Server, ServerAddress};
use becket_tls::trial::Trials;

pub(super) fn state() -> AdminState {
    let config = Arc::new(config());
    let table = || Arc::new(SessionTable::new(Default::default(), Default::default()));
    let shared = Arc::new(SharedState::new(1, Clock::start(), table(), table()));
    shared.backends.adopt(&config);
    let now = shared.clock.now();
    let rotation = Rotation::start(config.file.ticket_rotation(), now).unwrap();
    let main = MainProcess {
        pid: 1,
        restarts: Restarts {
            deaths: 2,
            upgrades: 1,
        },
    };
    let state = AdminState::new(main, shared, config, &rotation, None);
    let errors = vec!["listener.web.bind: \"<b>\" is not an address".to_owned()];
    let time = Timestamp::from_unix(now.unix);
    state.set_reload(ReloadOutcome { time, errors }, false);
    state
}

/// Returns a cluster status with one live peer, and one peer whose name does not resolve.
pub(super) fn cluster() -> ClusterStatus {
    let address = SocketAddr::from(([192, 0, 2, 1], 7443));
    ClusterStatus {
        replica: replica::ReplicaStatus {
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
                queued_bytes: 0,
                dumping: false,
                traffic: replica::PeerTraffic::default(),
            }],
            unanswered: Vec::new(),
            collisions: Vec::new(),
            refused: Vec::new(),
            refused_left_out: 0,
            total: replica::PeerTraffic::default(),
        },
        listen: SocketAddr::from(([192, 0, 2, 2], 7443)),
        secrets: vec![SecretId(0x0a0b_0c0d)],
        faults: Vec::new(),
        names: vec![ConfiguredPeer {
            name: "b.test:7443".into(),
            addresses: vec![address],
            ignored: 0,
            problem: Some("no such host".to_owned()),
        }],
        unknown_policies: Vec::new(),
        sessions: SinkCounts::default(),
    }
}

/// Returns a configuration with two listeners. `web` has two certificates with names, one of which
/// is the default; `other` has only a default.
pub(crate) fn config() -> Config {
    let map = |names: &[&[&str]]| {
        let certificates = (0..).zip(names).map(|(entry, names)| {
            let loaded = Arc::new(certificate(names));
            (Listed { entry, loaded }, None)
        });
        CertificateMap::of(certificates.collect(), DefaultCertificate::First).0
    };
    let web = map(&[&["example.org"], &["*.example.net"]]);
    let other = map(&[&[]]);
    Config {
        listeners: vec![listener("web", web), listener("other", other)],
        backends: vec![Arc::new(Backend::plain("app", vec![server()]))],
        connections: 10,
        ..Config::default()
    }
}

fn server() -> Server {
    let address = ServerAddress::Tcp(([127, 0, 0, 1], 8080).into());
    Server::plain("localhost:8080", vec![address])
}

fn listener(name: &str, certificates: CertificateMap) -> Arc<Listener> {
    let policy = policy::Policy::named(name);
    Arc::new(Listener {
        keys: listener::ListenerSection {
            name: policy.name.clone(),
            ..Default::default()
        },
        bind: vec![([127, 0, 0, 1], 8443).into()],
        certificates: Arc::new(certificates),
        allow: None,
        deny: Default::default(),
        trusted: Default::default(),
        on_demand: None,
        routes: vec![Route {
            keys: listener::Route {
                names: vec![NamePattern::Wildcard("example.net".to_owned())],
                ..Default::default()
            },
            is_of_certificate: false,
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            policy: Some(Arc::new(Policy {
                keys: policy,
                digest: [0xab; 32],
                contents: [0; 32],
                suites: provider::DEFAULT_CIPHER_SUITES.to_vec(),
                verifier: None,
                trial: Some(Trials::default().of(policy::Policy::named("web"), Vec::new())),
            })),
            backend: 0,
        }],
    })
}

fn certificate(names: &[&str]) -> Loaded {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    // A common name that is no server name.
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    let pair = rcgen::KeyPair::generate().unwrap();
    let signed = params.self_signed(&pair).unwrap();
    let der = rustls_pki_types::PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
    let parsed = facts::certificate(signed.der()).unwrap();
    let (file, issuers) = (Path::new("site.pem"), IssuerTable::default());
    let parts = LoadedParts {
        leaf: signed.der(),
        parsed: &parsed,
        shared: issuers.in_folder(file, &issuers.find(&[], b"").unwrap()),
        key: HeldKey::Stored(StoredKey::new(StoredKind::P256, &der)),
        offload: Offload::Pointless,
        file,
    };
    Loaded::new(parts, None, Extras::default())
}
