//! The server behind the demo: a small HTTP/1.1 server on loopback, on a thread of its own.
//!
//! `GET /` shows what becket said about the client in its PROXY header; `GET /bytes/N` streams N bytes, for measuring. Each connection
//! must begin with a header of version 2, which is read before axum gets the connection. The server exists so that the demo needs nothing
//! else.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Path};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::{IncomingStream, Listener};
use becket_log::Escaped;
use becket_proto::proxy_header::{Accept, Decoded, Endpoints, ProxyHeader, decode};
use http_body::{Frame, SizeHint};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

/// The running server; stops when it is dropped.
#[derive(Debug)]
pub struct DemoBackend {
    address: SocketAddr,
    /// Dropping it ends the server.
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl DemoBackend {
    /// Starts the server on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// No port, no thread, or no descriptors for its event loop.
    pub fn start() -> io::Result<Self> {
        let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = socket.local_addr()?;
        socket.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("demo-backend".to_owned());
        let thread = thread.spawn(move || {
            let ended = runtime.block_on(async {
                tokio::select! {
                    served = serve(socket) => served,
                    _ = stopped => Ok(()),
                }
            });
            if let Err(error) = ended {
                tracing::error!(%error, "demo backend ended");
            }
        })?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for DemoBackend {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic over there was already printed; the demo ends anyway.
        self.thread.take().map(JoinHandle::join);
    }
}

/// Facts about a client from the PROXY header, escaped for display.
#[derive(Clone, Debug, Default)]
struct ClientFacts {
    client: Option<String>,
    version: Option<String>,
    cipher: Option<String>,
    server_name: Option<String>,
    alpn: Option<String>,
}

impl From<&ProxyHeader<'_>> for ClientFacts {
    fn from(header: &ProxyHeader<'_>) -> Self {
        let tlvs = &header.tlvs;
        let ssl = tlvs.ssl.as_ref().filter(|ssl| ssl.is_tls);
        let text = |value: &str| Escaped::new(value).to_string();
        Self {
            client: match header.endpoints {
                Endpoints::Tcp { source, .. } => Some(source.to_string()),
                _ => None,
            },
            version: ssl.and_then(|ssl| ssl.version).map(text),
            cipher: ssl.and_then(|ssl| ssl.cipher).map(text),
            server_name: tlvs.authority.map(text),
            alpn: tlvs.alpn.map(|alpn| Escaped::new(alpn).to_string()),
        }
    }
}

/// Connections behind their headers.
struct ProxiedConnections(mpsc::Receiver<(TcpStream, ClientFacts)>);

impl Listener for ProxiedConnections {
    type Io = TcpStream;
    type Addr = ClientFacts;

    async fn accept(&mut self) -> (TcpStream, ClientFacts) {
        match self.0.recv().await {
            Some(connection) => connection,
            None => pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<ClientFacts> {
        Ok(ClientFacts::default())
    }
}

impl Connected<IncomingStream<'_, ProxiedConnections>> for ClientFacts {
    fn connect_info(stream: IncomingStream<'_, ProxiedConnections>) -> Self {
        stream.remote_addr().clone()
    }
}

async fn serve(socket: std::net::TcpListener) -> io::Result<()> {
    let mut listener = TcpListener::from_std(socket)?;
    let (sender, connections) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = Listener::accept(&mut listener).await;
            let sender = sender.clone();
            tokio::spawn(async move {
                if let Ok(facts) = read_header(&mut stream).await {
                    sender.send((stream, facts)).await.ok();
                }
            });
        }
    });
    let pages = Router::new()
        .route("/", get(home))
        .route("/bytes/{count}", get(bytes));
    let service = pages.into_make_service_with_connect_info::<ClientFacts>();
    axum::serve(ProxiedConnections(connections), service).await
}

/// Reads a header and not a byte more: 16 bytes, the last two of which are the length of the rest.
async fn read_header(stream: &mut TcpStream) -> io::Result<ClientFacts> {
    let mut bytes = vec![0; 16];
    stream.read_exact(&mut bytes).await?;
    let length = u16::from_be_bytes([bytes[14], bytes[15]]);
    bytes.resize(16 + usize::from(length), 0);
    stream.read_exact(&mut bytes[16..]).await?;
    match decode(&bytes, Accept::V2) {
        Decoded::Header { header, .. } => Ok(ClientFacts::from(&header)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn home(ConnectInfo(facts): ConnectInfo<ClientFacts>, headers: HeaderMap) -> Response {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let page = page(&facts, host);
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], page).into_response()
}

async fn bytes(Path(count): Path<String>) -> Response {
    let Ok(count) = count.parse() else {
        return (StatusCode::BAD_REQUEST, "/bytes/N needs a number\n").into_response();
    };
    let body = Body::new(Filler { left: count });
    ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response()
}

/// What `GET /` answers.
fn page(facts: &ClientFacts, host: Option<&str>) -> String {
    let said = |value: &Option<String>| value.clone().unwrap_or("(not said)".to_owned());
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "Hello from behind becket {version}.\n\
         \n\
         You spoke TLS to becket; becket spoke plain TCP to me. This is what it told me\n\
         about you in the PROXY header:\n\
         \n\
         \u{20}   client       {}\n\
         \u{20}   TLS version  {}\n\
         \u{20}   cipher       {}\n\
         \u{20}   server name  {}\n\
         \u{20}   ALPN         {}\n\
         \n\
         To move some bytes: https://{}/bytes/100000000\n",
        said(&facts.client),
        said(&facts.version),
        said(&facts.cipher),
        said(&facts.server_name),
        said(&facts.alpn),
        host.unwrap_or("localhost"),
    )
}

