//! Cancels of PostgreSQL clients, sent to every server of their backend.
//!
//! A CancelRequest names a running session by a number and a secret of its server, on a connection of its own and, by most clients, in
//! clear. Becket does not know which server that is, so each gets the request; a server that does not know the secret ignores it. The
//! connection is that of a health check: with TLS if the backend has it, with a PROXY header (LOCAL) if that is expected, without a slot. A server closes it
//! after the cancel, and only then the client's connection is closed: otherwise the client's next query could be cancelled.
//!
//! The work is bounded in all that a client could make of it: one request begins each [`PACE`], [`MAX_RUNNING`] run, each for [`TIMEOUT`] and to
//! [`MAX_SERVERS`] servers. [`Cancels`] limits the requests that wait.
//!
//! Source: PostgreSQL, "Frontend/Backend Protocol", section "Canceling Requests in Progress".

use std::sync::Arc;
use std::time::Duration;

use becket_proxy::backend::cancel::{Cancel, Cancels};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::check::{Check, Failure};

/// Sends cancels to servers, forever. To be called once.
pub async fn send_all(cancels: Arc<Cancels>) {
    let mut running = JoinSet::new();
    loop {
        let cancel = cancels.next().await;
        while running.try_join_next().is_some() {}
        let cancels = Arc::clone(&cancels);
        running.spawn(async move { send(&cancels, cancel).await });
        if running.len() >= MAX_RUNNING {
            running.join_next().await;
        }
        sleep(PACE).await;
    }
}

async fn send(cancels: &Cancels, cancel: Cancel) {
    let servers = cancel.state.known_servers();
    let servers = servers.into_iter().filter(|server| server.has_address());
    let mut running = JoinSet::new();
    for server in servers.take(MAX_SERVERS) {
        let check = Check::send(&cancel.backend, &server, &cancel.request, TIMEOUT);
        running.spawn(async move {
            let late = |_| Err(Failure::TimedOut(TIMEOUT));
            let outcome = timeout(TIMEOUT, check.run()).await.unwrap_or_else(late);
            (server, outcome)
        });
    }
    while let Some(Ok((server, outcome))) = running.join_next().await {
        cancels.count(outcome.is_ok());
        if let Err(failure) = outcome {
            let backend = server.backend().name();
            tracing::debug!(backend, server = %server.name(), %failure, "cannot send a cancel");
        }
    }
}

/// With [`MAX_SERVERS`], as many connects at a time as there are health checks.
const MAX_RUNNING: usize = 4;
const MAX_SERVERS: usize = 16;
/// Time between two that begin. 50 a second take some milliseconds of control's time with TLS to a few servers.
const PACE: Duration = Duration::from_millis(20);
/// For all servers of a request.
const TIMEOUT: Duration = Duration::from_secs(3);
