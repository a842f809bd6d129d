//! One health check of a server: a connect, and optionally a TLS handshake and a request.
//!
//! A check runs on the control thread's runtime and never blocks it. The addresses of the server are tried in order,
//! each with the full timeout; the check passes at the first success.
//!
//! If servers expect a PROXY header, the check sends a header without an address: LOCAL, or UNKNOWN for version 1 and
//! for `proxy-header = "received"`. With `proxy-header = "ip"`, it sends the address 0.0.0.0.
//!
//! Only the status line of a response is read. [`MAX_READ`] limits the bytes that a server can send; the verifier
//! limits the server's certificate chain.
//!
//! Source: HAProxy's doc/proxy-protocol.txt section 2.2 (health checks), RFC 9112 section 3.2 (Host).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use becket_config::choices::{CheckKind, Introduction};
use becket_proto::http_status::Expected;
use becket_proto::proxy_header::{Endpoints, Format, ProxyHeader, Tlvs};
use becket_proto::starttls::{Asked, NoTls, Protocol, TlsRequest};
use becket_sys::clock::Clock;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ProtocolVersion};
use tokio::io::{
    self, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Join, ReadHalf, Take, WriteHalf,
};
use tokio::net::{TcpSocket, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use becket_proxy::backend::server_state::ServerState;
use becket_tls::chain;
use becket_tls::config::{Backend, Server, ServerAddress};
use becket_tls::server_rules::RuleVerifier;
use becket_tls::to_servers;

#[derive(Clone, Debug)]
pub struct Check {
    /// Addresses in the order in which they are tried.
    pub(super) addresses: Arc<[ServerAddress]>,
    /// Source addresses, of which the first in the address family of the server is used.
    sources: Arc<[IpAddr]>,
    proxy_header: Option<Introduction>,
    /// STARTTLS protocol of the server; `None` if TLS begins immediately.
    starttls: Option<Protocol>,
    /// TLS configuration and server name (SNI) of the handshake; `None` for plain TCP.
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// Request to send after the connect or handshake; `None` if the check sends none.
    request: Option<HealthRequest>,
    /// Timeout for each address.
    pub(super) timeout: Duration,
}

/// Request to a server, and the expected response.
#[derive(Clone, Debug)]
struct HealthRequest {
    bytes: Arc<[u8]>,
    /// Accepted HTTP status codes. With `None`, the response is ignored, and the check waits until
    /// the server closes the connection.
    expect: Option<Arc<[Expected]>>,
}

#[derive(Debug)]
pub struct ConnectedServer {
    /// Time for the connect and the TLS handshake together.
    pub took: Duration,
    pub version: Option<ProtocolVersion>,
    /// Certificate of the server; `None` without TLS.
    pub certificate: Option<CertificateDer<'static>>,
}

#[derive(Debug)]
pub enum Failure {
    Connect(io::Error),
    /// The server reset or closed the connection before its response was complete.
    Broken(io::Error),
    /// The server rejected the request to start TLS (STARTTLS, or the protocol's equivalent).
    NoTls(NoTls),
    Tls(rustls::Error),
    Status(u16),
    NotHttp,
    TimedOut(Duration),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "connect: {error}"),
            Self::Broken(error) => write!(f, "after connect: {error}"),
            Self::NoTls(why) => why.fmt(f),
            Self::Tls(error) => write!(f, "tls: {}", chain::explain(error)),
            Self::Status(status) => write!(f, "status {status}"),
            Self::NotHttp => f.write_str("the answer is not HTTP"),
            Self::TimedOut(time) => write!(f, "no answer within {time:?}"),
        }
    }
}

impl From<io::Error> for Failure {
    /// Converts an I/O error. If it contains a TLS error, the result is `Self::Tls`.
    fn from(error: io::Error) -> Self {
        match error.downcast() {
            Ok(fault) => Self::Tls(fault),
            // The text of the error is dropped, because it differs between the layers of the
            // stream.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Broken(error.kind().into())
            }
            Err(error) => Self::Broken(error),
        }
    }
}

