//! The listening sockets of all workers: bound before a new configuration takes effect, kept across
//! reloads.
//!
//! Every worker gets its own socket for every address (`SO_REUSEPORT`). With this option, a bind
//! succeeds even if another process already listens on the address with it, and becket would
//! receive half of that process's clients. Therefore each address is first probed without the
//! option. All workers share a socket from the service manager, and its options stay unchanged. A
//! supervisor may pass more sockets per address than there are workers. Some workers then have
//! several sockets, because closing a socket would reset the clients in its queue.

use std::io;
use std::net::{SocketAddr, TcpListener};

use becket_config::error::Problem;
use becket_config::listener;
use becket_sys::port_holder::port_holder;
use becket_sys::socket::{Keepalive, ListenOptions, listen, listen_on, probe, set_options};

use becket_process::link::resources::BoundSockets;
use becket_process::protocol::SocketKind;
use becket_proxy::worker::bound::BoundListener;
use becket_tls::config::{Config, Listener};

/// Binds every address of `config` that is not in `held`, once per worker. Returns a list of
/// sockets per worker. Does not probe addresses in `retiring`, because this process itself still
/// listens on them.
///
/// # Errors
///
/// Returns a problem for each address that cannot be bound. All new sockets are then closed.
pub fn bind(
    config: &Config,
    (held, retiring): (&[SocketAddr], &[SocketAddr]),
    workers: usize,
    given: &mut BoundSockets,
) -> Result<Vec<Vec<BoundListener>>, Vec<Problem>> {
    let mut all: Vec<Vec<BoundListener>> = (0..workers).map(|_| Vec::new()).collect();
    let mut problems = Vec::new();
    let addresses = config
        .listeners
        .iter()
        .flat_map(|listener| {
            listener
                .bind
                .iter()
                .map(move |address| (listener, *address))
        })
        .filter(|(_, address)| !held.contains(address));
    for (listener, address) in addresses {
        let is_new = !retiring.contains(&address);
        match sockets_for(listener, address, workers, is_new, given) {
            Ok(sockets) => {
                for (number, socket) in sockets.into_iter().enumerate() {
                    all[number % workers].push(socket);
                }
            }
            Err(error) => problems.push(problem(listener, address, &error)),
        }
    }
    if problems.is_empty() {
        for bound in all.first().into_iter().flatten() {
            tracing::info!(name: "listening", address = %bound.address, inherited = bound.inherited, "listening");
        }
        Ok(all)
    } else {
        Err(problems)
    }
}

fn sockets_for(
    listener: &Listener,
    address: SocketAddr,
    workers: usize,
    is_new: bool,
    given: &mut BoundSockets,
) -> io::Result<Vec<BoundListener>> {
    let options = options(&listener.keys);
    let bound = |inherited| {
        move |listener| BoundListener {
            address,
            listener,
            inherited,
        }
    };
    if let Some(passed) = given.take_one(SocketKind::Passed, address) {
        let passed = TcpListener::from(passed?);
        let all = (0..workers).map(|_| passed.try_clone().map(bound(true)));
        return all.collect();
    }
    let listens_later = given.listen_later;
    if let Some(given) = given.take(SocketKind::Clients, address) {
        // New sockets do not listen while the old process accepts clients, because no process would
        // accept from their queues yet.
        let open = if listens_later {
            set_options
        } else {
            listen_on
        };
        let all = given?.into_iter();
        return all
            .map(|socket| open(socket, &options).map(bound(false)))
            .collect();
    }
    if is_new {
        probe(address)?;
    }
    (0..workers)
        .map(|_| listen(address, &options).map(bound(false)))
        .collect()
}

/// Returns the options of listening sockets; accepted sockets inherit them.
pub fn options(socket: &listener::ListenerSection) -> ListenOptions {
    ListenOptions {
        backlog: socket.backlog,
        defer_accept: socket.defers_accept(),
        fast_open: socket.fast_open,
        keepalive: socket.keepalive.map(|time| Keepalive {
            time,
            interval: PROBE_INTERVAL,
            count: PROBES,
        }),
        send_buffer: socket.send_buffer,
        receive_buffer: socket.receive_buffer,
        unsent: Some(UNSENT),
        ..ListenOptions::default()
    }
}

/// Describes why an address cannot be bound, and names the process that uses the address.
pub fn fault(address: SocketAddr, error: &io::Error) -> String {
    let is_taken = error.kind() == io::ErrorKind::AddrInUse;
    match is_taken.then(|| port_holder(address)).flatten() {
        Some(holder) => format!("address in use by {holder}"),
        None => error.to_string(),
    }
}

fn problem(listener: &Listener, address: SocketAddr, error: &io::Error) -> Problem {
    let problem = Problem::new(
        format!("listener[{}].bind", listener.keys.name),
        fault(address, error),
    )
    .value(address.to_string());
    let unused = "an address that no other process listens on";
    problem.accepted(bindable(error, unused))
}

/// Describes the addresses that can be bound, after this error. `unused` describes an address that
/// is not in use.
pub fn bindable(error: &io::Error, unused: &'static str) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => unused,
        io::ErrorKind::PermissionDenied => {
            "a port from 1024 up, or CAP_NET_BIND_SERVICE, or a start as root with process.user"
        }
        io::ErrorKind::AddrNotAvailable => "an address of this host",
        _ => "an address that can be bound",
    }
}

/// Maximum number of unsent bytes in the kernel per connection: twice the size of one read by the
/// relay. Without this limit, send buffers grow to 4 MiB, and several hundred slow clients exhaust
/// the kernel's TCP memory, so that the kernel drops data of other connections. Bulk transfers are
/// not measurably slower.
const UNSENT: u32 = 128 * 1024;
/// Time between two unanswered probes of an idle connection.
const PROBE_INTERVAL: std::time::Duration = std::time::Duration::from_secs(15);
/// Number of unanswered probes after which the connection is closed.
const PROBES: u32 = 4;
