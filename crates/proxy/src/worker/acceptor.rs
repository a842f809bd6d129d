//! A listening socket of a worker.
//!
//! Each worker has a separate socket per address (`SO_REUSEPORT`), so the kernel distributes
//! connections without a shared lock. Accepted sockets inherit the options of the listening socket,
//! so accepting costs one system call.
//!
//! A socket whose address was removed from the configuration is *retired* before it is closed,
//! because a close resets every connection in its accept queue. A retired socket requires a TTL
//! that no routed packet has, so the kernel drops new SYNs. The worker accepts the connections in
//! the queue and then closes the socket.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use std::{io, mem};

use becket_proto::fresh_queue::TARGET;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use crate::connection::listener::ListenerState;

#[derive(Debug)]
pub(super) struct Acceptor {
    socket: TcpListener,
    address: SocketAddr,
    /// State of the configured listener whose clients this socket accepts. A reload replaces it.
    pub listener: Rc<ListenerState>,
    /// `true` if another process, such as the next process of an upgrade, also listens on this
    /// socket.
    inherited: bool,
    /// `true` if the socket is registered in the poll. If `false`, the worker checks the socket
    /// periodically.
    reported: bool,
    pub ready: bool,
    /// End of the grace period of a retiring acceptor. After that time, the acceptor is closed as
    /// soon as its queue is empty.
    retired_at: Option<Duration>,
    /// Wait of a client in the accept queue and the time at which it was measured; only the latest
    /// measurement.
    asked: Option<(Duration, Duration)>,
}

#[derive(Debug)]
pub(super) enum Accepted {
    Client(TcpStream, SocketAddr),
    Nothing,
    /// The connection failed before it was accepted. The next client can be accepted at once.
    Lost,
    /// No descriptor or memory is left, so accepting must pause.
    Exhausted(io::Error),
}

