//! Creates listening sockets with all their options, and closes them without resets. Also detects sockets of another
//! process on an address.
//!
//! Linux copies the options of a listening socket to every accepted socket. So `TCP_NODELAY`, keep-alive and buffer
//! sizes are set here once and cost no system call per connection.
//!
//! `SO_REUSEPORT` gives each worker a separate accept queue, with two disadvantages. Binding succeeds even if another
//! process of the same user already listens on the address; [`probe`] detects this. Closing a listener resets the
//! connections in its queue. So the owner calls [`refuse_new`] first, accepts until the queue is empty, and then closes
//! the listener.
//!
//! A socket without `SO_REUSEPORT` can pass its address to another socket without downtime: [`give_way`] and
//! [`succeed`].
//!
//! `crates/control/src/sockets.rs` determines which addresses are bound, and when. Sources: socket(7), ip(7), ipv6(7),
//! tcp(7); RFC 5082 (the TTL security mechanism).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::AttachReusePortCbpf;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::option::set_int;

/// Options of a listening socket, and of every socket accepted from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Shares the address among all sockets with this option (`SO_REUSEPORT`), one per worker. All these sockets must
    /// belong to the same user.
    pub reuse_port: bool,
    /// Maximum number of connections that wait to be accepted. The kernel limits it to `net.core.somaxconn`.
    pub backlog: u32,
    /// Delays the accept until the client has sent data, or until this time has passed (`TCP_DEFER_ACCEPT`). In whole
    /// seconds; the kernel rounds up to its next retransmission of the SYN-ACK.
    pub defer_accept: Option<Duration>,
    /// Accepts data in the SYN (`TCP_FASTOPEN`). The value is the maximum number of such
    /// connections that are pending.
    pub fast_open: Option<u32>,
    pub keepalive: Option<Keepalive>,
    /// Requested send buffer size in bytes (`SO_SNDBUF`). The kernel doubles it for its own book-keeping and stops
    /// automatic tuning.
    pub send_buffer: Option<usize>,
    /// Requested receive buffer size in bytes (`SO_RCVBUF`). The kernel doubles it for its own book-keeping and stops
    /// automatic tuning.
    pub receive_buffer: Option<usize>,
    /// Maximum number of unsent bytes in the send buffer (`TCP_NOTSENT_LOWAT`). Limits the data that the kernel buffers
    /// for a slow reader, even if the send buffer is large.
    pub unsent: Option<u32>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            reuse_port: true,
            backlog: DEFAULT_BACKLOG,
            defer_accept: None,
            fast_open: None,
            keepalive: None,
            send_buffer: None,
            receive_buffer: None,
            unsent: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first keep-alive probe; whole seconds, 1 to 32767.
    pub time: Duration,
    /// Time between keep-alive probes; whole seconds, 1 to 32767.
    pub interval: Duration,
    /// Number of unanswered keep-alive probes after which the kernel closes the connection; 1 to
    /// 127.
    pub count: u32,
}

/// Opens a listening socket: non-blocking, close-on-exec, with `SO_REUSEADDR`.
///
/// # Errors
/// Returns the errors of [`bind`], or the kernel's error for an option out of its range.
pub fn listen(address: SocketAddr, options: &ListenOptions) -> io::Result<TcpListener> {
    listen_on(bind(address, options)?, options)
}