impl Check {
    /// Returns the health check of a server, if one is configured.
    pub fn of(backend: &Backend, server: &Server) -> Option<Self> {
        let health = &backend.keys.health;
        let speaks_tls = match health.check {
            CheckKind::None => return None,
            CheckKind::Connect => false,
            CheckKind::Tls => true,
            CheckKind::Http => backend.tls.is_some(),
        };
        let request = || {
            let host = health.host.as_ref().map_or(&*server.name, |host| &host.0);
            // A unix socket's path is not valid in the Host header (RFC 9112, section 3.2).
            let is_path = host.starts_with('/');
            let host = if is_path { "localhost" } else { host };
            HealthRequest::get(&health.path.0, host, &health.expect)
        };
        Some(Self {
            addresses: server.addresses.clone().into(),
            sources: backend.keys.source.clone().into(),
            proxy_header: backend.keys.proxy_header,
            starttls: to_servers::starttls(backend),
            tls: speaks_tls.then(|| tls_of(backend, server)).flatten(),
            request: (health.check == CheckKind::Http).then(request),
            timeout: health.timeout,
        })
    }

    /// Returns a check that only connects and completes the TLS handshake, with the settings for
    /// connections of clients.
    pub fn connect(
        backend: &Backend,
        name: &Arc<str>,
        addresses: Arc<[ServerAddress]>,
        timeout: Duration,
    ) -> Self {
        let tls = backend.tls.as_ref();
        Self {
            addresses,
            sources: backend.keys.source.clone().into(),
            proxy_header: backend.keys.proxy_header,
            starttls: to_servers::starttls(backend),
            tls: tls.map(|tls| to_servers::for_check(tls, name, |_| true)),
            request: None,
            timeout,
        }
    }

    /// Returns a check that sends `what` and waits until the server closes the connection.
    pub fn send(
        backend: &Backend,
        server: &ServerState,
        what: &Arc<[u8]>,
        timeout: Duration,
    ) -> Self {
        Self {
            request: Some(HealthRequest {
                bytes: Arc::clone(what),
                expect: None,
            }),
            ..Self::connect(backend, server.name(), server.addresses(), timeout)
        }
    }

    /// Returns the check for one of the addresses only.
    pub fn at(self, address: &ServerAddress) -> Self {
        let addresses = [address.clone()].into();
        Self { addresses, ..self }
    }

    /// Returns whether the check does more than [`Self::connect`]: it sends a request, or uses TLS
    /// for a backend without TLS.
    pub fn asks_more(&self, backend: &Backend) -> bool {
        self.request.is_some() || self.tls.is_some() && backend.tls.is_none()
    }

