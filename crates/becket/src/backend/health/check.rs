//! One health check of one server: connect, and as much further as the configuration asks.
//!
//! Runs on control's runtime, so nothing here blocks, and nothing is read beyond a TLS handshake and a status line. Where
//! the servers expect a PROXY header, the check says that it speaks for itself (LOCAL; UNKNOWN in version 1), so that
//! no address is made up for it. The server's addresses are tried in order, as for clients; the first that passes
//! decides, each has the whole time.
//!
//! Source: HAProxy's doc/proxy-protocol.txt section 2.2 (health checks), RFC 9112 section 3.2 (Host).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::http_status::{Expected, Scan, scan};
use becket_proto::proxy_header::{Endpoints, Format, ProxyHeader, Tlvs};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use crate::clock::Clock;
use crate::config::{ProxyVersion, ServerAddress};
use crate::tls::chain;

/// What is done to find out whether a server is well.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In the order in which they are tried.
    pub addresses: Arc<[ServerAddress]>,
    /// Addresses to come from; the first of the right family is taken.
    pub sources: Arc<[IpAddr]>,
    /// The header that the server expects.
    pub proxy_header: Option<ProxyVersion>,
    /// A handshake, with the name to send; `None` speaks plain TCP.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// A request; `None` ends with the connect, or with the handshake.
    pub request: Option<Request>,
    /// For each address.
    pub timeout: Duration,
}

/// What is asked of a server that is connected.
#[derive(Clone, Debug)]
pub struct Request {
    /// As it is sent.
    pub bytes: Arc<[u8]>,
    /// Statuses of HTTP/1.1 by which a server is well; where nothing is expected, its end is awaited.
    pub expect: Option<Arc<[Expected]>>,
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
            Self::Tls(error) => write!(f, "tls: {}", chain::explain(error)),
            Self::Status(status) => write!(f, "status {status}"),
            Self::NotHttp => f.write_str("the answer is not HTTP"),
            Self::TimedOut(time) => write!(f, "no answer within {time:?}"),
        }
    }
}

impl Plan {
    /// Checks the server.
    ///
    /// # Errors
    ///
    /// What is wrong at the last address.
    pub async fn run(&self) -> Result<(), Failure> {
        let none = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let mut outcome = Err(Failure::Connect(none));
        for address in self.addresses.iter() {
            outcome = timeout(self.timeout, self.at(address))
                .await
                .unwrap_or(Err(Failure::TimedOut(self.timeout)));
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
        let took = clock.mono().saturating_sub(begun);
        let (mut version, mut certificate) = (None, None);
        if let Channel::Secure(mut secure) = channel {
            version = secure.tls.protocol_version();
            let chain = secure.tls.peer_certificates();
            certificate = chain.and_then(<[_]>::first).cloned();
            // A server that has nothing to say may be silent.
            let farewell = timeout(FAREWELL, secure.part()).await;
            farewell.unwrap_or(Ok(()))?;
        }
        Ok(Met {
            took,
            version,
            certificate: certificate.map(CertificateDer::into_owned),
        })
    }

    async fn at(&self, address: &ServerAddress) -> Result<(), Failure> {
        let mut channel = self.reach(address).await?;
        match &self.request {
            None => Ok(()),
            Some(request) => request.ask(&mut channel).await,
        }
    }

    /// Connects, and shakes hands where there is TLS.
    async fn reach(&self, address: &ServerAddress) -> Result<Channel, Failure> {
        let stream = self.connect(address).await.map_err(Failure::Connect)?;
        if let Some(version) = self.proxy_header {
            stream
                .send(&local(version))
                .await
                .map_err(Failure::Broken)?;
        }
        match &self.tls {
            None => Ok(Channel::Plain(stream)),
            Some((config, name)) => {
                let tls = ClientConnection::new(Arc::clone(config), name.clone());
                let mut secure = Secure {
                    stream,
                    tls: Box::new(tls.map_err(Failure::Tls)?),
                    left: MOST_SEALED,
                };
                secure.handshake().await?;
                Ok(Channel::Secure(secure))
            }
        }
    }

    async fn connect(&self, address: &ServerAddress) -> io::Result<Stream> {
        let address = match address {
            ServerAddress::Unix(path) => return connect_unix(path).await.map(Stream::Unix),
            ServerAddress::Tcp(address) => *address,
        };
        let socket = match address.is_ipv4() {
            true => TcpSocket::new_v4()?,
            false => TcpSocket::new_v6()?,
        };
        let mut sources = self.sources.iter();
        if let Some(source) = sources.find(|at| at.is_ipv4() == address.is_ipv4()) {
            becket_sys::socket::bind_no_port(&socket, *source)?;
        }
        socket.connect(address).await.map(Stream::Tcp)
    }
}

impl Request {
    /// A request for `path` at `host`.
    pub fn new(path: &str, host: &str, expect: &[Expected]) -> Self {
        let text = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: becket\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        Self {
            bytes: text.into_bytes().into(),
            expect: Some(expect.into()),
        }
    }