/// Binds to an address without listening yet: non-blocking, close-on-exec, with `SO_REUSEADDR`. Sets only
/// the options that affect the address.
///
/// # Errors
/// `AddrInUse` if another socket that does not share the address listens on it; `PermissionDenied` for a low port without
/// `CAP_NET_BIND_SERVICE`; `AddrNotAvailable` for an address that no interface has.
pub fn bind(address: SocketAddr, options: &ListenOptions) -> io::Result<OwnedFd> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(options.reuse_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Sets all options of a bound socket, and listens. The socket may already listen, and
/// [`refuse_new`] may have been called on it.
///
/// # Errors
/// Returns the kernel's error for an option out of its range.
pub fn listen_on(socket: OwnedFd, options: &ListenOptions) -> io::Result<TcpListener> {
    let socket = set_options(socket, options)?;
    bound_queue(&socket, options.backlog)?;
    Ok(socket)
}

/// Sets all options of a bound socket, as [`listen_on`] does, but does not call listen(2). A socket
/// that does not listen yet accepts no connection until [`bound_queue`] is called.
///
/// # Errors
/// Returns the kernel's error for an option out of its range.
pub fn set_options(socket: OwnedFd, options: &ListenOptions) -> io::Result<TcpListener> {
    let socket = Socket::from(socket);
    admit(&socket)?;
    // The SYN-ACK fixes the window scale, so buffer sizes must be set before listen().
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.unsent {
        socket.set_tcp_notsent_lowat(bytes)?;
    }
    // Nagle's algorithm would delay the small segments of a handshake.
    socket.set_tcp_nodelay(true)?;
    if let Some(keepalive) = &options.keepalive {
        let parameters = TcpKeepalive::new()
            .with_time(keepalive.time)
            .with_interval(keepalive.interval)
            .with_retries(keepalive.count);
        socket.set_tcp_keepalive(&parameters)?;
    }
    if let Some(patience) = options.defer_accept {
        let seconds = patience
            .as_secs()
            .saturating_add(u64::from(patience.subsec_nanos() > 0));
        set_int(
            socket.as_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            clamp(seconds),
        )?;
    }
    if let Some(pending) = options.fast_open {
        set_int(
            socket.as_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN,
            clamp(pending.into()),
        )?;
    }
    Ok(socket.into())
}

/// Checks whether a socket already listens on `address`, even if that socket has `SO_REUSEPORT`.
///
/// Binds a socket without `SO_REUSEPORT`, which fails if another socket listens, and closes it. The probe itself does
/// not listen, so it never accepts a client. Connections in TIME_WAIT do not count. The result may be outdated on
/// return.
///
/// # Errors
/// `AddrInUse` if another socket listens on the address; otherwise the errors of [`listen`].
pub fn probe(address: SocketAddr) -> io::Result<()> {
    let options = ListenOptions {
        reuse_port: false,
        ..ListenOptions::default()
    };
    bind(address, &options).map(drop)
}

/// Allows a process of the same user to take over the address of a listening socket ([`succeed`]). The socket receives
/// all connections until the takeover.
pub fn give_way(listener: impl AsFd) -> io::Result<()> {
    SockRef::from(&listener).set_reuse_port(true)
}

/// Listens on a free address, or takes over an address whose owner has called [`give_way`]. All new
/// connections then arrive at the new socket; the old socket keeps the connections in its queue.
///
/// While both sockets exist, they form a `SO_REUSEPORT` group with a BPF program that always
/// selects the second socket. When one socket is closed, the kernel selects the remaining socket.
/// The kernel also remembers that the port was shared: a third socket of the same user can bind the
/// port, even if the second socket has not called [`give_way`].
///
/// # Errors
/// Returns the errors of [`bind`].
pub fn succeed(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        bound => return bound,
    }
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(clamp(DEFAULT_BACKLOG.into()))?;
    choose_second(&socket)?;
    // Among IPv4 sockets, the kernel prefers the newest one without `SO_REUSEPORT` to the choice of
    // the BPF program. Without the option, a third socket can later take over from this one.
    socket.set_reuse_port(false)?;
    Ok(socket.into())
}

/// Makes the kernel direct new connections of a `SO_REUSEPORT` group to the socket that joined it second.
fn choose_second(socket: &Socket) -> io::Result<()> {
    let mut program = [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: 1,
    }];
    let program = libc::sock_fprog {
        len: 1,
        filter: program.as_mut_ptr(),
    };
    Ok(setsockopt(socket, AttachReusePortCbpf, &program)?)
}

