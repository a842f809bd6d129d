//! A listener with generated certificates, and real TLS clients that connect to it.

use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::script::link::End;
use crate::script::net::Plan;
use crate::script::stage::Stage;
use becket_config::read::read;
use becket_control::rotation::Rotation;
use becket_multibuffer::Multibuffer;
use becket_prepare::resolver::HostResolver;
use becket_prepare::{Environment, LoadPurpose, prepare};
use becket_proto::close_reason::CloseReason;
use becket_proto::session_table::SessionTable;
use becket_proxy::backend::inbox::{Inbox, TestInbox};
use becket_proxy::backend::pool::Pool;
use becket_proxy::connection::listener::ListenerState;
use becket_sys::clock::Clock;
use becket_sys::clock::Now;
use becket_tls::config::Config;
use becket_tls::hello_router::HelloRouter;
use becket_tls::route_configs::RouteParts;
use rcgen::KeyPair;
use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

/// Listeners that share sessions, secrets and one backend, as in one worker.
pub(crate) struct House {
    pub(crate) config: Config,
    pub(crate) roots: RootCertStore,
    pub(crate) rotation: Rotation,
    pub(crate) table: Arc<SessionTable>,
    /// Folder of certificates and keys.
    pub(crate) folder: tempfile::TempDir,
    pub(crate) early: Arc<SessionTable>,
    pools: Rc<[Rc<Pool>]>,
    inbox: Arc<TestInbox>,
}

/// Returns the single listener and backend of most tests; `more` is added to the listener.
pub(crate) fn house(more: &str) -> House {
    House::new(&format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem', 'b.pem']\n{more}\n{BACKEND}"
    ))
}

/// A certificate for the same name as the first, with a key that is slow enough for crypto threads.
pub(crate) const COSTLY: &str = "costly.pem";

/// RSA with 2048 bits, twice; with 3072 bits; with 2048 bits and an exponent that no batch accepts.
pub(crate) const RSA: &str = "rsa.pem";
pub(crate) const OTHER_RSA: &str = "other-rsa.pem";
pub(crate) const LONG_RSA: &str = "long-rsa.pem";
pub(crate) const ODD_RSA: &str = "odd-rsa.pem";

/// ML-DSA-44, for the same name as the first.
pub(crate) const ML_DSA: &str = "ml-dsa.pem";

pub(crate) const BACKEND: &str = "[[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:81'\n\
     [[backend.server]]\naddress = '127.0.0.1:82'\n";

impl House {
    pub(crate) fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut roots = RootCertStore::empty();
        for (file, name) in [
            ("a.pem", "a.test"),
            ("b.pem", "*.b.test"),
            ("ca.pem", "ca.test"),
            (COSTLY, "a.test"),
            (RSA, "a.test"),
            (ML_DSA, "a.test"),
            (OTHER_RSA, "*.b.test"),
            (LONG_RSA, "long.test"),
            (ODD_RSA, "odd.test"),
            ("address.pem", "2001:db8::1"),
        ] {
            roots
                .add(write_certificate(&folder.path().join(file), name))
                .unwrap();
        }
        let reading = read(text, &Default::default());
        let environment = Environment {
            base: folder.path(),
            now: UnixTime::now(),
            ipv6: true,
            descriptors: 1 << 20,
            resolver: HostResolver::system(),
            purpose: LoadPurpose::Serve,
            files: becket_keys::files::Files::default(),
            // As on a processor with AVX-512 IFMA; the signatures are equal.
            multibuffer: Some(Multibuffer::portable()),
            tokens: Default::default(),
            trials: Default::default(),
            issuers: Default::default(),
            running: None,
        };
        let config =
            prepare(reading, &environment).unwrap_or_else(|rejected| panic!("{rejected:?}"));
        let config = config.config;
        let rotation = Rotation::start(config.file.ticket_rotation(), now()).unwrap();
        let pools = config.backends.iter();
        let inbox = Arc::new(TestInbox::default());
        let pools = pools
            .map(|one| {
                let inbox = Arc::clone(&inbox) as Arc<dyn Inbox>;
                Rc::new(Pool::lone(Arc::clone(one), inbox))
            })
            .collect();
        Self {
            config,
            roots,
            rotation,
            table: Arc::new(SessionTable::new(Default::default(), Default::default())),
            folder,
            early: Arc::new(SessionTable::new(Default::default(), Default::default())),
            pools,
            inbox,
        }
    }

    /// Returns the pool of a backend by its index in the file.
    pub(crate) fn pool(&self, backend: usize) -> &Pool {
        &self.pools[backend]
    }

    /// Returns a listener by its index in the file.
    pub(crate) fn listener(&self, listener: usize) -> Rc<ListenerState> {
        let parts = RouteParts {
            table: Arc::clone(&self.table),
            early: Arc::clone(&self.early),
            secrets: Arc::clone(self.rotation.secrets()),
            file: Arc::clone(&self.config.file),
            key_log: false,
            keys: Arc::default(),
            outbox: None,
        };
        let listener = Arc::clone(&self.config.listeners[listener]);
        let router = HelloRouter::new(listener, &parts).unwrap();
        Rc::new(ListenerState::new(router, Rc::clone(&self.pools)))
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage_of(64 * 1024)
    }

    pub(crate) fn stage_of(&self, capacity: usize) -> Stage {
        let (limits, timeouts) = (self.config.file.limits, self.config.file.timeouts.clone());
        let mut stage = Stage::new(limits, timeouts, now(), capacity);
        stage.inbox = Arc::clone(&self.inbox);
        stage
    }

    pub(crate) fn client(&self, version: &'static SupportedProtocolVersion) -> ClientConfig {
        let provider = Arc::new(aws_lc_rs::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth()
    }

    /// Returns a client after its handshake, and the stage with its server.
    pub(crate) fn relaying(&self, version: &'static SupportedProtocolVersion) -> (Stage, Client) {
        let mut stage = self.stage();
        let config = Arc::new(self.client(version));
        let mut client = Client::enter(&mut stage, self.listener(0), &config, "a.test");
        client.talk(&mut stage);
        assert!(!client.tls.is_handshaking(), "{:?}", stage.closed());
        assert_eq!(stage.net.dialled.len(), 1, "{:?}", stage.closed());
        (stage, client)
    }
}