    /// Runs the check.
    ///
    /// # Errors
    ///
    /// Returns the failure at the last address.
    pub async fn run(&self) -> Result<(), Failure> {
        let none = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let mut outcome = Err(Failure::Connect(none));
        for address in self.addresses.iter() {
            let late = |_| Err(Failure::TimedOut(self.timeout));
            let tried = timeout(self.timeout, self.try_at(address)).await;
            outcome = tried.unwrap_or_else(late);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Connects to the only address of this check, completes the handshake, and waits for an alert.
    /// In TLS 1.3, a server rejects a client certificate only after the handshake.
    ///
    /// # Errors
    ///
    /// Fails if the connect or the handshake fails, or if the server sends an alert.
    pub async fn try_connect(&self, clock: Clock) -> Result<ConnectedServer, Failure> {
        let begun = clock.mono();
        let late = Failure::TimedOut(self.timeout);
        let [address] = &*self.addresses else {
            return Err(Failure::Connect(io::ErrorKind::InvalidInput.into()));
        };
        let channel = timeout(self.timeout, self.reach(address));
        let channel = channel.await.unwrap_or(Err(late))?;
        let mut server = ConnectedServer {
            took: clock.mono().saturating_sub(begun),
            version: None,
            certificate: None,
        };
        if let Channel::Tls(mut stream) = channel {
            let (_, tls) = stream.get_ref();
            server.version = tls.protocol_version();
            let certificate = tls.peer_certificates().and_then(<[_]>::first);
            server.certificate = certificate.cloned().map(CertificateDer::into_owned);
            let alert = timeout(ALERT_TIMEOUT, wait_for_alert(&mut stream)).await;
            alert.unwrap_or(Ok(()))?;
        }
        Ok(server)
    }

    async fn try_at(&self, address: &ServerAddress) -> Result<(), Failure> {
        match (self.reach(address).await?, &self.request) {
            (_, None) => Ok(()),
            (Channel::Plain(stream), Some(request)) => request.ask(stream).await,
            (Channel::Tls(stream), Some(request)) => request.ask(stream).await,
        }
    }

    /// Connects, and sends the PROXY header and completes the TLS handshake if configured.
    async fn reach(&self, address: &ServerAddress) -> Result<Channel, Failure> {
        let socket = self.open(address).await.map_err(Failure::Connect)?;
        let (reader, writer) = io::split(socket);
        let mut stream = io::join(reader.take(MAX_READ), writer);
        if let Some(kind) = self.proxy_header {
            stream.write_all(&local(kind)).await?;
        }
        let Some((config, name)) = &self.tls else {
            return Ok(Channel::Plain(stream));
        };
        if let Some(protocol) = self.starttls {
            ask_for_tls(&mut stream, protocol).await?;
        }
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = connector.connect(name.clone(), stream).await?;
        Ok(Channel::Tls(Box::new(stream)))
    }

    async fn open(&self, address: &ServerAddress) -> io::Result<Box<dyn AnySocket>> {
        let address = match address {
            ServerAddress::Unix(path) => return Ok(Box::new(connect_unix(path).await?)),
            ServerAddress::Tcp(address) => *address,
        };
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        let mut sources = self.sources.iter();
        if let Some(source) = sources.find(|at| at.is_ipv4() == address.is_ipv4()) {
            becket_sys::socket::bind_no_port(&socket, *source)?;
        }
        Ok(Box::new(socket.connect(address).await?))
    }
}

impl HealthRequest {
    fn get(path: &str, host: &str, expect: &[Expected]) -> Self {
        let text = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: becket\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        Self {
            bytes: text.into_bytes().into(),
            expect: Some(expect.into()),
        }
    }

    async fn ask(&self, mut of: impl AsyncRead + AsyncWrite + Unpin) -> Result<(), Failure> {
        of.write_all(&self.bytes).await?;
        of.flush().await?;
        let Some(expect) = &self.expect else {
            // The error is ignored, because a server that resets the connection has received the
            // request.
            let _ended = io::copy(&mut of.take(MAX_IGNORED), &mut io::sink()).await;
            return Ok(());
        };
        let mut answer = Vec::new();
        loop {
            match status(&answer)? {
                Some(status) if expect.iter().any(|one| one.contains(status)) => return Ok(()),
                Some(status) => return Err(Failure::Status(status)),
                None => {}
            }
            if of.read_buf(&mut answer).await? == 0 {
                return Err(Failure::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// Returns the status code of a response, or `None` while its status line is incomplete.
fn status(answer: &[u8]) -> Result<Option<u16>, Failure> {
    let mut head = httparse::Response::new(&mut []);
    // Parsing stops at the headers, because `head` has no space for them. The error is ignored,
    // because only the status line is needed.
    let parsed = head.parse(answer);
    match (head.code.zip(head.reason), parsed) {
        (Some((status, _)), _) => Ok(Some(status)),
        (None, Ok(_)) if answer.len() < MAX_STATUS_LINE => Ok(None),
        (None, _) => Err(Failure::NotHttp),
    }
}

/// Sends `close_notify`, and reads until the connection ends. Fails only if the server sends an
/// alert.
async fn wait_for_alert(stream: &mut TlsStream<Stream>) -> Result<(), Failure> {
    // The error is ignored, because an alert that the server sent before closing can still be read.
    let _closed = stream.shutdown().await;
    let read = io::copy(stream, &mut io::sink()).await;
    match read.map_err(Failure::from) {
        Err(Failure::Tls(alert)) => Err(Failure::Tls(alert)),
        _ => Ok(()),
    }
}

/// Returns the TLS configuration of the backend. For a backend without TLS, returns a configuration
/// that accepts any certificate.
fn tls_of(backend: &Backend, server: &Server) -> Option<(Arc<ClientConfig>, ServerName<'static>)> {
    if let Some(tls) = &backend.tls {
        // An HTTP check sends HTTP/1.1, so it must not negotiate another protocol by ALPN.
        let may_offer =
            |alpn: &[u8]| backend.keys.health.check == CheckKind::Tls || alpn == b"http/1.1";
        return Some(to_servers::for_check(tls, &server.name, may_offer));
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(RuleVerifier::none(provider)))
        .with_no_client_auth();
    let host = server.host().map(|(host, _)| host);
    let name = host.and_then(|host| ServerName::try_from(host).ok());
    let none = || ServerName::from(Ipv4Addr::UNSPECIFIED);
    Some((Arc::new(config), name.unwrap_or_else(none)))
}

/// Runs the STARTTLS dialog, after which TLS begins.
async fn ask_for_tls(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    protocol: Protocol,
) -> Result<(), Failure> {
    let mut out = Vec::new();
    let mut request = TlsRequest::new(protocol, &mut out);
    let mut heard = [0; 1024];
    loop {
        stream.write_all(&out).await?;
        stream.flush().await?;
        out.clear();
        let length = stream.read(&mut heard).await?;
        let heard = heard.get(..length).filter(|heard| !heard.is_empty());
        let heard = heard.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
        match request.handle(heard, &mut out) {
            Asked::Waiting => {}
            Asked::Begin => return Ok(()),
            Asked::Not(why) => return Err(Failure::NoTls(why)),
        }
    }
}

/// Returns the PROXY header of a connection that becket opens for itself.
fn local(kind: Introduction) -> Vec<u8> {
    let format = match kind {
        Introduction::Ip => return vec![2, 0, 0, 0, 0],
        Introduction::V1 | Introduction::Received => Format::V1,
        Introduction::V2 => Format::V2,
    };
    let header = ProxyHeader {
        endpoints: Endpoints::Local,
        tlvs: Tlvs::default(),
    };
    let mut out = Vec::new();
    // Encoding fails only for long fields, and this header has no fields.
    let _never = header.encode(format, &mut out);
    out
}

/// Connects to a unix socket. Retries while its backlog is full, because a non-blocking connect(2)
/// then fails and no event reports free space.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RETRY).await,
            outcome => return outcome,
        }
    }
}

/// A connected stream socket, TCP or unix.
trait AnySocket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> AnySocket for S {}

/// A socket from which at most [`MAX_READ`] bytes can be read.
type Stream = Join<Take<ReadHalf<Box<dyn AnySocket>>>, WriteHalf<Box<dyn AnySocket>>>;

enum Channel {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

/// Maximum time to wait for an alert after the handshake.
pub const ALERT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between connects to a unix socket whose backlog is full.
const RETRY: Duration = Duration::from_millis(50);
/// Maximum number of bytes read from a server, more than a handshake and response headers need.
/// Prevents a server from sending empty TLS records endlessly.
const MAX_READ: u64 = 128 * 1024;
/// Maximum number of bytes read from a response that is ignored.
const MAX_IGNORED: u64 = 2048;
/// Maximum length of a status line in bytes.
const MAX_STATUS_LINE: usize = 512;

#[cfg(test)]
mod tests;