/// Changes the maximum number of connections that wait to be accepted. Connections in the queue stay. Starts to listen
/// if the socket does not listen yet.
///
/// A SYN that arrives while the queue is full is dropped, and the client retries after one second. A handshake in
/// progress completes when the queue has space again; until then, its client retransmits its data.
///
/// # Errors
/// Returns the errors of listen(2); none occurs on a listening socket.
pub fn bound_queue(listener: impl AsFd, backlog: u32) -> io::Result<()> {
    SockRef::from(&listener).listen(clamp(backlog.into()))
}

/// Makes a listening socket ignore new connections, so that its queue can be emptied by accepting and the socket can
/// then be closed without a reset.
///
/// Connections in the queue stay, and handshakes in progress complete. A later client receives no answer and retries
/// its SYN (after 1 s, 3 s, 7 s). The retry reaches another socket of the address, or is reset if there is none. Pass
/// every socket accepted after this call to [`admit`].
///
/// The listening socket then requires a TTL of 255 (`IP_MINTTL`, `IPV6_MINHOPCOUNT`; RFC 5082), but common systems send
/// SYNs with 64 or 128. Later segments of a handshake pass, because the listening socket does not receive them. A host
/// on the same link that sends with 255 is still queued. A socket filter would also drop these SYNs, but kernels since
/// June 2026 require `CAP_NET_ADMIN` for it.
///
/// With `defer_accept`, a client that has sent no data is not in the queue, although its connection is established from
/// the client's view. It is accepted if it sends data in time, and reset if the listener is closed before.
pub fn refuse_new(listener: impl AsFd) -> io::Result<()> {
    demand_ttl(listener.as_fd(), 255)
}

/// Removes the TTL requirement that an accepted socket may have inherited from a listener after [`refuse_new`].
///
/// Data that the client sent before was dropped, and arrives when the client retransmits it after about 200 ms.
pub fn admit(accepted: impl AsFd) -> io::Result<()> {
    demand_ttl(accepted.as_fd(), 0)
}

fn demand_ttl(socket: BorrowedFd<'_>, least: libc::c_int) -> io::Result<()> {
    // An IPv6 socket may also receive IPv4, so both options are set.
    if SockRef::from(&socket).domain()? == Domain::IPV6 {
        set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT, least)?;
    }
    set_int(socket, libc::IPPROTO_IP, libc::IP_MINTTL, least)
}

/// Converts to the kernel's `int`. Values that are too large become the maximum.
fn clamp(value: u64) -> libc::c_int {
    libc::c_int::try_from(value).unwrap_or(libc::c_int::MAX)
}

