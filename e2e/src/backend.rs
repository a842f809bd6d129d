//! Scripted servers that run a closure for each connection, in its own thread.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::address::fresh_host;
use crate::time::PATIENCE;

/// Server that runs a closure for each connection. Stops accepting on drop.
#[derive(Debug)]
pub struct Backend {
    pub address: SocketAddr,
    served: Arc<AtomicUsize>,
    listener: TcpListener,
}

impl Backend {
    /// Starts a server that runs `serve` for each connection.
    pub fn new(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::at((fresh_host(), 0).into(), serve)
    }

    /// Starts a server at a given address.
    pub fn at(
        address: SocketAddr,
        serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a free address");
        let address = listener.local_addr().expect("its address");
        let served = Arc::<AtomicUsize>::default();
        let backend = Self {
            address,
            served: Arc::clone(&served),
            listener: listener.try_clone().expect("a descriptor"),
        };
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                served.fetch_add(1, SeqCst);
                let serve = Arc::clone(&serve);
                thread::spawn(move || {
                    stream.set_read_timeout(Some(PATIENCE)).ok();
                    stream.set_write_timeout(Some(PATIENCE)).ok();
                    // Errors caused by becket are visible on the client's side.
                    serve(stream).ok();
                });
            }
        });
        backend
    }

    /// Starts a server that answers the first request of each connection with `body` over HTTP/1.1, and closes.
    pub fn http(body: &str) -> Self {
        let body = body.to_owned();
        Self::new(move |stream| answer_all(stream, &body))
    }

    /// Starts a server that sends back all received bytes until the client ends.
    pub fn echo() -> Self {
        Self::new(|mut stream| {
            let mut from = stream.try_clone()?;
            io::copy(&mut from, &mut stream)?;
            Ok(())
        })
    }

    /// Starts a server that reads a PROXY header of version 2 from each connection and sends it to the receiver, then answers the
    /// request.
    pub fn collecting() -> (Self, Receiver<Vec<u8>>) {
        let (tell, told) = channel();
        let tell = Mutex::new(tell);
        let backend = Self::new(move |mut stream| {
            let header = read_proxy_header(&mut stream)?;
            tell.lock().expect("not poisoned").send(header).ok();
            answer_all(stream, "well met")
        });
        (backend, told)
    }

    pub fn served(&self) -> usize {
        self.served.load(SeqCst)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // On Linux, shutdown also ends an accept in progress, regardless of the socket's network namespace.
        let socket = socket2::SockRef::from(&self.listener);
        let _ended = socket.shutdown(Shutdown::Both);
    }
}

/// Reads a request header, sends a response, and closes the connection.
///
/// The response has no length. A client that knows the length might close before the server does, and would then answer a
/// close_notify of the server with RST.
pub fn answer_all(mut stream: TcpStream, body: &str) -> io::Result<()> {
    read_head(&mut stream)?;
    write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}")
}

/// Reads a header including the blank line that ends it.
pub fn read_head(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(head)
}

/// Reads a PROXY header of version 2 and returns all its bytes.
pub fn read_proxy_header(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut header = vec![0; 16];
    stream.read_exact(&mut header)?;
    let rest = usize::from(u16::from_be_bytes([header[14], header[15]]));
    header.resize(16 + rest, 0);
    stream.read_exact(&mut header[16..])?;
    Ok(header)
}