impl Acceptor {
    pub(super) fn new(
        socket: TcpListener,
        address: SocketAddr,
        inherited: bool,
        listener: Rc<ListenerState>,
    ) -> Self {
        Self {
            socket,
            address,
            listener,
            inherited,
            reported: true,
            ready: true,
            retired_at: None,
            asked: None,
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn accept(&mut self) -> Accepted {
        match self.socket.accept() {
            Ok((socket, client)) => {
                if self.is_retiring() {
                    self.admit(&socket);
                }
                Accepted::Client(socket, client)
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => {
                    self.ready = false;
                    Accepted::Nothing
                }
                // These are errors of the new connection, not of the listening socket (accept(2)).
                io::ErrorKind::ConnectionAborted
                | io::ErrorKind::Interrupted
                | io::ErrorKind::NetworkDown
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::PermissionDenied => Accepted::Lost,
                _ => Accepted::Exhausted(error),
            },
        }
    }

    /// Returns whether a client waits in the accept queue. If not, an event follows when one waits.
    pub(super) fn has_client(&mut self) -> bool {
        self.ready = becket_sys::socket::has_client(&self.socket).unwrap_or(true);
        self.ready
    }

    /// Returns how long a newly accepted client waited in the accept queue. If the last measured
    /// wait was short and recent, returns that value to save a system call.
    pub(super) fn waited(&mut self, client: &TcpStream, now: Duration) -> Duration {
        lately(self.asked, now).unwrap_or_else(|| {
            let waited = becket_sys::socket::silent_for(client).unwrap_or_default();
            self.asked = Some((waited, now));
            waited
        })
    }

    /// Retires the socket: rejects new connections, but accepts clients that complete their TCP
    /// handshake within [`GRACE`]. If the socket is inherited, only closes this process's
    /// descriptor, because the next process serves the queue.
    pub(super) fn retire(&mut self, now: Duration) {
        if self.retired_at.is_some() {
            return;
        }
        if self.inherited {
            self.let_go();
            return;
        }
        self.retired_at = Some(now + GRACE);
        if let Err(error) = becket_sys::socket::refuse_new(&self.socket) {
            tracing::warn!(name: "listener-close-failed", address = %self.address, %error, "cannot stop a closing listener from accepting; new clients may be reset");
        }
    }

    /// Stops accepting and closes this process's descriptor, because another process serves the
    /// queue of this socket.
    pub(super) fn let_go(&mut self) {
        self.inherited = true;
        self.ready = false;
        // The grace period ends at time zero, so the socket is closed at the end of this turn.
        self.retired_at = Some(Duration::ZERO);
    }

    /// Removes the socket from the poll. Closing it would not stop its events while another process
    /// has it open.
    pub(super) fn leave(&mut self, registry: &Registry) {
        if mem::take(&mut self.reported)
            && let Err(error) = registry.deregister(&mut self.socket)
        {
            tracing::warn!(name: "poll-remove-failed", address = %self.address, %error, "cannot remove a listener from epoll; it still wakes the worker");
        }
    }

    /// Adds the socket to the poll again. If that fails, the worker checks the socket periodically,
    /// which only delays clients.
    pub(super) fn join(&mut self, registry: &Registry, token: Token) {
        if self.reported || self.is_retiring() {
            return;
        }
        self.ready = true;
        match registry.register(&mut self.socket, token, Interest::READABLE) {
            Ok(()) => self.reported = true,
            Err(error) => {
                tracing::warn!(name: "poll-add-failed", address = %self.address, %error, "cannot add a listener to epoll; checking it periodically");
            }
        }
    }

    /// Returns `true` if the worker must check the socket periodically, because it is not
    /// registered in the poll.
    pub(super) fn is_quiet(&self) -> bool {
        !self.reported && !self.is_retiring()
    }

    /// Removes the inherited TTL requirement from the socket of a client that connected before the
    /// retirement.
    fn admit(&self, socket: &TcpStream) {
        if let Err(error) = becket_sys::socket::admit(socket) {
            tracing::warn!(name: "client-admit-failed", address = %self.address, %error, "cannot accept a pending client of a closing listener; the client may hang");
        }
    }

    /// Sets the kernel's backlog to `bound` or the configured value, whichever is smaller. Does not
    /// change an inherited socket, because other workers and programs also listen on it.
    pub(super) fn bound_queue(&self, bound: Option<u32>) {
        if self.inherited || self.is_retiring() {
            return;
        }
        let configured = self.listener.config().keys.backlog;
        let backlog = bound.map_or(configured, |bound| bound.min(configured));
        if let Err(error) = becket_sys::socket::bound_queue(&self.socket, backlog) {
            tracing::warn!(name: "backlog-failed", address = %self.address, %error, "cannot change the listen backlog");
        }
    }

    pub(super) fn is_retiring(&self) -> bool {
        self.retired_at.is_some()
    }

    /// Makes the next turn accept from the socket, because no event announces the last clients in
    /// its queue.
    pub(super) fn look_again(&mut self) {
        self.ready = !self.inherited;
    }

    /// Returns `true` if [`GRACE`] has passed since the retirement.
    pub(super) fn is_overdue(&self, now: Duration) -> bool {
        self.retired_at.is_some_and(|at| now >= at)
    }
}

/// Returns the last measured wait if it was short and recent, and `None` otherwise.
fn lately(asked: Option<(Duration, Duration)>, now: Duration) -> Option<Duration> {
    let (waited, at) = asked?;
    (waited < TARGET && now.saturating_sub(at) < RIGHT_BEHIND).then_some(waited)
}

/// Grace period in which clients can complete the TCP handshake. It is longer than a usual round
/// trip.
pub(super) const GRACE: Duration = Duration::from_millis(250);
/// Maximum age of a measured wait that is reused as the estimate for a new client.
const RIGHT_BEHIND: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_wait_is_attributed_only_to_the_client_right_after_it() {
        let at = Duration::from_secs(7);
        let moment = Duration::from_millis(1);
        let short = Some((TARGET - moment, at));
        assert_eq!(lately(short, at + moment), Some(TARGET - moment));
        assert_eq!(lately(short, at + RIGHT_BEHIND), None);
        assert_eq!(lately(Some((TARGET, at)), at), None);
        assert_eq!(lately(None, at), None);
    }
}