/// Default of `net.core.somaxconn` since Linux 5.4. The kernel limits every backlog to this
/// setting.
const DEFAULT_BACKLOG: u32 = 4096;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    fn ready(fd: impl AsFd, flags: PollFlags, patience: Duration) -> bool {
        let timeout = Timespec::try_from(patience).unwrap();
        poll(&mut [PollFd::new(&fd, flags)], Some(&timeout)).unwrap() == 1
    }

    fn accept(listener: &TcpListener) -> TcpStream {
        assert!(
            ready(listener, PollFlags::IN, Duration::from_secs(10)),
            "nothing to accept"
        );
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    }

    fn exchange(a: &mut TcpStream, b: &mut TcpStream) {
        let mut byte = [0];
        for stream in [&*a, &*b] {
            stream
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
        }
        a.write_all(b"x").unwrap();
        b.read_exact(&mut byte).unwrap();
        b.write_all(b"y").unwrap();
        a.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"y");
    }

    #[test]
    fn the_bound_of_the_accept_queue_can_be_lowered_and_raised() {
        let listener = listen(LOOPBACK, &ListenOptions::default()).unwrap();
        let address = listener.local_addr().unwrap();
        // The kernel admits one connection beyond the bound.
        bound_queue(&listener, 0).unwrap();
        let _first = TcpStream::connect(address).unwrap();
        let second = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap();
        let _under_way = second.connect(&address.into());
        accept(&listener);
        let error = listener.accept().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        bound_queue(&listener, 16).unwrap();
        accept(&listener);
    }

    #[test]
    fn accepted_sockets_inherit_the_listeners_options() {
        let keepalive = Keepalive {
            time: Duration::from_secs(77),
            interval: Duration::from_secs(7),
            count: 3,
        };
        let options = ListenOptions {
            keepalive: Some(keepalive),
            receive_buffer: Some(50_000),
            fast_open: Some(64),
            ..ListenOptions::default()
        };
        let listener = listen(LOOPBACK, &options).unwrap();
        let flags = rustix::io::fcntl_getfd(&listener).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = accept(&listener);
        let accepted = SockRef::from(&accepted);
        assert!(accepted.keepalive().unwrap() && accepted.tcp_nodelay().unwrap());
        assert_eq!(accepted.tcp_keepalive_time().unwrap(), keepalive.time);
        let interval = accepted.tcp_keepalive_interval().unwrap();
        assert_eq!(interval, keepalive.interval);
        assert_eq!(accepted.tcp_keepalive_retries().unwrap(), keepalive.count);
        assert_eq!(accepted.recv_buffer_size().unwrap(), 100_000);
    }

    /// Returns the bytes that the server's socket accepts for a client that reads nothing.
    fn taken_for_nobody(unsent: Option<u32>) -> usize {
        let options = ListenOptions {
            unsent,
            ..ListenOptions::default()
        };
        let listener = listen(LOOPBACK, &options).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut accepted = accept(&listener);
        accepted.set_nonblocking(true).unwrap();
        let mut taken = 0;
        while let Ok(n) = accepted.write(&[0; 4096]) {
            taken += n;
        }
        taken
    }

    #[test]
    fn kernel_memory_for_a_client_that_does_not_read_is_bounded() {
        let window = 1024 * 1024;
        assert!(taken_for_nobody(None) > window);
        assert!(taken_for_nobody(Some(65_536)) < window);
    }

    #[test]
    fn a_new_listener_takes_over_the_address_of_a_released_one() {
        let hosts = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for host in hosts.map(|host: std::net::IpAddr| SocketAddr::new(host, 0)) {
            let Ok(mut holder) = succeed(host) else {
                becket_tidy::skip("needs IPv6");
                continue;
            };
            let address = holder.local_addr().unwrap();
            let in_use = succeed(address).unwrap_err();
            assert_eq!(in_use.kind(), io::ErrorKind::AddrInUse);
            // In the second round, the holder is a successor itself.
            for _ in 0..2 {
                give_way(&holder).unwrap();
                let waits = TcpStream::connect(address).unwrap();
                let next = succeed(address).unwrap();
                let later = TcpStream::connect(address).unwrap();
                for (listener, client) in [(&holder, waits), (&next, later)] {
                    let (_, from) = listener.accept().unwrap();
                    assert_eq!(from, client.local_addr().unwrap());
                }
                holder = next;
            }
        }
    }

    #[test]
    fn a_probe_detects_shared_listeners_and_ignores_time_wait() {
        let listener = listen(LOOPBACK, &ListenOptions::default()).unwrap();
        let address = listener.local_addr().unwrap();
        let second = listen(address, &ListenOptions::default()).unwrap();
        let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        for served in [address, everywhere] {
            let error = probe(served).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        }
        drop(second);
        let mut client = TcpStream::connect(address).unwrap();
        // The side that closes first keeps TIME_WAIT: here the server's.
        drop(accept(&listener));
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop((client, listener));
        probe(address).unwrap();
    }

    #[test]
    fn a_probe_accepts_no_connection() {
        let free = listen(LOOPBACK, &ListenOptions::default()).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let over = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                let mut got_in = 0;
                while !over.load(relaxed) {
                    let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                    // A socket at the address itself could connect to itself.
                    client
                        .bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into())
                        .unwrap();
                    got_in += usize::from(client.connect(&address.into()).is_ok());
                }
                got_in
            });
            let failed = (0..5000).filter(|_| probe(address).is_err()).count();
            over.store(true, relaxed);
            assert_eq!((failed, clients.join().unwrap()), (0, 0));
        });
    }

    #[test]
    fn a_v6_listener_accepts_no_v4() {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let Ok(listener) = listen(any, &ListenOptions::default()) else {
            becket_tidy::skip("needs IPv6");
            return;
        };
        assert!(SockRef::from(&listener).only_v6().unwrap());
    }

    #[test]
    fn a_deferred_accept_waits_for_the_first_byte() {
        let options = ListenOptions {
            defer_accept: Some(Duration::from_millis(9500)),
            ..ListenOptions::default()
        };
        let listener = listen(LOOPBACK, &options).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        client.write_all(b"x").unwrap();
        let mut byte = [0];
        accept(&listener).read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    fn stays_deaf(listener: TcpListener, dial: impl Fn(u16) -> SocketAddr) {
        let address = dial(listener.local_addr().unwrap().port());
        let mut early = TcpStream::connect(address).unwrap();
        let mut early_accepted = accept(&listener);
        let mut queued: Vec<_> = (0..3)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();

        refuse_new(&listener).unwrap();

        let domain = Domain::for_address(address);
        let late = Socket::new(domain, Type::STREAM.nonblocking(), None).unwrap();
        let outcome = late.connect(&address.into()).unwrap_err();
        assert_eq!(outcome.raw_os_error(), Some(libc::EINPROGRESS));
        let is_connected = ready(&late, PollFlags::OUT, Duration::from_millis(200));
        assert!(!is_connected, "a new connection went through");

        exchange(&mut early, &mut early_accepted);
        let mut accepted: Vec<_> = queued.iter().map(|_| accept(&listener)).collect();
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(listener);
        for (client, server) in queued.iter_mut().zip(&mut accepted) {
            // These handshakes were complete before, so `admit` has no effect, and does no harm.
            exchange(client, server);
            admit(&*server).unwrap();
            exchange(client, server);
        }
        exchange(&mut early, &mut early_accepted);
    }

    #[test]
    fn a_listener_that_rejects_new_clients_keeps_its_queue() {
        let v4 = |port| (Ipv4Addr::LOCALHOST, port).into();
        stays_deaf(listen(LOOPBACK, &ListenOptions::default()).unwrap(), v4);
        // A socket of the service manager may accept both families.
        let both = || -> io::Result<TcpListener> {
            let socket = Socket::new(Domain::IPV6, Type::STREAM.nonblocking(), None)?;
            socket.set_only_v6(false)?;
            socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into())?;
            socket.listen(16)?;
            Ok(socket.into())
        };
        let Ok(listener) = both() else {
            becket_tidy::skip("needs IPv6");
            return;
        };
        stays_deaf(listener, |port| (Ipv6Addr::LOCALHOST, port).into());
        stays_deaf(both().unwrap(), v4);
    }

    #[test]
    fn a_handshake_in_progress_completes_after_new_clients_are_rejected() {
        // The handshake of a deferred client is complete only when it sends data.
        let options = ListenOptions {
            defer_accept: Some(Duration::from_secs(10)),
            ..ListenOptions::default()
        };
        let listener = listen(LOOPBACK, &options).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        refuse_new(&listener).unwrap();
        client.write_all(b"x").unwrap();
        let mut server = accept(&listener);
        admit(&server).unwrap();
        server.read_exact(&mut [0]).unwrap();
        exchange(&mut client, &mut server);
    }
}
