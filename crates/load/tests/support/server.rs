//! A small blocking TLS server with everything that a test may want to ask of one.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, Stream};

/// What the server saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) resumed: AtomicUsize,
    pub(crate) full: AtomicUsize,
    pub(crate) early: AtomicUsize,
    pub(crate) client_certificates: AtomicUsize,
    /// The PROXY headers, SNI names and ALPN protocols.
    pub(crate) words: Mutex<Vec<String>>,
    stop: AtomicBool,
}

/// How it behaves beyond its `ServerConfig`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manners {
    /// A PROXY v1 line comes first.
    pub proxy_v1: bool,
    /// Response, byte for byte; an empty one stands for the usual.
    pub(crate) response: &'static [u8],
    /// Close without close_notify.
    pub(crate) cut: bool,
}

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(config: ServerConfig, manners: Manners) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let seen = Arc::new(Seen::default());
        let (config, for_thread) = (Arc::new(config), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            for socket in listener.incoming() {
                if for_thread.stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(socket) = socket else { continue };
                let (config, seen) = (Arc::clone(&config), Arc::clone(&for_thread));
                // A client that goes away is the client's matter: the test looks at what was seen.
                std::thread::spawn(move || drop(serve(socket, config, manners, &seen)));
            }
        });
        Self {
            address,
            seen,
            thread: Some(thread),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}/", self.address.port())
    }

    pub(crate) fn words(&self) -> Vec<String> {
        self.seen.words.lock().expect("not poisoned").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        drop(self.thread.take().map(|thread| thread.join()));
    }
}

/// A configuration with tickets that live in memory.
pub(crate) fn config(identity: &super::Identity) -> ServerConfig {
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())
        .expect("a certificate")
}

fn serve(
    mut socket: TcpStream,
    config: Arc<ServerConfig>,
    manners: Manners,
    seen: &Seen,
) -> std::io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.set_nodelay(true)?;
    if manners.proxy_v1 {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte)?;
            line.extend_from_slice(&byte);
        }
        note(
            seen,
            String::from_utf8_lossy(line.trim_ascii_end()).into_owned(),
        );
    }
    let mut tls = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut request = early(&mut tls, &mut socket, seen)?;
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
    }
    let resumed = tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    if resumed { &seen.resumed } else { &seen.full }.fetch_add(1, Ordering::Relaxed);
    let certificates = tls.peer_certificates().map_or(0, |chain| chain.len());
    seen.client_certificates
        .fetch_add(certificates, Ordering::Relaxed);
    note(seen, format!("sni={}", tls.server_name().unwrap_or("")));
    note(
        seen,
        format!(
            "alpn={}",
            String::from_utf8_lossy(tls.alpn_protocol().unwrap_or(b""))
        ),
    );
    let mut stream = Stream::new(&mut tls, &mut socket);
    let mut buffer = [0; 16 * 1024];
    while !whole(&request) {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    let usual = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let response = if manners.response.is_empty() {
        usual
    } else {
        manners.response
    };
    stream.write_all(response)?;
    if !manners.cut {
        tls.send_close_notify();
    }
    while tls.wants_write() {
        tls.write_tls(&mut socket)?;
    }
    socket.shutdown(std::net::Shutdown::Write)?;
    // Reading to the end keeps the kernel from resetting what was sent.
    while matches!(socket.read(&mut buffer), Ok(1..)) {}
    Ok(())
}

/// Reads early data until the handshake goes on without.
fn early(
    tls: &mut ServerConnection,
    socket: &mut TcpStream,
    seen: &Seen,
) -> std::io::Result<Vec<u8>> {
    let mut request = Vec::new();
    while tls.is_handshaking() {
        if tls.wants_write() {
            tls.write_tls(socket)?;
            continue;
        }
        if tls.read_tls(socket)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = tls.process_new_packets() {
            tls.write_tls(socket)?;
            return Err(std::io::Error::other(error));
        }
        if let Some(mut data) = tls.early_data() {
            data.read_to_end(&mut request)?;
        }
    }
    if !request.is_empty() {
        seen.early.fetch_add(1, Ordering::Relaxed);
    }
    Ok(request)
}

fn whole(request: &[u8]) -> bool {
    request.ends_with(b"\r\n\r\n")
}

fn note(seen: &Seen, word: String) {
    seen.words.lock().expect("not poisoned").push(word);
}