    async fn ask(&self, channel: &mut Channel) -> Result<(), Failure> {
        channel.send(&self.bytes).await?;
        let mut answer = Vec::new();
        let Some(expect) = &self.expect else {
            // A server that resets has heard it, too. None has an answer, so who goes on talking is not listened to.
            while answer.len() < CHUNK && matches!(channel.receive(&mut answer).await, Ok(1..)) {}
            return Ok(());
        };
        loop {
            match scan(&answer) {
                Scan::Status(status) if expect.iter().any(|one| one.contains(status)) => {
                    return Ok(());
                }
                Scan::Status(status) => return Err(Failure::Status(status)),
                Scan::NotHttp => return Err(Failure::NotHttp),
                Scan::Incomplete => {}
            }
            if channel.receive(&mut answer).await? == 0 {
                return Err(Failure::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// The header of a connection that is nobody's.
fn local(version: ProxyVersion) -> Vec<u8> {
    let format = match version {
        ProxyVersion::V1 => Format::V1,
        ProxyVersion::V2 => Format::V2 {
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

/// What a request goes through.
enum Channel {
    Plain(Stream),
    Secure(Secure),
}

impl Channel {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Plain(stream) => stream.send(bytes).await.map_err(Failure::Broken),
            Self::Secure(secure) => {
                io::Write::write_all(&mut secure.tls.writer(), bytes).map_err(Failure::Broken)?;
                secure.flush().await
            }
        }
    }

    /// Appends what comes next; 0 is the end.
    async fn receive(&mut self, out: &mut Vec<u8>) -> Result<usize, Failure> {
        match self {
            Self::Plain(stream) => stream.receive(out).await.map_err(Failure::Broken),
            Self::Secure(secure) => secure.receive(out).await,
        }
    }
}

/// A stream with TLS on it.
struct Secure {
    stream: Stream,
    tls: Box<ClientConnection>,
    /// What the server may still send.
    left: usize,
}

impl Secure {
    async fn handshake(&mut self) -> Result<(), Failure> {
        loop {
            self.flush().await?;
            if !self.tls.is_handshaking() {
                return Ok(());
            }
            if self.take_in().await?.is_none() {
                return Err(Failure::Broken(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Says that nothing comes, and listens until the end. Only an alert is held against the server.
    async fn part(&mut self) -> Result<(), Failure> {
        self.tls.send_close_notify();
        if self.flush().await.is_err() {
            return Ok(());
        }
        loop {
            match self.take_in().await {
                Ok(Some(_)) => {}
                Err(Failure::Tls(error)) => return Err(Failure::Tls(error)),
                Ok(None) | Err(_) => return Ok(()),
            }
        }
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        let mut out = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut out).map_err(Failure::Broken)?;
        }
        self.stream.send(&out).await.map_err(Failure::Broken)
    }

    async fn receive(&mut self, out: &mut Vec<u8>) -> Result<usize, Failure> {
        loop {
            match self.take_in().await? {
                None => return Ok(0),
                Some(0) => {}
                Some(waiting) => {
                    let start = out.len();
                    out.resize(start + waiting, 0);
                    let room = out.get_mut(start..).unwrap_or_default();
                    io::Read::read_exact(&mut self.tls.reader(), room).map_err(Failure::Broken)?;
                    return Ok(waiting);
                }
            }
        }
    }

    /// Reads once and processes it. Returns how much plaintext waits; nothing at the end.
    async fn take_in(&mut self) -> Result<Option<usize>, Failure> {
        let mut bytes = Vec::new();
        if self
            .stream
            .receive(&mut bytes)
            .await
            .map_err(Failure::Broken)?
            == 0
        {
            return Ok(None);
        }
        self.left = self.left.checked_sub(bytes.len()).ok_or_else(|| {
            Failure::Broken(io::Error::other("more TLS records than a check reads"))
        })?;
        let mut rest = bytes.as_slice();
        let mut waiting = 0;
        while !rest.is_empty() {
            self.tls.read_tls(&mut rest).map_err(Failure::Broken)?;
            let state = self.tls.process_new_packets().map_err(Failure::Tls)?;
            waiting = state.plaintext_bytes_to_read();
        }
        Ok(Some(waiting))
    }
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

/// A connected socket.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    async fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = match self {
                Self::Tcp(stream) => {
                    stream.writable().await?;
                    stream.try_write(bytes)
                }
                Self::Unix(stream) => {
                    stream.writable().await?;
                    stream.try_write(bytes)
                }
            };
            match sent {
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends what comes next, at most [`CHUNK`] bytes; 0 is the end.
    async fn receive(&self, out: &mut Vec<u8>) -> io::Result<usize> {
        let mut chunk = [0; CHUNK];
        loop {
            let received = match self {
                Self::Tcp(stream) => {
                    stream.readable().await?;
                    stream.try_read(&mut chunk)
                }
                Self::Unix(stream) => {
                    stream.readable().await?;
                    stream.try_read(&mut chunk)
                }
            };
            match received {
                Ok(n) => {
                    out.extend_from_slice(chunk.get(..n).unwrap_or_default());
                    return Ok(n);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// How long a server may take to say what it thinks of a handshake: it has no other use of the time.
pub const FAREWELL: Duration = Duration::from_secs(1);
/// Between two looks at a unix socket whose backlog is full.
const RETRY: Duration = Duration::from_millis(50);
/// Of all records of a server, the handshake included: a chain, and far more than the head of an answer. A server
/// could go on sending records that hold nothing, and each costs us more than it.
const MOST_SEALED: usize = 128 * 1024;
/// More than a status line, and small enough for the stack.
const CHUNK: usize = 2048;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::thread::{self, JoinHandle};

    use rustls::crypto::aws_lc_rs;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::{ServerConfig, ServerConnection};
    use tokio::net::UnixSocket;

    use super::*;
    use crate::config::{Onward, ServerAlpn, Sni};
    use crate::tls::to_servers::{Unverified, for_check};

    const PATIENCE: Duration = Duration::from_secs(20);

    fn plan(address: ServerAddress) -> Plan {
        Plan {
            addresses: Arc::new([address]),
            sources: Arc::new([]),
            proxy_header: None,
            tls: None,
            request: None,
            timeout: PATIENCE,
        }
    }

    fn http(address: ServerAddress) -> Plan {
        let expect = ["2xx".parse().unwrap()];
        Plan {
            request: Some(Request::new("/health?a=b", "app.test:80", &expect)),
            ..plan(address)
        }
    }

    fn run(plan: &Plan) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(plan.run())
    }

    /// A server of one connection: says `answer` when `asked` has come whole, and returns what came.
    fn server(asked: &'static [u8], answer: &'static [u8]) -> (ServerAddress, JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ServerAddress::Tcp(listener.local_addr().unwrap());
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            converse(&mut stream, asked, answer)
        };
        (address, thread::spawn(serve))
    }

    fn converse(stream: &mut (impl Read + Write), asked: &[u8], answer: &[u8]) -> Vec<u8> {
        let mut got = Vec::new();
        let mut byte = [0];
        while !got.ends_with(asked) && stream.read(&mut byte).is_ok_and(|n| n > 0) {
            got.extend(byte);
        }
        // In pieces, as networks do.
        for piece in answer.chunks(5) {
            // A check that has seen enough leaves.
            if stream.write_all(piece).is_err() {
                break;
            }
        }
        got
    }

    #[test]
    fn a_server_that_listens_passes_and_one_that_does_not_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        run(&plan(ServerAddress::Tcp(address))).unwrap();
        drop(listener);
        let failure = run(&plan(ServerAddress::Tcp(address))).unwrap_err();
        assert!(failure.to_string().contains("refused"), "{failure}");
    }

    #[test]
    fn the_first_address_that_passes_decides() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let good = ServerAddress::Tcp(listener.local_addr().unwrap());
        let bad = ServerAddress::Unix("/nowhere/at/all".into());
        let both = |addresses: [ServerAddress; 2]| Plan {
            addresses: Arc::new(addresses),
            ..plan(bad.clone())
        };
        run(&both([bad.clone(), good.clone()])).unwrap();
        run(&both([good, bad.clone()])).unwrap();
        assert!(run(&both([bad.clone(), bad.clone()])).is_err());
    }

    #[test]
    fn a_unix_socket_is_checked_too() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        run(&plan(ServerAddress::Unix(path))).unwrap();
    }

    #[test]
    fn a_server_that_talks_on_where_no_answer_is_due_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ServerAddress::Tcp(listener.local_addr().unwrap());
        let talking = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(&[0; CHUNK]).is_ok() {}
        });
        let plan = Plan {
            request: Some(Request {
                bytes: b"cancel".as_slice().into(),
                expect: None,
            }),
            ..plan(address)
        };
        run(&plan).unwrap();
        talking.join().unwrap();
    }

    #[test]
    fn an_http_status_decides() {
        let answers: [(&[u8], Option<&str>); 5] = [
            (b"HTTP/1.1 204 No Content\r\n\r\n", None),
            (b"HTTP/1.0 503 Sorry\r\n", Some("status 503")),
            (b"SSH-2.0-x\r\n", Some("the answer is not HTTP")),
            (b"HTTP/1.1 2", Some("after connect: unexpected end of file")),
            (b"", Some("after connect: unexpected end of file")),
        ];
        for (answer, expected) in answers {
            let (address, served) = server(b"\r\n\r\n", answer);
            let failure = run(&http(address)).err().map(|failure| failure.to_string());
            assert_eq!(failure.as_deref(), expected);
            let asked = String::from_utf8(served.join().unwrap()).unwrap();
            assert!(
                asked.starts_with("GET /health?a=b HTTP/1.1\r\nHost: app.test:80\r\n"),
                "{asked}"
            );
        }
    }

    #[test]
    fn a_server_that_is_silent_costs_the_time_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let plan = Plan {
            timeout: Duration::from_millis(50),
            ..http(ServerAddress::Tcp(listener.local_addr().unwrap()))
        };
        assert_eq!(run(&plan).unwrap_err().to_string(), "no answer within 50ms");
    }

    #[test]
    fn a_unix_socket_whose_backlog_is_full_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app");
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let socket = UnixSocket::new_stream().unwrap();
            socket.bind(&path).unwrap();
            // One connection waits, and the next would have to.
            let listener = socket.listen(0).unwrap();
            let _first = UnixStream::connect(&path).await.unwrap();
            let full = UnixStream::connect(&path).await.unwrap_err();
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
            let plan = plan(ServerAddress::Unix(path));
            let accepting = async { while listener.accept().await.is_ok() {} };
            tokio::select! {
                biased;
                outcome = plan.run() => outcome.unwrap(),
                () = accepting => panic!("nobody accepts any more"),
            }
        });
    }

    #[test]
    fn a_proxy_header_says_that_the_check_speaks_for_itself() {
        let v2 = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
        let v1 = b"PROXY UNKNOWN\r\n";
        for (version, header) in [(ProxyVersion::V2, &v2[..]), (ProxyVersion::V1, &v1[..])] {
            let (address, served) = server(b"close\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n");
            let plan = Plan {
                proxy_header: Some(version),
                ..http(address)
            };
            run(&plan).unwrap();
            let got = served.join().unwrap();
            assert!(got.starts_with(header), "{}", got.escape_ascii());
            assert!(got[header.len()..].starts_with(b"GET "));
        }
    }

    #[test]
    fn a_check_comes_from_the_source() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let source: IpAddr = "127.77.0.9".parse().unwrap();
        let plan = Plan {
            sources: Arc::new(["::1".parse().unwrap(), source]),
            ..plan(ServerAddress::Tcp(listener.local_addr().unwrap()))
        };
        run(&plan).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), source);
    }

    fn tls_server(answer: &'static [u8]) -> (ServerAddress, JoinHandle<()>) {
        tls_server_with(1, answer)
    }

    /// Shows its certificate so many times.
    fn tls_server_with(shown: usize, answer: &'static [u8]) -> (ServerAddress, JoinHandle<()>) {
        let made = rcgen::generate_simple_self_signed(["app.test".to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone(); shown], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ServerAddress::Tcp(listener.local_addr().unwrap());
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
            // A client that does not trust us leaves in the middle.
            let _left = tls.complete_io(&mut stream);
            if !answer.is_empty() {
                converse(
                    &mut rustls::Stream::new(&mut tls, &mut stream),
                    b"\r\n\r\n",
                    answer,
                );
            }
        };
        (address, thread::spawn(serve))
    }

    fn with_tls(plan: Plan, config: ClientConfig) -> Plan {
        let name = ServerName::try_from("app.test").unwrap();
        Plan {
            tls: Some((Arc::new(config), name)),
            ..plan
        }
    }

    fn client(trusts: bool) -> ClientConfig {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        match trusts {
            true => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unverified(provider)))
                .with_no_client_auth(),
            false => builder
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth(),
        }
    }

    #[test]
    fn a_server_with_too_much_of_a_chain_fails_for_that() {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let onward = |most_chain| Onward {
            client: client(true),
            verifier: Arc::new(Unverified(Arc::clone(&provider))),
            verify: true,
            lists: 0,
            most_chain,
            name: Some(ServerName::try_from("app.test").unwrap()),
            sni: Sni::Own,
            alpn: ServerAlpn::Fixed(Vec::new()),
        };
        let kib = 1024;
        for (shown, most, fault) in [
            (1, 16 * kib, None),
            (8, 16 * kib, Some("7 intermediate certificates")),
            (8, kib, Some("limits.certificate-chain is 1024")),
            // More than rustls takes as one message.
            (400, 16 * kib, Some("HandshakePayloadTooLarge")),
        ] {
            let (address, served) = tls_server_with(shown, b"");
            let plan = Plan {
                tls: Some(for_check(&onward(most), &"app".into(), |_| true)),
                ..plan(address)
            };
            let said = run(&plan).err().map(|failure| failure.to_string());
            match fault {
                None => assert_eq!(said, None),
                Some(fault) => assert!(
                    said.as_ref().is_some_and(|said| said.contains(fault)),
                    "{said:?}"
                ),
            }
            served.join().unwrap();
        }
    }

    #[test]
    fn a_handshake_decides_and_so_does_the_status_behind_it() {
        let (address, served) = tls_server(b"");
        run(&with_tls(plan(address), client(true))).unwrap();
        served.join().unwrap();
        let (address, served) = tls_server(b"HTTP/1.1 200 OK\r\n\r\n");
        run(&with_tls(http(address), client(true))).unwrap();
        served.join().unwrap();
        let (address, served) = tls_server(b"HTTP/1.1 500 Oh\r\n\r\n");
        let failure = run(&with_tls(http(address), client(true))).unwrap_err();
        assert_eq!(failure.to_string(), "status 500");
        served.join().unwrap();
    }

    #[test]
    fn a_server_that_is_not_trusted_or_speaks_no_tls_fails() {
        let (address, served) = tls_server(b"");
        let failure = run(&with_tls(plan(address), client(false))).unwrap_err();
        assert!(matches!(failure, Failure::Tls(_)), "{failure}");
        served.join().unwrap();
        let (address, served) = server(b"", b"220 mail.test ready\r\n");
        let failure = run(&with_tls(plan(address), client(true))).unwrap_err();
        assert!(matches!(failure, Failure::Tls(_)), "{failure}");
        served.join().unwrap();
    }
}
