//! A small blocking TLS server that can misbehave.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use rustls::{HandshakeKind, ServerConfig, ServerConnection, Stream};
use rustls_pki_types::PrivateKeyDer;

/// Record of one handshake and its request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) resumed: bool,
    pub(crate) server_name: Option<String>,
    pub(crate) alpn: Option<Vec<u8>>,
    /// The whole request, including early data.
    pub(crate) request: String,
    /// Number of request bytes that were early data.
    pub(crate) early: usize,
}

/// A running server. Its threads end with the test process.
pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Starts a server that sends `response` byte for byte. If `cut` is set, it omits close_notify.
    pub(crate) fn start(config: ServerConfig, response: &'static [u8], cut: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let (config, for_thread) = (Arc::new(config), Arc::clone(&seen));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (config, seen) = (Arc::clone(&config), Arc::clone(&for_thread));
                // Errors of a connection do not matter: the test checks `seen`.
                std::thread::spawn(move || drop(serve(socket, config, response, cut, &seen)));
            }
        });
        Self { address, seen }
    }

    /// Starts a server that sends a normal response.
    pub(crate) fn usual(config: ServerConfig) -> Self {
        Self::start(config, USUAL, false)
    }

    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}/", self.address.port())
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("not poisoned").clone()
    }
}

pub(crate) const USUAL: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

/// Returns a configuration with a certificate for localhost and an in-memory session store.
pub(crate) fn config() -> ServerConfig {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a certificate")
}

fn serve(
    mut socket: TcpStream,
    config: Arc<ServerConfig>,
    response: &[u8],
    cut: bool,
    seen: &Mutex<Vec<Seen>>,
) -> io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.set_nodelay(true)?;
    let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
    let (mut request, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    while tls.is_handshaking() {
        tls.complete_io(&mut socket)?;
        if let Some(mut data) = tls.early_data() {
            data.read_to_end(&mut request)?;
        }
    }
    let early = request.len();
    let mut stream = Stream::new(&mut tls, &mut socket);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    seen.lock().expect("not poisoned").push(Seen {
        resumed: stream.conn.handshake_kind() == Some(HandshakeKind::Resumed),
        server_name: stream.conn.server_name().map(str::to_owned),
        alpn: stream.conn.alpn_protocol().map(<[u8]>::to_vec),
        request: String::from_utf8_lossy(&request).into_owned(),
        early,
    });
    stream.write_all(response)?;
    if !cut {
        tls.send_close_notify();
    }
    while tls.wants_write() {
        tls.write_tls(&mut socket)?;
    }
    socket.shutdown(Shutdown::Write)?;
    // Reading to the end prevents the kernel from sending RST, which could discard the response.
    while matches!(socket.read(&mut buffer), Ok(1..)) {}
    Ok(())
}

/// Serves one TLS 1.3 client, and sends its flight in two parts. Returns the number of bytes that the client sent between
/// the parts.
pub(crate) fn serve_in_parts(listener: &TcpListener) -> io::Result<usize> {
    let (mut socket, _) = listener.accept()?;
    let mut tls = ServerConnection::new(Arc::new(config())).map_err(io::Error::other)?;
    while !tls.wants_write() {
        if tls.read_tls(&mut socket)? == 0 {
            // The program first checks that it can connect.
            return serve_in_parts(listener);
        }
        tls.process_new_packets().map_err(io::Error::other)?;
    }
    let mut flight = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut flight)?;
    }
    let (hello, rest) =
        flight.split_at(5 + usize::from(u16::from_be_bytes([flight[3], flight[4]])));
    socket.write_all(hello)?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let early = socket.read(&mut [0; 64]).unwrap_or(0);
    socket.set_read_timeout(None)?;
    socket.write_all(rest)?;
    let mut stream = Stream::new(&mut tls, &mut socket);
    let _request = stream.read(&mut [0; 4096])?;
    stream.write_all(USUAL)?;
    stream.conn.send_close_notify();
    stream.flush()?;
    socket.shutdown(Shutdown::Write)?;
    while matches!(socket.read(&mut [0; 64]), Ok(1..)) {}
    Ok(early)
}
