//! The PROXY header in front of a connection: how the demo backend learns who its client is.
//!
//! A backend behind a TLS terminator sees plain HTTP from the terminator's address. What was agreed on
//! in TLS comes in the PROXY header, version 2, which becket sends first. [`Introductions`] takes it
//! off each connection as its first bytes are read, and keeps it where the page finds it.
//!
//! A connection without a header is served too, so that one can look at the backend directly. A
//! real backend must not do that (section 5 of the specification): here nothing but a page
//! depends on it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use becket_proto::proxy_header::{
    Accept, Decoded, Endpoints, MAX_V2_BYTES, ProxyHeader, Refusal, decode,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use becket_log::Escaped;

/// What becket said about a connection, escaped for display; `None` is what it did not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// Address and port of the client.
    pub client: Option<String>,
    /// TLS version.
    pub version: Option<String>,
    /// Cipher suite.
    pub(crate) cipher: Option<String>,
    /// The server name that the client asked for.
    pub server_name: Option<String>,
    /// The protocol agreed on by ALPN.
    pub alpn: Option<String>,
}

/// The introduction of one connection, empty until its first bytes were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Introduced(Arc<OnceLock<Introduction>>);

impl Introduced {
    /// What was said; nothing if the header is missing.
    pub(crate) fn introduction(&self) -> Introduction {
        self.0.get().cloned().unwrap_or_default()
    }
}

impl Connected<IncomingStream<'_, Introductions>> for Introduced {
    fn connect_info(stream: IncomingStream<'_, Introductions>) -> Self {
        stream.remote_addr().clone()
    }
}

/// A listening socket whose connections may start with a PROXY header. It lets in a bounded number at a
/// time; the others wait in the kernel's queue.
#[derive(Debug)]
pub(crate) struct Introductions {
    listener: TcpListener,
    slots: Arc<Semaphore>,
}

impl Introductions {
    /// Lets in `slots` connections at a time.
    pub(crate) fn new(listener: TcpListener, slots: usize) -> Self {
        Self {
            listener,
            slots: Arc::new(Semaphore::new(slots)),
        }
    }
}

impl Listener for Introductions {
    type Io = ProxiedStream;
    type Addr = Introduced;

    async fn accept(&mut self) -> (ProxiedStream, Introduced) {
        // Nobody closes the semaphore; were it closed, connections would be counted no more.
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok();
        let (stream, _) = Listener::accept(&mut self.listener).await;
        let introduced = Introduced::default();
        let stream = ProxiedStream {
            stream,
            _slot: slot,
            introduced: introduced.clone(),
            start: Start::Header(Vec::new()),
        };
        (stream, introduced)
    }

    fn local_addr(&self) -> io::Result<Introduced> {
        Ok(Introduced::default())
    }
}

/// One connection, read from behind its header.
#[derive(Debug)]
pub(crate) struct ProxiedStream {
    stream: TcpStream,
    _slot: Option<OwnedSemaphorePermit>,
    introduced: Introduced,
    start: Start,
}

/// How far the start of a connection was read.
#[derive(Debug)]
enum Start {
    /// Bytes of an unfinished header.
    Header(Vec<u8>),
    /// Bytes that came behind the header, not handed on yet.
    Rest(Vec<u8>),
}

impl ProxiedStream {
    /// Reads until it is known what the connection starts with; returns what was read behind that.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut Vec<u8>>> {
        while let Start::Header(bytes) = &mut self.start {
            let mut space = [0; 1024];
            let mut space = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut space))?;
            bytes.extend_from_slice(space.filled());
            let is_end = space.filled().is_empty() || bytes.len() > MAX_V2_BYTES;
            let len = match decode(bytes, Accept::V2) {
                Decoded::Incomplete if !is_end => continue,
                Decoded::Header { header, len } => {
                    // The one place that sets it, once per connection.
                    self.introduced.0.set(introduction(&header)).ok();
                    len
                }
                Decoded::Incomplete | Decoded::Refused(Refusal::Signature) => 0,
                Decoded::Refused(_) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            };
            let rest = bytes.split_off(len);
            self.start = Start::Rest(rest);
        }
        match &mut self.start {
            Start::Header(bytes) | Start::Rest(bytes) => Poll::Ready(Ok(bytes)),
        }
    }
}

impl AsyncRead for ProxiedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = ready!(self.poll_rest(cx))?;
        if rest.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let len = rest.len().min(buf.remaining());
        for byte in rest.drain(..len) {
            buf.put_slice(&[byte]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ProxiedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn introduction(header: &ProxyHeader<'_>) -> Introduction {
    let tlvs = &header.tlvs;
    let ssl = tlvs.ssl.as_ref().filter(|ssl| ssl.is_tls);
    let text = |value: &str| Escaped::new(value).to_string();
    Introduction {
        client: match header.endpoints {
            Endpoints::Inet { source, .. } => Some(source.to_string()),
            _ => None,
        },
        version: ssl.and_then(|ssl| ssl.version).map(text),
        cipher: ssl.and_then(|ssl| ssl.cipher).map(text),
        server_name: tlvs.authority.map(text),
        alpn: tlvs.alpn.map(|alpn| Escaped::new(alpn).to_string()),
    }
}
