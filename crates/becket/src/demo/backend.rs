//! The server behind the demo: a small HTTP/1.1 server on loopback, on a thread of its own.
//!
//! `GET /` tells how one got here; `GET /bytes/N` streams N bytes, for measuring. Connections stay open
//! between requests and are bounded by [`SLOTS`]; those beyond wait in the kernel's queue. It is here
//! so that the demo needs nothing else; becket itself never looks into HTTP.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Path};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body::{Frame, SizeHint};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::introduction::{Introduced, Introduction, Introductions};

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

async fn serve(socket: std::net::TcpListener) -> io::Result<()> {
    let introductions = Introductions::new(TcpListener::from_std(socket)?, SLOTS);
    let pages = Router::new()
        .route("/", get(home))
        .route("/bytes/{count}", get(bytes));
    let service = pages.into_make_service_with_connect_info::<Introduced>();
    axum::serve(introductions, service).await
}

async fn home(ConnectInfo(introduced): ConnectInfo<Introduced>, headers: HeaderMap) -> Response {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let page = page(&introduced.introduction(), host);
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
fn page(introduction: &Introduction, host: Option<&str>) -> String {
    let unsaid = "(not said)".to_owned();
    let said = |value: &Option<String>| value.clone().unwrap_or_else(|| unsaid.clone());
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
        said(&introduction.client),
        said(&introduction.version),
        said(&introduction.cipher),
        said(&introduction.server_name),
        said(&introduction.alpn),
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
/// Connections at a time: as many as a load tool would open on one machine.
const SLOTS: usize = 16 * 1024;

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
        let format = Format::V2 {
            checksum: true,
            padding: None,
        };
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
    fn a_header_in_pieces_that_ends_within_a_segment_of_the_request_is_taken_off() {
        let backend = DemoBackend::start().unwrap();
        let mut stream = connect(&backend);
        stream.get_mut().set_nodelay(true).unwrap();
        let mut bytes = header();
        bytes.extend_from_slice(b"GET /bytes/3 HTTP/1.1\r\nHost: a\r\n\r\n");
        for piece in bytes.chunks(7) {
            stream.get_mut().write_all(piece).unwrap();
        }
        assert_eq!(answer(&mut stream).1, b"...");
    }

    #[test]
    fn bytes_are_counted_exactly_on_a_connection_that_stays_open() {
        let backend = DemoBackend::start().unwrap();
        let mut stream = connect(&backend);
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
        for bytes in [b"\0\0\0\0\r\n\r\n".to_vec(), broken] {
            let mut stream = connect(&backend);
            stream.get_mut().write_all(&bytes).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).ok();
            assert!(!rest.starts_with(b"HTTP/1.1 200"));
        }
        let mut stream = connect(&backend);
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