pub(crate) fn without_tickets(mut config: ClientConfig) -> ClientConfig {
    config.resumption =
        Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
    config
}

#[expect(clippy::disallowed_methods, reason = "the one reading of a test")]
pub(crate) fn now() -> Now {
    Now {
        instant: std::time::Instant::now(),
        mono: Duration::from_secs(100),
        ..Clock::start().now()
    }
}

fn write_certificate(path: &Path, name: &str) -> CertificateDer<'static> {
    let key = key_of(path);
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    if name != "ca.test" {
        params.is_ca = rcgen::IsCa::NoCa;
        // Most certificates have different issuers, and can be compressed.
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let subject = &mut params.distinguished_name;
        subject.push(rcgen::DnType::CommonName, &*file);
        subject.push(rcgen::DnType::OrganizationName, "subject and issuer");
    }
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(path, certificate.pem() + &key.serialize_pem()).unwrap();
    certificate.der().clone()
}

fn key_of(path: &Path) -> KeyPair {
    macro_rules! rsa {
        ($name:literal) => {{
            let der = include_bytes!(concat!("../../../multibuffer/testdata/", $name, ".der"));
            KeyPair::try_from(der.as_slice())
        }};
    }
    let key = match path.file_name().and_then(|name| name.to_str()) {
        Some(RSA) => rsa!("rsa-2048"),
        Some(OTHER_RSA) => rsa!("rsa-2048-other"),
        Some(LONG_RSA) => rsa!("rsa-3072"),
        Some(ODD_RSA) => rsa!("rsa-2048-exponent-3"),
        Some(ML_DSA) => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_44),
        Some(COSTLY) => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        _ => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
    };
    key.unwrap()
}

/// A TLS client at its end of the stream.
pub(crate) struct Client {
    pub(crate) tls: ClientConnection,
    pub(crate) end: End,
    /// Plaintext received so far.
    pub(crate) received: Vec<u8>,
    /// First TLS error.
    pub(crate) fault: Option<rustls::Error>,
    /// The server's close_notify has arrived.
    pub(crate) closed: bool,
    /// Maximum number of bytes per read from the stream.
    pub(crate) bite: usize,
}

impl Client {
    /// Connects through a listener; servers accept.
    pub(crate) fn enter(
        stage: &mut Stage,
        listener: Rc<ListenerState>,
        config: &Arc<ClientConfig>,
        name: &str,
    ) -> Self {
        Self::enter_before(stage, listener, config, name, [Plan::Accept])
    }

    pub(crate) fn enter_before(
        stage: &mut Stage,
        listener: Rc<ListenerState>,
        config: &Arc<ClientConfig>,
        name: &str,
        plans: impl IntoIterator<Item = Plan>,
    ) -> Self {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self {
            tls: ClientConnection::new(Arc::clone(config), name).unwrap(),
            end: stage.admit(listener, plans),
            received: Vec::new(),
            fault: None,
            closed: false,
            bite: usize::MAX,
        }
    }

    /// Sends pending TLS bytes; `false` if the stream accepted none.
    pub(crate) fn flush(&mut self) -> bool {
        let mut moved = false;
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.end) {
                Ok(n) if n > 0 => moved = true,
                _ => break,
            }
        }
        moved
    }

    /// Reads one bite from the stream; `false` if nothing arrived.
    pub(crate) fn bite(&mut self) -> bool {
        let mut taken = std::io::Read::take(&mut self.end, self.bite as u64);
        let n = match self.tls.read_tls(&mut taken) {
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return false,
        };
        match self.tls.process_new_packets() {
            Ok(state) => {
                self.closed |= state.peer_has_closed();
                let mut plain = vec![0; state.plaintext_bytes_to_read()];
                std::io::Read::read_exact(&mut self.tls.reader(), &mut plain).unwrap();
                self.received.extend(plain);
            }
            Err(error) => drop(self.fault.get_or_insert(error)),
        }
        n > 0
    }

    /// Exchanges data until neither side has anything to send. Returns the close reason if the
    /// connection is closed.
    pub(crate) fn talk(&mut self, stage: &mut Stage) -> Option<CloseReason> {
        loop {
            let sent = self.flush();
            assert!(stage.settle(), "the connection does not come to rest");
            let mut bitten = false;
            while self.bite() {
                bitten = true;
            }
            if !sent && !bitten {
                return stage.closed();
            }
        }
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        std::io::Write::write_all(&mut self.tls.writer(), bytes).unwrap();
    }
}

/// Returns the bytes that the server has received since the last call; none if no server was
/// dialled.
pub(crate) fn server_got(stage: &mut Stage) -> Vec<u8> {
    let server = stage.net.dialled.last_mut();
    server.map_or(Vec::new(), |server| server.far.receive_all())
}

/// Sends `bytes` from the server; all of them fit.
pub(crate) fn server_says(stage: &mut Stage, bytes: &[u8]) {
    use std::io::Write;
    let server = &mut stage.net.dialled.last_mut().unwrap().far;
    server.write_all(bytes).unwrap();
}

/// Returns bytes that differ by position.
pub(crate) fn pattern(from: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at ^ (at >> 7) ^ (at >> 15)) as u8;
    (from..from + len).map(byte).collect()
}
