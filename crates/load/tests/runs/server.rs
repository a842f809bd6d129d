//! A small blocking TLS server that can be told to misbehave.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use rustls::{HandshakeKind, ServerConfig, ServerConnection, Stream};
use rustls_pki_types::PrivateKeyDer;

/// What the server saw of one handshake.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) resumed: bool,
    pub(crate) server_name: Option<String>,
    pub(crate) alpn: Option<Vec<u8>>,
    /// The request, and how much of it was early data.
    pub(crate) request: String,
    pub(crate) early: usize,
}

/// A running server; its thread ends with the test.
pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Starts one that answers with `response`, byte for byte.
    pub(crate) fn start(config: ServerConfig, response: &'static [u8], cut: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let (config, for_thread) = (Arc::new(config), Arc::clone(&seen));
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (config, seen) = (Arc::clone(&config), Arc::clone(&for_thread));
                // A client that goes away is the client's matter: the test looks at what was seen.
                std::thread::spawn(move || drop(serve(socket, config, response, cut, &seen)));
            }
        });
        Self { address, seen }
    }

    /// Starts one that answers as it should.
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

/// A configuration with a certificate for localhost, and tickets that live in memory.
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
    // Reading to the end keeps the kernel from resetting what was sent.
    while matches!(socket.read(&mut buffer), Ok(1..)) {}
    Ok(())
}
