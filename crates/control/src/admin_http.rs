//! Connections of the admin pages: accepts them, and gives each one answer.
//!
//! Every connection is accepted at once, so that a health check never waits for others. Bounded are the time until the request is complete
//! ([`HEADER`]), the time of a connection in all ([`LIFETIME`], unless it waits for a reload or the like), and the room that
//! connections take together ([`Visitors`]). Each connection has one request; every answer closes it.
//!
//! [`Responder`] makes the answers.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use hyper::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::answers::Responder;
use super::page_refusals::PageRefusal;
use super::visitors::{PageClient, Visitor, Visitors};

/// Accepts connections for ever; `asker` names the client of each.
pub(super) async fn receive<L: Listener>(
    mut listener: L,
    answers: Arc<Responder>,
    asker: impl Fn(&L::Io, L::Addr) -> PageClient,
    visitors: Arc<Visitors>,
) -> Infallible {
    loop {
        let (stream, from) = Listener::accept(&mut listener).await;
        let visitor = visitors.add(asker(&stream, from));
        tokio::spawn(attend(stream, visitor, Arc::clone(&answers)));
        // Its request may be here already: that is looked at before more are let in.
        tokio::task::yield_now().await;
    }
}

/// Responder one request.
async fn attend(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    visitor: Arc<Visitor>,
    answers: Arc<Responder>,
) {
    let service = service_fn(|request| {
        let (visitor, answers) = (Arc::clone(&visitor), Arc::clone(&answers));
        async move {
            let answer = answers.answer(request, &visitor).await;
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
                Ok(ended) => break ended.is_err_and(|error| error.is_timeout()).then_some(PageRefusal::Timeout),
                Err(_) if visitor.takes_time() => {}
                Err(_) => break Some(PageRefusal::Timeout),
            },
            () = visitor.must_end() => break Some(PageRefusal::Evicted),
        }
    };
    if let Some(refusal) = refusal {
        answers.count(refusal);
    }
}

/// For a whole header, which fits into one segment.
const HEADER: Duration = Duration::from_secs(1);
/// For one connection in all. A page takes milliseconds.
const LIFETIME: Duration = Duration::from_secs(10);
/// For the header that comes, and of the page that goes. A browser sends a kilobyte.
const BUFFER: usize = 16 * 1024;
