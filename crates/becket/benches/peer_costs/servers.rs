//! Servers behind becket. Each server accepts on one thread and handles each connection on another.
//! All threads end with the process.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Starts a server that reads all data and answers with one byte after each read that ends with
/// [`END`].
pub(crate) fn sink() -> SocketAddr {
    serve(|mut stream| {
        let mut buffer = [0; 64 * 1024];
        loop {
            let length = stream.read(&mut buffer)?;
            match buffer.get(..length) {
                None | Some([]) => return Ok(()),
                Some([.., END]) => stream.write_all(b".")?,
                Some(_) => {}
            }
        }
    })
}

/// Starts a server that sends `greeting` and then reads all data.
pub(crate) fn says(greeting: &'static [u8]) -> SocketAddr {
    serve(move |mut stream| {
        stream.write_all(greeting)?;
        rest(stream)
    })
}

/// Starts a server that reads one message and closes, as PostgreSQL does after a CancelRequest.
pub(crate) fn once() -> SocketAddr {
    serve(|mut stream| stream.read(&mut [0; 1024]).map(drop))
}

/// Starts a TLS server that sends `tickets` tickets and one byte of data, and then reads all data.
pub(crate) fn tls(config: &ServerConfig, tickets: usize) -> SocketAddr {
    let mut config = config.clone();
    config.send_tls13_tickets = tickets;
    let config = Arc::new(config);
    serve(move |stream| {
        let tls = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(tls, Counted(stream));
        stream.write_all(b".")?;
        rest(stream)
    })
}

/// Connection that adds the bytes it sends to [`SENT`].
struct Counted(TcpStream);

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = self.0.write(bytes)?;
        SENT.fetch_add(length, Relaxed);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn rest(mut stream: impl Read) -> io::Result<()> {
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

fn serve(answer: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.73.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            // A failed connection does not affect other connections.
            thread::spawn(move || drop(answer(stream)));
        }
    });
    address
}

/// Number of bytes that all TLS servers have sent.
pub(crate) static SENT: AtomicUsize = AtomicUsize::new(0);
/// Last byte of each client message that the server must answer.
pub(crate) const END: u8 = b'!';
