//! Connections of the admin pages: accepts them, and gives each one answer.
//!
//! Every connection is accepted at once, so that a health check never waits for others. Bounded are the time until the request is complete
//! ([`HEADER`]), the time of a connection in all ([`LIFETIME`], unless it waits for a reload or the like), and the room that
//! connections take together ([`Visitors`]). Each connection has one request; every answer closes it.
//!
//! [`Desk`] makes the answers.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use hyper::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::UCred;
use tokio::time::timeout;

use super::admin::Desk;
use super::visitors::{Visitor, Visitors};
use becket_proto::labelled;

use becket_proxy::metrics::Counter;

labelled! {
/// Why a connection ended without the answer that it was for.
pub enum Refusal {
    /// It had not asked yet, or had not read its answer, and made room for a newer one.
    Crowded = "crowded",
    /// It took too long to ask, or to take its answer.
    Late = "late",
    /// Too many answers were being made, in all or for its source.
    Busy = "busy",
    /// It named a host that is not ours.
    ForeignHost = "foreign-host",
    /// It asked for what only the socket, or the holder of the token, is shown or may change.
    Forbidden = "forbidden",
}
}

/// One counter per [`Refusal`]. The thread of the pages is the one that counts.
#[derive(Debug, Default)]
pub struct Refusals([Counter; Refusal::ALL.len()]);

impl Refusals {
    /// The counter of one reason.
    pub fn of(&self, refusal: Refusal) -> &Counter {
        &self.0[refusal as usize]
    }
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
    pub(super) fn crowd(self) -> u128 {
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

/// Accepts connections for ever; `asker` names the client of each.
pub(super) async fn receive<L: Listener>(
    mut listener: L,
    desk: Arc<Desk>,
    asker: impl Fn(&L::Io, L::Addr) -> Asker,
    visitors: Arc<Visitors>,
) -> Infallible {
    loop {
        let (stream, from) = Listener::accept(&mut listener).await;
        let visitor = visitors.add(asker(&stream, from));
        tokio::spawn(attend(stream, visitor, Arc::clone(&desk)));
        // Its request may be here already: that is looked at before more are let in.
        tokio::task::yield_now().await;
    }
}

/// Answers one request.
async fn attend(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    visitor: Arc<Visitor>,
    desk: Arc<Desk>,
) {
    let service = service_fn(|request| {
        let (visitor, desk) = (Arc::clone(&visitor), Arc::clone(&desk));
        async move {
            let answer = desk.answer(request, &visitor).await;
            let bytes = answer.body().size_hint().lower();
            visitor.write(usize::try_from(bytes).unwrap_or(usize::MAX));
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
    let refusal = loop {
        tokio::select! {
            biased;
            ended = timeout(LIFETIME, served.as_mut()) => match ended {
                Ok(ended) => break ended.is_err_and(|error| error.is_timeout()).then_some(Refusal::Late),
                Err(_) if visitor.takes_time() => {}
                Err(_) => break Some(Refusal::Late),
            },
            () = visitor.must_end() => break Some(Refusal::Crowded),
        }
    };
    if let Some(refusal) = refusal {
        desk.count(refusal);
    }
}

/// For a whole header, which fits into one segment.
const HEADER: Duration = Duration::from_secs(1);
/// For one connection in all. A page takes milliseconds.
const LIFETIME: Duration = Duration::from_secs(10);
/// For the header that comes, and of the page that goes. A browser sends a kilobyte.
const BUFFER: usize = 16 * 1024;
