//! Connections of the admin pages.
//!
//! Each connection is accepted immediately, so that a health check does not wait for other
//! requests. Each socket has at most [`MOST`] connections; a further connection closes the oldest.
//! A connection carries one request. Its header must arrive within [`HEADER`], and the response
//! must be sent before a deadline. [`Responder`] creates the responses.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::Sender;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::answers::Responder;
use super::api::PageClient;
use super::page_refusals::PageRefusal;

/// Accepts connections forever; without a listener, only waits. Each connection is closed after `deadline`, and holds a clone of
/// `present` until it ends. `client_of` identifies the client of a connection.
pub(super) async fn receive<L: Listener>(
    listener: Option<L>,
    answers: Arc<Responder>,
    client_of: impl Fn(&L::Io, L::Addr) -> PageClient,
    deadline: Duration,
    present: Sender<Infallible>,
) -> Infallible {
    let Some(mut listener) = listener else {
        return pending().await;
    };
    let mut held: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let (stream, from) = Listener::accept(&mut listener).await;
        held.retain(|connection| !connection.is_finished());
        if held.len() >= MOST
            && let Some(oldest) = held.pop_front()
        {
            oldest.abort();
            answers.count(PageRefusal::Evicted);
        }
        let client = client_of(&stream, from);
        let (answers, present) = (Arc::clone(&answers), present.clone());
        let served = tokio::spawn(async move {
            attend(stream, client, deadline, &answers).await;
            drop(present);
        });
        held.push_back(served.abort_handle());
        // Let the connections answer received requests before the next connection is accepted.
        tokio::task::yield_now().await;
    }
}

async fn attend(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: PageClient,
    deadline: Duration,
    answers: &Responder,
) {
    let service =
        service_fn(async |request| Ok::<_, Infallible>(answers.answer(request, client).await));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER)
        .max_buf_size(BUFFER)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let is_late = match timeout(deadline, served).await {
        Ok(ended) => ended.is_err_and(|error| error.is_timeout()),
        Err(_) => true,
    };
    if is_late {
        answers.count(PageRefusal::Timeout);
    }
}

/// Maximum number of connections per socket, each of which may hold one page in memory. Scrapers,
/// health checks and browsers need about ten.
pub(super) const MOST: usize = 32;
/// Maximum time for receiving the header of a request.
const HEADER: Duration = Duration::from_secs(1);
/// Size in bytes of a connection's buffers. A browser's header has about 1 KB.
const BUFFER: usize = 16 * 1024;
