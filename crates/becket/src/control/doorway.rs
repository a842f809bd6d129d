//! A listening socket that lets in a bounded number of connections for a bounded time.
//!
//! The HTTP servers of the control thread (admin, demo backend) stand on it. A connection holds a slot
//! until it is dropped; while all slots are taken, nothing is accepted and clients wait in the
//! kernel's queue. With a lifetime, a connection is cut off when it is over, whatever it is doing, so
//! that no peer can hold a slot for ever by sending a header one byte at a time.
//!
//! Needs a tokio runtime with time enabled. Not for the data path.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// The listening socket.
#[derive(Debug)]
pub struct Doorway {
    listener: TcpListener,
    slots: Arc<Semaphore>,
    lifetime: Option<Duration>,
}

impl Doorway {
    /// Lets in `slots` connections at a time, each for `lifetime` at most; `None` is no limit.
    pub fn new(listener: TcpListener, slots: usize, lifetime: Option<Duration>) -> Self {
        Self {
            listener,
            slots: Arc::new(Semaphore::new(slots)),
            lifetime,
        }
    }
}

impl Listener for Doorway {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        // Nobody closes the semaphore; were it closed, connections would be counted no more.
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok();
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        let visit = Visit {
            stream,
            end: self.lifetime.map(|time| Box::pin(tokio::time::sleep(time))),
            _slot: slot,
        };
        (visit, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One connection that was let in.
#[derive(Debug)]
pub struct Visit {
    stream: TcpStream,
    end: Option<Pin<Box<Sleep>>>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Visit {
    /// Fails when the time is over; else makes sure that the task wakes up then.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let end = self.end.as_mut();
        if end.is_some_and(|end| end.as_mut().poll(cx).is_ready()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use std::io::Read;
    use std::net::TcpStream as Client;

    const FAR: Duration = Duration::from_secs(10);

    #[test]
    fn a_client_that_says_nothing_is_cut_off_and_the_next_one_takes_its_slot() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let doorway = Doorway::new(listener, 1, Some(Duration::from_millis(20)));
            tokio::spawn(axum::serve(doorway, Router::new()).into_future());
            let clients = tokio::task::spawn_blocking(move || {
                // Both are in the kernel's queue from the start; the server has one slot.
                let clients = [address; 2].map(|address| Client::connect(address).unwrap());
                for mut client in clients {
                    client.set_read_timeout(Some(FAR)).unwrap();
                    let end = client.read(&mut [0; 1]);
                    let reset = |e: &io::Error| e.kind() == io::ErrorKind::ConnectionReset;
                    assert!(matches!(end, Ok(0)) || end.is_err_and(|e| reset(&e)));
                }
            });
            clients.await.unwrap();
        });
    }
}
