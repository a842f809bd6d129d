//! Provides TLS clients, and their messages as bytes that can be sent without a TLS client.

use std::fmt;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::compress::CertDecompressor;
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, KeyLog, RootCertStore};

use crate::sealer::Sealer;
use crate::servers::END;

/// Connects, sends `bytes`, and waits for an answer if `answered` is `true`. Then ends the stream
/// and waits until becket closes the connection. Returns the number of bytes sent.
pub(crate) fn exchange(to: SocketAddr, bytes: &[u8], answered: bool) -> usize {
    let mut stream = connect(to);
    // Ignore errors, because becket may reset the connection early.
    let _cut = stream.write_all(bytes);
    if answered {
        let _cut = stream.read(&mut [0]);
    }
    let _cut = stream.shutdown(Shutdown::Write);
    drain(stream);
    bytes.len()
}

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("becket listens");
    let set = stream.set_nodelay(true);
    set.and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
        .expect("a socket");
    stream
}

/// Connects, sends `bytes`, and ends the stream after the first part of the answer. Returns the
/// length of the answer.
pub(crate) fn answer(to: SocketAddr, bytes: &[u8]) -> usize {
    let mut stream = connect(to);
    stream.write_all(bytes).expect("becket reads");
    let begun = stream.read(&mut [0; 4096]).expect("becket answers");
    let _cut = stream.shutdown(Shutdown::Write);
    begun + drain(stream)
}

/// Reads until becket closes the connection. Returns the number of bytes.
fn drain(mut stream: TcpStream) -> usize {
    let (mut buffer, mut all) = ([0; 4096], 0);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        all += length;
    }
    all
}

pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

pub(crate) struct Kind {
    config: Arc<ClientConfig>,
    secrets: Arc<Secrets>,
}

impl Kind {
    /// Creates TLS 1.3 clients with AES-128-GCM and the given key exchange group. Clients with a
    /// certificate do not resume sessions.
    pub(crate) fn new(
        roots: &RootCertStore,
        group: &'static dyn SupportedKxGroup,
        identity: Option<Identity>,
    ) -> Self {
        let mut provider = default_provider();
        provider.cipher_suites = vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ];
        provider.kx_groups = vec![group];
        let builder = ClientConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_protocol_versions(&[&TLS13]).expect("TLS 1.3");
        let builder = builder.with_root_certificates(roots.clone());
        let shows = identity.is_some();
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .expect("a key that is supported"),
        };
        if shows {
            // A client that resumes sends no certificate, so each handshake must be full.
            config.resumption = Resumption::disabled();
        }
        let secrets = Arc::new(Secrets::default());
        config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
        config.enable_early_data = true;
        let config = Arc::new(config);
        Self { config, secrets }
    }

    /// Returns clients that accept certificates in these encodings.
    pub(crate) fn accepting(mut self, encodings: &[&'static dyn CertDecompressor]) -> Self {
        Arc::make_mut(&mut self.config).cert_decompressors = encodings.to_vec();
        self
    }

    /// Returns the first flight of the next client. If the client's session allows early data, the
    /// flight includes `early` bytes of it in pieces of `piece` bytes.
    pub(crate) fn first_flight(&self, early: usize, piece: usize) -> Vec<u8> {
        let mut tls = self.client();
        let mut flight = Vec::new();
        tls.write_tls(&mut flight).expect("a hello");
        for _ in 0..early / piece.max(1) {
            let mut writer = tls.early_data().expect("a session that admits some");
            writer.write_all(&vec![7; piece]).expect("within the limit");
        }
        while tls.wants_write() {
            tls.write_tls(&mut flight).expect("bytes in memory");
        }
        flight
    }

    /// Returns a connection on which one byte was echoed, and a sealer that encrypts its next
    /// records.
    pub(crate) fn established(&self, to: SocketAddr) -> (TcpStream, Sealer) {
        let (mut tls, mut stream) = (self.client(), connect(to));
        visit(&mut tls, &mut stream).expect("a handshake");
        let secret = self.secrets.0.lock().expect("no panic before").clone();
        (stream, Sealer::new(secret, 1))
    }

    /// Runs a connection until the server answers or rejects it. Returns the number of bytes sent.
    pub(crate) fn visit(&self, to: SocketAddr) -> usize {
        let mut stream = Counted(connect(to), 0);
        // Ignore errors, because becket rejects some of these clients.
        let _refused = visit(&mut self.client(), &mut stream);
        let _cut = stream.0.shutdown(Shutdown::Write);
        drain(stream.0);
        stream.1
    }

    fn client(&self) -> ClientConnection {
        let name = ServerName::try_from("a.test").expect("a name");
        let mut tls = ClientConnection::new(Arc::clone(&self.config), name).expect("a client");
        tls.set_buffer_limit(None);
        tls
    }
}

/// Returns the ClientHello of a client that supports only TLS 1.2.
pub(crate) fn old_hello(roots: &RootCertStore) -> Vec<u8> {
    let config = ClientConfig::builder_with_protocol_versions(&[&TLS12]);
    let config = config.with_root_certificates(roots.clone());
    let name = ServerName::try_from("a.test").expect("a name");
    let tls = ClientConnection::new(Arc::new(config.with_no_client_auth()), name);
    let mut hello = Vec::new();
    let written = tls.expect("a client").write_tls(&mut hello);
    written.expect("bytes in memory");
    hello
}

fn visit(tls: &mut ClientConnection, stream: &mut (impl Read + Write)) -> std::io::Result<()> {
    let mut stream = rustls::Stream::new(tls, stream);
    stream.write_all(&[END])?;
    stream.read_exact(&mut [0])
}

struct Counted(TcpStream, usize);

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let length = self.0.write(bytes)?;
        self.1 += length;
        Ok(length)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Key log that keeps the traffic secret of the newest client.
#[derive(Default)]
struct Secrets(Mutex<Vec<u8>>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if label == "CLIENT_TRAFFIC_SECRET_0" {
            *self.0.lock().expect("no panic before") = secret.to_vec();
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secrets")
    }
}

const PATIENCE: Duration = Duration::from_secs(30);