/// A body of so many dots, never in memory as a whole.
struct Filler {
    left: u64,
}

impl HttpBody for Filler {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let len = self.left.min(BLOCK.len() as u64);
        if len == 0 {
            return Poll::Ready(None);
        }
        self.left -= len;
        let block = Bytes::from_static(&BLOCK).slice(..len as usize);
        Poll::Ready(Some(Ok(Frame::data(block))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

static BLOCK: [u8; 64 * 1024] = [b'.'; 64 * 1024];
#[cfg(test)]
mod tests {
    use super::*;
    use becket_proto::proxy_header::{Endpoints, Format, ProxyHeader, SslTlv, Tlvs};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    fn connect(backend: &DemoBackend) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(backend.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        BufReader::new(stream)
    }

    fn ask(stream: &mut BufReader<TcpStream>, path: &str) {
        write!(stream.get_mut(), "GET {path} HTTP/1.1\r\nHost: a:1\r\n\r\n").unwrap();
    }

    /// Status line and body of one answer; the connection stays open.
    fn answer(stream: &mut BufReader<TcpStream>) -> (String, Vec<u8>) {
        let mut status = String::new();
        stream.read_line(&mut status).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        (status, body)
    }

    /// A header as becket sends it.
    fn header() -> Vec<u8> {
        let header = ProxyHeader {
            endpoints: Endpoints::tcp(
                "192.0.2.1:4711".parse().unwrap(),
                "192.0.2.2:443".parse().unwrap(),
            ),
            tlvs: Tlvs {
                authority: Some("www.example.org"),
                ssl: Some(SslTlv {
                    is_tls: true,
                    version: Some("TLSv1.3"),
                    ..SslTlv::default()
                }),
                ..Tlvs::default()
            },
        };
        let mut bytes = Vec::new();
        let format = Format::V2 { checksum: true };
        header.encode(format, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_page_tells_what_the_proxy_header_said() {
        let backend = DemoBackend::start().unwrap();
        let mut stream = connect(&backend);
        stream.get_mut().write_all(&header()).unwrap();
        for _ in 0..2 {
            ask(&mut stream, "/");
            let (status, body) = answer(&mut stream);
            let body = String::from_utf8(body).unwrap();
            assert_eq!(status, "HTTP/1.1 200 OK\r\n");
            for fact in [
                "192.0.2.1:4711",
                "TLSv1.3",
                "www.example.org",
                "https://a:1/bytes/",
            ] {
                assert!(body.contains(fact), "{fact} is not in {body}");
            }
        }
    }

    #[test]
    fn bytes_are_counted_exactly_on_a_connection_that_stays_open() {
        let backend = DemoBackend::start().unwrap();
        let mut stream = connect(&backend);
        stream.get_mut().write_all(&header()).unwrap();
        for count in [0, 1, 65_536, 65_537, 1_000_000] {
            ask(&mut stream, &format!("/bytes/{count}"));
            assert_eq!(answer(&mut stream).1.len(), count);
        }
        ask(&mut stream, "/bytes/x");
        assert!(answer(&mut stream).0.starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn garbage_and_a_broken_header_end_only_their_own_connection() {
        let backend = DemoBackend::start().unwrap();
        let mut broken = header();
        *broken.last_mut().unwrap() ^= 1;
        for bytes in [vec![0; 64], broken] {
            let mut stream = connect(&backend);
            stream.get_mut().write_all(&bytes).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).ok();
            assert!(!rest.starts_with(b"HTTP/1.1 200"));
        }
        let mut stream = connect(&backend);
        stream.get_mut().write_all(&header()).unwrap();
        ask(&mut stream, "/");
        assert!(answer(&mut stream).0.contains("200"));
    }

    #[test]
    fn a_backend_that_is_dropped_stops_listening() {
        let backend = DemoBackend::start().unwrap();
        let address = backend.address();
        drop(backend);
        assert!(TcpStream::connect(address).is_err());
    }
}
