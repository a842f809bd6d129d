//! The admin pages: `/`, `/metrics`, `/status`, `/healthz`, and all other
//! [`ROUTES`](super::answers::ROUTES), some of which change the running server.
//!
//! Every client that can reach the TCP address can read the pages, so the address should be on
//! loopback or in a management network. Lists with clients' data, and changes, require the unix
//! socket ([`Responder`]); each change is logged with its user.
//!
//! The pages have their own threads, so that a flood of requests does not delay `/healthz`,
//! signals, reloads or key rotation. One thread accepts clients, receives their requests
//! ([`admin_http`]), answers `/healthz` and collects lists. Two more threads create the remaining
//! pages from a [`Snapshot`](super::snapshot::Snapshot) of the server.
//!
//! [`host`](super::host) checks the host names of requests.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use becket_sys::socket_file::SocketFile;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::watch;
use tokio::time::timeout;

use super::admin_http;
use super::answers::{MAKERS, Responder};
use super::api::PageClient;

#[derive(Debug, Default)]
pub struct AdminSockets {
    pub tcp: Option<std::net::TcpListener>,
    pub unix: Option<SocketFile>,
}

/// Handle of the threads that serve the admin pages.
#[derive(Debug)]
pub struct Pages {
    /// Sends the accept state to the thread. Dropping the sender closes the sockets.
    door: Option<watch::Sender<Door>>,
    /// Channel without messages. It closes when all accepted clients have disconnected.
    clients: Receiver<Infallible>,
}

/// Accept state of the admin sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Open,
    Shut,
    /// Only clients that are already in the kernel's accept queues are accepted, before the process
    /// exits.
    Closing,
}

impl Pages {
    /// Starts or stops accepting. While stopped, clients wait in the kernel's accept queues.
    /// Another process with these sockets may accept them.
    pub fn let_in(&self, open: bool) {
        if let Some(door) = &self.door {
            door.send_replace(if open { Door::Open } else { Door::Shut });
        }
    }

    /// Stops accepting permanently and closes the sockets.
    pub fn close(&mut self) {
        self.door.take();
    }

    /// Finishes before the process exits: accepts the clients in the kernel's accept queues, unless
    /// accepting is stopped, and waits up to `patience` for the end of all connections.
    pub async fn finish(mut self, patience: Duration) {
        if let Some(door) = self.door.take() {
            door.send_if_modified(|door| {
                let is_open = *door == Door::Open;
                if is_open {
                    *door = Door::Closing;
                }
                is_open
            });
        }
        drop(timeout(patience, self.clients.recv()).await);
    }
}

/// Starts the threads that serve the pages.
///
/// # Errors
/// Fails if no thread can be started, or if no descriptor is available for the event loop.
pub(crate) fn start(sockets: &AdminSockets, answers: Responder) -> io::Result<Pages> {
    let tcp = sockets.tcp.as_ref().map(|tcp| {
        tcp.set_nonblocking(true)?;
        tcp.try_clone()
    });
    let unix = sockets.unix.as_ref().map(|unix| {
        unix.listener().set_nonblocking(true)?;
        unix.listener().try_clone()
    });
    let (tcp, unix) = (tcp.transpose()?, unix.transpose()?);
    let mut runtime = Builder::new_current_thread();
    runtime
        .enable_all()
        .thread_name("page")
        .max_blocking_threads(MAKERS);
    let runtime = runtime.build()?;
    let (door, at_door) = watch::channel(Door::Open);
    let (present, clients) = channel(1);
    let thread = thread::Builder::new().name("admin-http".to_owned());
    let answers = Arc::new(answers);
    thread.spawn(move || {
        let receive = async move {
            let tcp = tcp.map(TcpListener::from_std).transpose()?;
            let unix = unix.map(UnixListener::from_std).transpose()?;
            let network = |_: &_, from: SocketAddr| PageClient::Network(from.ip());
            let local = |it: &UnixStream, _| PageClient::Local(it.peer_cred().ok());
            let (pages, at_tcp) = (Arc::clone(&answers), present.clone());
            let over_tcp = admin_http::receive(tcp, pages, network, OF_A_PAGE, at_tcp);
            let over_unix = admin_http::receive(unix, answers, local, OF_AN_UPGRADE, present);
            Ok::<_, io::Error>(tokio::join!(over_tcp, over_unix))
        };
        runtime.block_on(async {
            if let Err(error) = while_open(at_door, receive).await {
                tracing::error!(name: "admin-pages-stopped", %error, "admin pages stopped");
            }
            // Keep the runtime running, so that the responses to accepted clients are still sent.
            pending::<()>().await;
        });
    })?;
    Ok(Pages {
        door: Some(door),
        clients,
    })
}

/// Accepts clients with `receive` while the pages are open. Returns when they are closed.
async fn while_open<T, E>(
    mut door: watch::Receiver<Door>,
    receive: impl Future<Output = Result<T, E>>,
) -> Result<(), E> {
    let mut receive = pin!(receive);
    let is_not = |it: Door| move |door: &Door| *door != it;
    while let Ok(door_now) = door.wait_for(is_not(Door::Shut)).await.map(|it| *it) {
        if door_now == Door::Closing {
            return match timeout(LAST_CALL, receive).await {
                Ok(failed) => failed.map(drop),
                Err(_) => Ok(()),
            };
        }
        tokio::select! {
            biased;
            shut = door.wait_for(is_not(Door::Open)) => if shut.is_err() {
                break;
            },
            failed = &mut receive => return failed.map(drop),
        }
    }
    Ok(())
}

/// Time limit of a TCP connection, which can only request pages.
const OF_A_PAGE: Duration = Duration::from_secs(10);
/// Time limit of a connection over the unix socket, which may wait for the result of an upgrade.
const OF_AN_UPGRADE: Duration = Duration::from_secs(75);
/// Maximum time for accepting the clients in the kernel's queues before the process exits.
const LAST_CALL: Duration = Duration::from_millis(50);
/// Maximum time for sending the last responses before the process exits.
pub const LAST_MOMENT: Duration = Duration::from_secs(2);
#[cfg(test)]
mod tests;
