//! Clients that resume TLS 1.2 sessions by ID at a steady rate, and the server behind the terminator.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use becket_stats::histogram::Histogram;
use rustls::client::{Resumption, Tls12Resumption};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, Stream};

/// What clients did.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) transactions: u64,
    pub(crate) resumed: u64,
    pub(crate) times: Histogram,
}

/// Makes transactions for so long, so many a second, each on a connection of its own.
pub(crate) fn run(config: &Arc<ClientConfig>, to: SocketAddr, slice: Duration, rate: u64) -> Done {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let config = Arc::clone(config);
            thread::spawn(move || client(&config, to, slice, rate / CLIENTS))
        })
        .collect();
    let mut all = Done::default();
    for client in clients {
        let done = client.join().expect("transactions succeed");
        all.transactions += done.transactions;
        all.resumed += done.resumed;
        all.times.merge(&done.times);
    }
    all
}

/// TLS 1.2 alone, without tickets.
pub(crate) fn config(certificate: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(certificate).expect("the certificate");
    roots.add(certificate).expect("a certificate");
    let mut config = ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS12])
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption =
        Resumption::in_memory_sessions(64).tls12_resumption(Tls12Resumption::SessionIdOnly);
    Arc::new(config)
}

/// Answers every connection, for as long as the process lives.
pub(crate) fn serve(listener: TcpListener) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that is gone already is none of ours.
            let _answered = stream.and_then(answer);
        }
    });
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut request = [0; 512];
    if stream.read(&mut request)? == 0 {
        return Ok(());
    }
    stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nhere")
}

fn client(config: &Arc<ClientConfig>, to: SocketAddr, slice: Duration, rate: u64) -> Done {
    let mut done = Done::default();
    let begun = instant();
    while begun.elapsed() < slice {
        let due = begun + Duration::from_micros(done.transactions * 1_000_000 / rate);
        thread::sleep(due.saturating_duration_since(instant()));
        let resumed = transaction(config, to).expect("an answer");
        // From when it was due, so that a pause of the terminator is not hidden.
        done.times.record(due.elapsed());
        done.transactions += 1;
        done.resumed += u64::from(resumed);
    }
    done
}

/// Returns whether the session was resumed.
fn transaction(config: &Arc<ClientConfig>, to: SocketAddr) -> io::Result<bool> {
    let name = ServerName::try_from("a.test").expect("a name");
    let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
    let mut socket = TcpStream::connect(to)?;
    socket.set_nodelay(true)?;
    let mut stream = Stream::new(&mut tls, &mut socket);
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    assert!(response.ends_with(b"here"));
    Ok(tls.handshake_kind() == Some(HandshakeKind::Resumed))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clock is what is measured with"
)]
fn instant() -> Instant {
    Instant::now()
}

const CLIENTS: u64 = 4;
