//! One health check of one server: connect, and as much further as the configuration asks.
//!
//! Runs on control's runtime, so nothing here blocks, and nothing is read beyond a TLS handshake and a status line. Where
//! the servers expect a PROXY header, the check says that it speaks for itself (LOCAL; UNKNOWN in version 1, and where they get
//! the headers of others), so that no address is made up for it. Where they expect an address, that is 0.0.0.0. The server's addresses are tried in order, as for clients; the first that passes
//! decides, each has the whole time. Chains of servers are bounded by the verifier of the TLS configuration, before
//! webpki sees them; all that a server sends is bounded by [`MOST_READ`].
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

use crate::backend::server_state::ServerState;
use becket_tls::chain;
use becket_tls::config::{Backend, Server, ServerAddress};
use becket_tls::server_rules::RuleVerifier;
use becket_tls::to_servers;

/// What is done to find out whether a server is well.
#[derive(Clone, Debug)]
pub struct Check {
    /// In the order in which they are tried.
    pub(super) addresses: Arc<[ServerAddress]>,
    /// Addresses to come from; the first of the right family is taken.
    sources: Arc<[IpAddr]>,
    /// What the server expects first.
    proxy_header: Option<Introduction>,
    /// The protocol in which TLS is asked for; `None` begins with it.
    starttls: Option<Protocol>,
    /// A handshake, with the name to send; `None` speaks plain TCP.
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// A request; `None` ends with the connect, or with the handshake.
    request: Option<Request>,
    /// For each address.
    pub(super) timeout: Duration,
}

/// What is asked of a server that is connected.
#[derive(Clone, Debug)]
struct Request {
    bytes: Arc<[u8]>,
    /// Statuses of HTTP/1.1 by which a server is well; where nothing is expected, its end is awaited.
    expect: Option<Arc<[Expected]>>,
}

/// What a server showed of itself.
#[derive(Debug)]
pub struct Met {
    /// To connect, and for TLS.
    pub took: Duration,
    /// Of TLS; absent where it speaks plain TCP.
    pub version: Option<ProtocolVersion>,
    /// Its own certificate, as verified as the configuration wants it.
    pub certificate: Option<CertificateDer<'static>>,
}

/// Why a server is not well.
#[derive(Debug)]
pub enum Failure {
    /// It cannot be connected.
    Connect(io::Error),
    /// It does not take what is sent, or ends before it has answered.
    Broken(io::Error),
    /// It does not begin TLS when it is asked for it in clear.
    NoTls(NoTls),
    /// TLS fails.
    Tls(rustls::Error),
    /// Another status than those that are expected.
    Status(u16),
    /// It does not speak HTTP.
    NotHttp,
    /// It took too long.
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
    /// What went wrong on a connection; a fault of TLS comes wrapped.
    fn from(error: io::Error) -> Self {
        match error.downcast() {
            Ok(fault) => Self::Tls(fault),
            // Each layer has other words for it.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Broken(error.kind().into())
            }
            Err(error) => Self::Broken(error),
        }
    }
}

impl Check {
    /// The health check of a server; nothing where there is none.
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
            // A unix socket has a path, which is no host (RFC 9112, section 3.2).
            let is_path = host.starts_with('/');
            let host = if is_path { "localhost" } else { host };
            Request::get(&health.path.0, host, &health.expect)
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

    /// A connect as for a client.
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

    /// A connection of its own by which a server is told something.
    pub fn tell(
        backend: &Backend,
        server: &ServerState,
        what: &Arc<[u8]>,
        timeout: Duration,
    ) -> Self {
        Self {
            request: Some(Request {
                bytes: Arc::clone(what),
                expect: None,
            }),
            ..Self::connect(backend, server.name(), server.addresses(), timeout)
        }
    }

    /// The same at one address.
    pub fn at(self, address: &ServerAddress) -> Self {
        let addresses = [address.clone()].into();
        Self { addresses, ..self }
    }

    /// Whether it proves more of a server than a connect as for a client.
    pub fn asks_more(&self, backend: &Backend) -> bool {
        self.request.is_some() || self.tls.is_some() && backend.tls.is_none()
    }

    /// Checks the server.
    ///
    /// # Errors
    ///
    /// What is wrong at the last address.
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

