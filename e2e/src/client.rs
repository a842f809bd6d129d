//! A scripted TLS client: rustls over a socket that the test can also manipulate.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};
use socket2::{Domain, Socket, Type};

use crate::pki::Bundle;
use crate::place::Place;
use crate::time::PATIENCE;

/// Request that most clients send.
pub const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// TLS configuration of clients: root certificates, an own certificate, and stored sessions. Clones share the sessions.
#[derive(Clone, Debug)]
pub struct Trust(pub Arc<ClientConfig>);

impl Trust {
    /// Creates a configuration for TLS 1.2 and 1.3 without an own certificate.
    pub fn new(place: &Place) -> Self {
        Self::with(place, rustls::ALL_VERSIONS, None)
    }

    pub fn only(place: &Place, version: &'static SupportedProtocolVersion) -> Self {
        Self::with(place, &[version], None)
    }

    /// Creates a configuration for TLS 1.3 with X25519MLKEM768 as the preferred group.
    pub fn post_quantum(place: &Place) -> Self {
        let mut provider = aws_lc_rs::default_provider();
        provider
            .kx_groups
            .insert(0, aws_lc_rs::kx_group::X25519MLKEM768);
        Self::built(place, &[&TLS13], None, provider)
    }

    /// Creates a configuration with these versions and an optional own certificate.
    pub fn with(
        place: &Place,
        versions: &[&'static SupportedProtocolVersion],
        own: Option<&Bundle>,
    ) -> Self {
        Self::built(place, versions, own, aws_lc_rs::default_provider())
    }

    /// Returns a configuration for each method of resumption, named as in the access log. Clients with the same configuration share
    /// sessions by server name.
    pub fn ways(place: &Place, own: Option<&Bundle>) -> [(&'static str, Self); 3] {
        let by = |version| Self::with(place, &[version], own);
        [
            ("psk", by(&TLS13)),
            ("ticket", by(&TLS12)),
            ("id", by(&TLS12).without_tickets()),
        ]
    }

    /// Opens a connection, sends a request, and returns the response.
    ///
    /// # Errors
    /// Any error before the response is complete.
    pub fn visit(&self, at: SocketAddr) -> io::Result<Vec<u8>> {
        Client::connect(at, self)?.ask(REQUEST)
    }

    fn built(
        place: &Place,
        versions: &[&'static SupportedProtocolVersion],
        own: Option<&Bundle>,
        provider: CryptoProvider,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(place.authority.pem().as_bytes());
        roots.add(root.expect("a certificate")).expect("a root");
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = CertificateDer::pem_slice_iter(own.certificate.as_bytes());
                let chain = chain.collect::<Result<_, _>>().expect("certificates");
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes());
                builder
                    .with_client_auth_cert(chain, key.expect("a key"))
                    .expect("a pair")
            }
        };
        Self(Arc::new(config))
    }

    /// Returns a changed copy of the configuration. The copy shares the sessions.
    #[must_use]
    pub fn changed(&self, change: impl FnOnce(&mut ClientConfig)) -> Self {
        let mut config = (*self.0).clone();
        change(&mut config);
        Self(Arc::new(config))
    }

    #[must_use]
    pub fn alpn(&self, protocols: &[&str]) -> Self {
        let offers = protocols
            .iter()
            .map(|protocol| protocol.as_bytes().to_vec());
        self.changed(|config| config.alpn_protocols = offers.collect())
    }

    /// Restricts resumption in TLS 1.2 to session IDs, with a new empty session store.
    #[must_use]
    pub fn without_tickets(&self) -> Self {
        self.changed(|config| {
            config.resumption =
                Resumption::in_memory_sessions(64).tls12_resumption(Tls12Resumption::SessionIdOnly);
        })
    }
}

#[derive(Debug)]
pub struct Client {
    pub tls: ClientConnection,
    pub socket: TcpStream,
}

impl Client {
    /// Connects and completes the handshake for `www.example.org`.
    pub fn connect(address: SocketAddr, trust: &Trust) -> io::Result<Self> {
        Self::connect_as(address, trust, "www.example.org")
    }

    /// Connects and completes the handshake for another name.
    pub fn connect_as(address: SocketAddr, trust: &Trust, name: &str) -> io::Result<Self> {
        let mut client = Self::begin(address, trust, name)?;
        client.handshake()?;
        Ok(client)
    }

    /// Completes the handshake.
    pub fn handshake(&mut self) -> io::Result<()> {
        while self.tls.is_handshaking() {
            self.tls.complete_io(&mut self.socket)?;
        }
        Ok(())
    }

    /// Connects the socket. The test makes the handshake.
    pub fn begin(address: SocketAddr, trust: &Trust, name: &str) -> io::Result<Self> {
        Self::over(TcpStream::connect_timeout(&address, PATIENCE)?, trust, name)
    }

    /// Connects the socket from this source address. The test makes the handshake for `www.example.org`.
    pub fn begin_from(from: Ipv4Addr, address: SocketAddr, trust: &Trust) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect_timeout(&address.into(), PATIENCE)?;
        Self::over(socket.into(), trust, "www.example.org")
    }

    fn over(socket: TcpStream, trust: &Trust, name: &str) -> io::Result<Self> {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let tls = ClientConnection::new(Arc::clone(&trust.0), name).map_err(io::Error::other)?;
        Ok(Self { tls, socket })
    }

    /// Sends close_notify only.
    pub fn close_notify(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    /// Sends a request and returns all data until close_notify.
    pub fn ask(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.write_all(request)?;
        let mut answer = Vec::new();
        self.read_to_end(&mut answer)?;
        Ok(answer)
    }

    /// Closes the connection with RST.
    pub fn reset(self) {
        reset(self.socket);
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        rustls::Stream::new(&mut self.tls, &mut self.socket).read(buffer)
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = rustls::Stream::new(&mut self.tls, &mut self.socket).write(bytes)?;
        self.flush()?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        rustls::Stream::new(&mut self.tls, &mut self.socket).flush()
    }
}

/// Closes a socket with RST.
pub fn reset(socket: TcpStream) {
    let socket = Socket::from(socket);
    socket
        .set_linger(Some(std::time::Duration::ZERO))
        .expect("SO_LINGER");
}

/// Returns all bytes until the end, and how the stream ended.
pub fn read_to_end(from: &mut impl Read) -> (Vec<u8>, io::Result<()>) {
    let mut bytes = Vec::new();
    let end = from.read_to_end(&mut bytes);
    (bytes, end.map(drop))
}
