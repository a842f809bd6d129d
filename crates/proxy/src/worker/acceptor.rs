//! One listening socket of one worker.
//!
//! Every worker has a socket of its own for every address (`SO_REUSEPORT`), so the kernel spreads
//! connections and no lock is shared. Options were set on the listening socket and are inherited:
//! accepting costs one system call.
//!
//! An acceptor that is removed is *retired* first: new SYNs are dropped (the sockets demand a TTL
//! that no routed packet has), what the kernel had completed is accepted, and only then is the
//! socket closed. To close it at once would reset every connection in its queue.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use std::{io, mem};

use becket_proto::fresh_queue::TARGET;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use crate::connection::listener::ListenerState;

/// A listening socket and what stands behind it.
#[derive(Debug)]
pub(super) struct Acceptor {
    socket: TcpListener,
    address: SocketAddr,
    /// Where its clients go in; replaced by a reload.
    pub listener: Rc<ListenerState>,
    /// Others listen on it after us: a process that the service manager starts, or that replaces this one.
    inherited: bool,
    /// The poll reports who comes. Where it does not, it is looked at now and then.
    reported: bool,
    /// There may be connections to accept.
    pub ready: bool,
    /// When a retiring acceptor may be closed.
    retired_at: Option<Duration>,
    /// How long the last client that was asked about had waited in the queue, and when it was.
    asked: Option<(Duration, Duration)>,
}

/// What one call of accept got.
#[derive(Debug)]
pub(super) enum Accepted {
    /// A client.
    Client(TcpStream, SocketAddr),
    /// The queue is empty.
    Nothing,
    /// This one left while it waited; go on with the next.
    Lost,
    /// No descriptor or no memory: pause.
    Exhausted(io::Error),
}

impl Acceptor {
    /// Takes over a bound socket that is registered already.
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

    /// The configured address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts one connection.
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
                // accept(2): an error of the new connection, not of the socket.
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

    /// How long a client that was just accepted has waited in the queue. Where one has not for long, those right behind it have not either,
    /// and are not asked about: that costs a system call.
    pub(super) fn waited(&mut self, client: &TcpStream, now: Duration) -> Duration {
        lately(self.asked, now).unwrap_or_else(|| {
            let waited = becket_sys::socket::silent_for(client).unwrap_or_default();
            self.asked = Some((waited, now));
            waited
        })
    }

    /// Turns new clients away and gives those on their way [`GRACE`] to be accepted. An inherited
    /// socket is only let go of: its queue is the next process'.
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
            tracing::warn!(address = %self.address, %error, "clients that connect now may be reset");
        }
    }

    /// Accepts no more: what waits in the queue is for others who have the socket.
    pub(super) fn let_go(&mut self) {
        self.inherited = true;
        self.ready = false;
        // Closed at the end of this turn, which began before now.
        self.retired_at = Some(Duration::ZERO);
    }

    /// Ends the reports of the poll, which would go on for as long as others have the socket.
    pub(super) fn leave(&mut self, registry: &Registry) {
        if mem::take(&mut self.reported)
            && let Err(error) = registry.deregister(&mut self.socket)
        {
            tracing::warn!(address = %self.address, %error, "a closed listener still wakes a worker");
        }
    }

    /// Has the poll report who comes again. Where that fails it is looked at now and then for good, which is slower and no more.
    pub(super) fn join(&mut self, registry: &Registry, token: Token) {
        if self.reported || self.is_retiring() {
            return;
        }
        self.ready = true;
        match registry.register(&mut self.socket, token, Interest::READABLE) {
            Ok(()) => self.reported = true,
            Err(error) => {
                tracing::warn!(address = %self.address, %error, "a listener does not wake a worker");
            }
        }
    }

    /// Whether it has to be looked at without a report.
    pub(super) fn is_quiet(&self) -> bool {
        !self.reported && !self.is_retiring()
    }

    /// Lifts, from a client that was on its way, what keeps new ones out.
    fn admit(&self, socket: &TcpStream) {
        if let Err(error) = becket_sys::socket::admit(socket) {
            tracing::warn!(address = %self.address, %error, "the last client of a closed listener may hang");
        }
    }

    /// Has the kernel keep so many clients at most, or as many as configured. A socket of the service manager stays as it
    /// is: other workers and programs listen on it, too.
    pub(super) fn bound_queue(&self, bound: Option<u32>) {
        if self.inherited || self.is_retiring() {
            return;
        }
        let configured = self.listener.config().keys.backlog;
        let backlog = bound.map_or(configured, |bound| bound.min(configured));
        if let Err(error) = becket_sys::socket::bound_queue(&self.socket, backlog) {
            tracing::warn!(address = %self.address, %error, "the length of a listening socket's queue stays as it was");
        }
    }

    /// Whether it is retiring.
    pub(super) fn is_retiring(&self) -> bool {
        self.retired_at.is_some()
    }

    /// Looks into the queue once more: nobody new gets in who would wake us.
    pub(super) fn look_again(&mut self) {
        self.ready = !self.inherited;
    }

    /// Whether it has been retiring for long enough. It waits for nothing but its queue then.
    pub(super) fn is_overdue(&self, now: Duration) -> bool {
        self.retired_at.is_some_and(|at| now >= at)
    }
}

/// What is known of a client that is accepted now, by one that was asked about: how long that had waited, and when.
fn lately(asked: Option<(Duration, Duration)>, now: Duration) -> Option<Duration> {
    let (waited, at) = asked?;
    (waited < TARGET && now.saturating_sub(at) < RIGHT_BEHIND).then_some(waited)
}

/// A client whose SYN was answered needs one round trip to get into the queue.
pub(super) const GRACE: Duration = Duration::from_millis(250);
/// Who is accepted within this time of another has waited longer by no more than this.
const RIGHT_BEHIND: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_right_behind_a_short_wait_has_had_it_and_nobody_else() {
        let at = Duration::from_secs(7);
        let moment = Duration::from_millis(1);
        let short = Some((TARGET - moment, at));
        assert_eq!(lately(short, at + moment), Some(TARGET - moment));
        assert_eq!(lately(short, at + RIGHT_BEHIND), None);
        assert_eq!(lately(Some((TARGET, at)), at), None);
        assert_eq!(lately(None, at), None);
    }
}