    /// Connects to the one address, as far as a handshake, and hears what the server thinks of it: in TLS
    /// 1.3 one that refuses our certificate, or misses it, says so only behind the handshake.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub async fn meet(&self, clock: Clock) -> Result<Met, Failure> {
        let begun = clock.mono();
        let late = Failure::TimedOut(self.timeout);
        let [address] = &*self.addresses else {
            return Err(Failure::Connect(io::ErrorKind::InvalidInput.into()));
        };
        let channel = timeout(self.timeout, self.reach(address));
        let channel = channel.await.unwrap_or(Err(late))?;
        let mut met = Met {
            took: clock.mono().saturating_sub(begun),
            version: None,
            certificate: None,
        };
        if let Channel::Tls(mut stream) = channel {
            let (_, tls) = stream.get_ref();
            met.version = tls.protocol_version();
            let certificate = tls.peer_certificates().and_then(<[_]>::first);
            met.certificate = certificate.cloned().map(CertificateDer::into_owned);
            // A server that has nothing to say may be silent.
            let farewell = timeout(FAREWELL, part(&mut stream)).await;
            farewell.unwrap_or(Ok(()))?;
        }
        Ok(met)
    }

    async fn try_at(&self, address: &ServerAddress) -> Result<(), Failure> {
        match (self.reach(address).await?, &self.request) {
            (_, None) => Ok(()),
            (Channel::Plain(stream), Some(request)) => request.ask(stream).await,
            (Channel::Tls(stream), Some(request)) => request.ask(stream).await,
        }
    }

    /// Connects, and shakes hands where there is TLS.
    async fn reach(&self, address: &ServerAddress) -> Result<Channel, Failure> {
        let socket = self.open(address).await.map_err(Failure::Connect)?;
        let (reader, writer) = io::split(socket);
        let mut stream = io::join(reader.take(MOST_READ), writer);
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

    async fn open(&self, address: &ServerAddress) -> io::Result<Box<dyn Socket>> {
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

impl Request {
    /// A request for `path` at `host`.
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
            // A server that resets has heard it, too. It owes no answer: one that goes on talking is not listened to.
            let _heard = io::copy(&mut of.take(MOST_HEARD), &mut io::sink()).await;
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

/// The status of an answer whose first line has come whole; nothing before that.
fn status(answer: &[u8]) -> Result<Option<u16>, Failure> {
    let mut head = httparse::Response::new(&mut []);
    // What is behind the first line does not fit, and need not be well.
    let parsed = head.parse(answer);
    match (head.code.zip(head.reason), parsed) {
        (Some((status, _)), _) => Ok(Some(status)),
        (None, Ok(_)) if answer.len() < MOST_LINE => Ok(None),
        (None, _) => Err(Failure::NotHttp),
    }
}

/// Says that nothing comes, and listens until the end. Only an alert is held against the server.
async fn part(stream: &mut TlsStream<Stream>) -> Result<(), Failure> {
    // A server that is gone already may have said why.
    let _gone = stream.shutdown().await;
    let heard = io::copy(stream, &mut io::sink()).await;
    match heard.map_err(Failure::from) {
        Err(Failure::Tls(alert)) => Err(Failure::Tls(alert)),
        _ => Ok(()),
    }
}

/// As clients are connected; where they come in plain, any certificate will do.
fn tls_of(backend: &Backend, server: &Server) -> Option<(Arc<ClientConfig>, ServerName<'static>)> {
    if let Some(tls) = &backend.tls {
        // Others would be spoken in place of what is asked.
        let speaks =
            |alpn: &[u8]| backend.keys.health.check == CheckKind::Tls || alpn == b"http/1.1";
        return Some(to_servers::for_check(tls, &server.name, speaks));
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

/// Asks a server for TLS in clear.
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

/// What introduces a connection that is nobody's.
fn local(kind: Introduction) -> Vec<u8> {
    let format = match kind {
        Introduction::Ip => return vec![2, 0, 0, 0, 0],
        Introduction::V1 | Introduction::Received => Format::V1,
        Introduction::V2 => Format::V2 {
            checksum: false,
            padding: None,
        },
    };
    let header = ProxyHeader {
        endpoints: Endpoints::Local,
        tlvs: Tlvs::default(),
    };
    let mut out = Vec::new();
    // Only what a header cannot hold is refused, and this one holds nothing.
    let _never = header.encode(format, &mut out);
    out
}

/// Waits for room in the backlog, as clients are made to: connect(2) does not, and nobody tells when there is some.
async fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RETRY).await,
            outcome => return outcome,
        }
    }
}

/// A connected socket, of whatever family.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// A socket from which no more than [`MOST_READ`] bytes come.
type Stream = Join<Take<ReadHalf<Box<dyn Socket>>>, WriteHalf<Box<dyn Socket>>>;

/// What a request goes through.
enum Channel {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

/// How long a server may take to say what it thinks of a handshake: it has no other use of the time.
pub const FAREWELL: Duration = Duration::from_secs(1);
/// Between two looks at a unix socket whose backlog is full.
const RETRY: Duration = Duration::from_millis(50);
/// Of all that a server sends, the handshake included: a chain, and far more than the head of an answer. A server
/// could go on sending TLS records that hold nothing, and each costs us more than it.
const MOST_READ: u64 = 128 * 1024;
/// Of a server that owes no answer.
const MOST_HEARD: u64 = 2048;
/// Bytes of a status line that are waited for: the longest that somebody sends is a sentence.
const MOST_LINE: usize = 512;

#[cfg(test)]
mod tests;
