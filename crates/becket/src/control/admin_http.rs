//! Who is let in to the admin pages, and for how long.
//!
//! Everybody is let in at once, so that a health check never waits for others. What is bounded are
//! those who have not asked for anything yet ([`NEWCOMERS`]: when one more comes, the oldest of the address that
//! has most of them goes), the time until they must have asked ([`HEADER`]), the pages on their way (the desk's places), and the
//! time of a connection in all ([`LIFETIME`], unless it waits for a reload or the like). Each connection has one request; every answer closes it.
//!
//! Over TCP and over the unix socket alike, each with newcomers of its own. What is answered is [`Desk`]'s work.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::UCred;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Sender;
use tokio::task::AbortHandle;

use super::admin::Desk;
use becket_proto::labelled;

use crate::metrics::Counter;

labelled! {
/// Why a connection ended without the answer that it was for.
pub enum Refusal {
    /// It had not asked for anything, and a newer one came.
    Crowded = "crowded",
    /// It took too long to ask, or to take its answer.
    Late = "late",
    /// As many pages as may be were on their way.
    Busy = "busy",
    /// It named a host that is not ours.
    ForeignHost = "foreign-host",
    /// It asked for what only the socket, or the holder of the token, is shown or may change.
    Forbidden = "forbidden",
}
}

/// One counter per [`Refusal`]. The thread of the pages is the one that counts.
#[derive(Debug, Default)]
pub(crate) struct Refusals([Counter; Refusal::ALL.len()]);

impl Refusals {
    /// The counter of one reason.
    pub(crate) fn of(&self, refusal: Refusal) -> &Counter {
        &self.0[refusal as usize]
    }
}

/// What is known of a connection while it lasts.
#[derive(Default)]
struct Connection {
    has_asked: AtomicBool,
    /// What it asked for takes its time, which is bounded where it is done.
    waits: AtomicBool,
    /// The place of its page, until all of the page was sent.
    place: OnceLock<Option<OwnedSemaphorePermit>>,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// Over TCP, from this address.
    Network(IpAddr),
    /// Over the socket; nothing where the kernel does not say who it is.
    Local(Option<UCred>),
}

impl Asker {
    /// Whom it stands for when places are few: a host of IPv6 has a whole /64 of addresses, and a user many processes.
    fn crowd(self) -> u128 {
        match self {
            Self::Network(address) => match address.to_canonical() {
                IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
                IpAddr::V6(address) => address.to_bits() >> 64 << 64,
            },
            Self::Local(user) => user.map_or(u128::MAX, |user| user.uid().into()),
        }
    }
}

/// As the log has it.
impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Local(None) => f.write_str("somebody"),
            Self::Local(Some(user)) => {
                write!(f, "uid {}", user.uid())?;
                user.pid().map_or(Ok(()), |pid| write!(f, " pid {pid}"))
            }
        }
    }
}

/// A connection that was seen without a request when it was last looked at.
struct Newcomer {
    from: u128,
    connection: Weak<Connection>,
    task: AbortHandle,
}

impl Newcomer {
    fn is_silent(&self) -> bool {
        let connection = self.connection.upgrade();
        connection.is_some_and(|connection| !connection.has_asked.load(Relaxed))
    }
}

/// Lets connections in for ever; `asker` says who they are. Each has a copy of `clients` for as long as it lasts.
pub(super) async fn receive<L: Listener>(
    mut listener: L,
    desk: Arc<Desk>,
    asker: impl Fn(&L::Io, L::Addr) -> Asker,
    clients: Sender<Infallible>,
) -> Infallible {
    let mut newcomers = Vec::new();
    loop {
        let (stream, from) = Listener::accept(&mut listener).await;
        let asker = asker(&stream, from);
        newcomers.retain(Newcomer::is_silent);
        if newcomers.len() >= NEWCOMERS {
            let from = newcomers.iter().map(|one: &Newcomer| one.from);
            newcomers.remove(first_of_most(from)).task.abort();
            desk.count(Refusal::Crowded);
        }
        let connection = Arc::default();
        let attended = attend(stream, asker, Arc::clone(&connection), Arc::clone(&desk));
        let client = clients.clone();
        let task = tokio::spawn(async move {
            attended.await;
            drop(client);
        });
        newcomers.push(Newcomer {
            from: asker.crowd(),
            connection: Arc::downgrade(&connection),
            task: task.abort_handle(),
        });
        // Its request may be here already: that is looked at before more are let in.
        tokio::task::yield_now().await;
    }
}

/// The place of the first of those who are there most often; 0 when there is nobody.
fn first_of_most(from: impl Iterator<Item = u128> + Clone) -> usize {
    let times = |of: u128| from.clone().filter(|one| *one == of).count();
    let places = from.clone().enumerate();
    let first = places.min_by_key(|(_, one)| Reverse(times(*one)));
    first.map_or(0, |(place, _)| place)
}

/// One request, one answer.
async fn attend(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    asker: Asker,
    connection: Arc<Connection>,
    desk: Arc<Desk>,
) {
    let service = service_fn(|request| {
        let (connection, desk) = (Arc::clone(&connection), Arc::clone(&desk));
        async move {
            connection.has_asked.store(true, Relaxed);
            connection.waits.store(desk.takes_time(&request), Relaxed);
            let (answer, place) = desk.answer(request, asker).await;
            connection.waits.store(false, Relaxed);
            // There is one request, so it was not set before.
            connection.place.set(place).ok();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER)
            .max_buf_size(BUFFER)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service)
    );
    let is_late = loop {
        match tokio::time::timeout(LIFETIME, served.as_mut()).await {
            Ok(ended) => break ended.is_err_and(|error| error.is_timeout()),
            Err(_) if connection.waits.load(Relaxed) => {}
            Err(_) => break true,
        }
    };
    if is_late {
        desk.count(Refusal::Late);
    }
}

/// Connections that have not asked for anything yet. A scraper or two, a balancer's probes and some browsers need
/// ten; to push out a client that is alone at its address it takes so many other addresses, within a round trip.
const NEWCOMERS: usize = 32;
/// For a whole header, which fits into one segment.
const HEADER: Duration = Duration::from_secs(1);
/// For one connection in all. A page takes milliseconds.
const LIFETIME: Duration = Duration::from_secs(10);
/// For the header that comes, and of the page that goes. A browser sends a kilobyte.
const BUFFER: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_crowds_makes_room_and_a_lone_client_stays() {
        let room = |from: &[&str]| {
            let each = from
                .iter()
                .map(|one| Asker::Network(one.parse().unwrap()).crowd());
            first_of_most(each)
        };
        let (check, crowd) = ("192.0.2.1", "192.0.2.66");
        assert_eq!(room(&[check, crowd, crowd]), 1);
        assert_eq!(
            room(&[check, "2001:db8::1", "192.0.2.2", "2001:db8::ff"]),
            1
        );
        assert_eq!(room(&[check, "::ffff:192.0.2.66", crowd]), 1);
        assert_eq!(room(&[check, crowd]), 0, "the oldest of those alike");
        assert_eq!(room(&[]), 0);
    }
}
