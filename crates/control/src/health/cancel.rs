//! Sends the cancel requests of PostgreSQL clients to the servers.
//!
//! A CancelRequest contains a process number and a secret key of the server that has the session.
//! Clients send it on a separate connection, usually without TLS. becket does not know the server,
//! so it sends the request to all servers of all backends of the listener; servers with a different
//! key ignore it.
//!
//! The connection to a server is opened like that of a health check: with TLS and a PROXY header
//! (LOCAL) if configured, and without using a slot. The client's connection stays open until the
//! servers have closed these connections, because otherwise the client's next query could be
//! cancelled.
//!
//! The work that clients can cause is limited. At most [`MAX_CONNECTS`] connects begin per
//! [`PACE`], and at most [`MAX_RUNNING`] requests run at a time. Each request is sent to at most
//! [`MAX_SERVERS`] servers, to [`MAX_CONNECTS`] at a time, within [`TIMEOUT`] per server.
//! [`Cancels`] limits the number of queued requests.
//!
//! Source: PostgreSQL, "Frontend/Backend Protocol", section "Canceling Requests in Progress".

use std::sync::Arc;
use std::time::Duration;

use becket_proxy::backend::cancel::{Cancel, Cancels};
use becket_proxy::backend::server_state::ServerState;
use becket_tls::config::Backend;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::check::{Check, Failure};

/// Sends queued PostgreSQL cancel requests to the servers, forever. Must be called only once.
pub async fn send_all(cancels: Arc<Cancels>) {
    let mut running = JoinSet::new();
    loop {
        let cancel = cancels.next().await;
        let servers = servers(&cancel);
        let rounds = servers.len().div_ceil(MAX_CONNECTS).max(1);
        while running.try_join_next().is_some() {}
        let cancels = Arc::clone(&cancels);
        running.spawn(send(cancels, cancel, servers));
        if running.len() >= MAX_RUNNING {
            running.join_next().await;
        }
        sleep(PACE * rounds as u32).await;
    }
}

fn servers(cancel: &Cancel) -> Vec<(Arc<Backend>, Arc<ServerState>)> {
    let backends = cancel.backends.iter();
    let servers = backends.flat_map(|(backend, state)| {
        let servers = state.known_servers().into_iter();
        servers.map(|server| (Arc::clone(backend), server))
    });
    let servers = servers.filter(|(_, server)| server.has_address());
    servers.take(MAX_SERVERS).collect()
}

async fn send(
    cancels: Arc<Cancels>,
    cancel: Cancel,
    servers: Vec<(Arc<Backend>, Arc<ServerState>)>,
) {
    let mut running = JoinSet::new();
    for (backend, server) in servers {
        if running.len() >= MAX_CONNECTS {
            running.join_next().await;
        }
        let check = Check::send(&backend, &server, &cancel.request, TIMEOUT);
        let cancels = Arc::clone(&cancels);
        running.spawn(async move {
            let late = |_| Err(Failure::TimedOut(TIMEOUT));
            let outcome = timeout(TIMEOUT, check.run()).await.unwrap_or_else(late);
            cancels.count(outcome.is_ok());
            if let Err(failure) = outcome {
                let backend = server.backend().name();
                tracing::debug!(backend, server = %server.name(), error = %failure, "cannot send a cancel");
            }
        });
    }
    while running.join_next().await.is_some() {}
}

/// Maximum number of concurrent cancel requests. Together they open at most 64 connections, as many
/// as health checks.
const MAX_RUNNING: usize = 4;
const MAX_CONNECTS: usize = 16;
/// Maximum number of servers to which one cancel request is sent.
const MAX_SERVERS: usize = 64;
/// Pause between two rounds of up to [`MAX_CONNECTS`] connects, so that cancel requests take only
/// milliseconds per second of the control thread's time.
const PACE: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(3);
