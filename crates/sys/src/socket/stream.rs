//! Operations on the socket of a connection that neither `std` nor `mio` offers.
//!
//! Each function is one system call on a borrowed socket and never blocks. Sources: tcp(7), ip(7), socket(7), poll(2).

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::option::set_int;

/// Makes close() discard unsent data and send RST (`SO_LINGER` with 0 s), without TIME_WAIT.
///
/// # Errors
/// Returns the errors of setsockopt(2); none occurs on an open socket.
pub fn reset_on_close(socket: impl AsFd) -> io::Result<()> {
    SockRef::from(&socket).set_linger(Some(Duration::ZERO))
}

/// Sends bytes with `MSG_MORE`: the kernel may hold back the last bytes until the caller sends more
/// data, which must follow immediately. Returns the number of bytes that the kernel accepted.
///
/// # Errors
/// Returns the errors of send(2).
pub fn send_more(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(send(socket, bytes, SendFlags::MORE | SendFlags::NOSIGNAL)?)
}

/// Sends up to `most` bytes of a file from offset `at` (sendfile(2)). Returns 0 at the end of the file.
///
/// Blocks on file data that is not in memory, even with a non-blocking socket; [`cached`](crate::tree::cached) returns
/// how much is in memory.
///
/// # Errors
/// Returns the errors of send(2); `InvalidInput` if the kernel cannot send this type of file.
pub fn send_file(socket: impl AsFd, file: impl AsFd, at: u64, most: usize) -> io::Result<usize> {
    let mut at = at;
    match sendfile(socket, file, Some(&mut at), most) {
        Err(Errno::IO | Errno::NOMEM) => Err(io::ErrorKind::InvalidInput.into()),
        sent => Ok(sent?),
    }
}

/// Returns the number of bytes in the send buffer that the peer has not acknowledged (`SIOCOUTQ`). A FIN counts as one
/// byte.
///
/// # Errors
/// `InvalidInput` on a listening socket.
pub fn unsent(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is borrowed, hence open; SIOCOUTQ (the same number as TIOCOUTQ) writes one int.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Returns `true` if the kernel has received a FIN or RST from the peer.
///
/// Call it before an expensive step such as signing, because clients may leave while they are queued. It is one poll(2)
/// without waiting. Unlike a peek, it detects a FIN after unread data, and does not clear a pending error. After the
/// handshake, a client that has sent a FIN may still read.
///
/// # Errors
/// `OutOfMemory` from poll(2).
pub fn client_gone(socket: impl AsFd) -> io::Result<bool> {
    let mut look = [PollFd::new(&socket, PollFlags::RDHUP)];
    match poll(&mut look, Some(&Timespec::default())) {
        Ok(_) => {}
        // The call was interrupted. The next read detects a closed connection.
        Err(Errno::INTR) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    Ok(look.iter().any(|seen| seen.revents().intersects(ended)))
}

/// Returns `true` if a large part of the send buffer is free (poll(2) without waiting). If `false`, a writable event
/// follows when it is free.
///
/// # Errors
/// `OutOfMemory` from poll(2).
pub fn has_room(socket: impl AsFd) -> io::Result<bool> {
    let mut look = [PollFd::new(&socket, PollFlags::OUT)];
    match poll(&mut look, Some(&Timespec::default())) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Returns `true` if a client waits in the accept queue of a listening socket (poll(2) without waiting). If `false`, a
/// readable event follows when one waits.
///
/// # Errors
/// `OutOfMemory` from poll(2).
pub fn has_client(socket: impl AsFd) -> io::Result<bool> {
    let mut look = [PollFd::new(&socket, PollFlags::IN)];
    match poll(&mut look, Some(&Timespec::default())) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Returns the time since the peer last sent data, or since it connected if it has sent none (`TCP_INFO`), with a
/// resolution of one millisecond. For a socket that was just accepted, this is its time in the accept queue.
///
/// # Errors
/// Returns the errors of getsockopt(2); none occurs on a TCP socket.
pub fn silent_for(socket: impl AsFd) -> io::Result<Duration> {
    // SAFETY: all fields are integers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, hence open; the pointers describe `info` and its length, which the kernel does not exceed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::from_millis(info.tcpi_last_data_recv.into()))
}

/// Binds a socket to a source address before its connect. The kernel chooses the port in connect(2).
///
/// With `IP_BIND_ADDRESS_NO_PORT`, the kernel chooses the port when the destination is known. So a source address has
/// all its ephemeral ports for *each* destination, instead of for all destinations together.
///
/// # Errors
/// `AddrNotAvailable` for an address that no interface has; `InvalidInput` for an address of the wrong family, or if
/// the socket is already bound.
pub fn bind_no_port(socket: impl AsFd, source: IpAddr) -> io::Result<()> {
    // The kernel accepts the option at this level for IPv6 sockets as well.
    set_int(
        socket.as_fd(),
        libc::IPPROTO_IP,
        libc::IP_BIND_ADDRESS_NO_PORT,
        1,
    )?;
    SockRef::from(&socket).bind(&SocketAddr::new(source, 0).into())
}

/// Starts a non-blocking connect, from a source address if one is given. The kernel chooses the port as in
/// [`bind_no_port`]. The socket is close-on-exec, and becomes writable when the result is known.
///
/// # Errors
/// `AddrNotAvailable` for an address that no interface has, or if all its ports for this destination are in use;
/// otherwise the immediate error of connect(2).
pub fn connect(address: SocketAddr, source: Option<IpAddr>) -> io::Result<TcpStream> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if let Some(source) = source {
        bind_no_port(&socket, source)?;
    }
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        result => result?,
    }
    Ok(socket.into())
}

/// Returns `true` if a connect failed because a local resource (descriptors, ports, memory) is
/// exhausted.
pub fn is_local_shortage(error: &io::Error) -> bool {
    let ours = [
        libc::EADDRNOTAVAIL,
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| ours.contains(&code))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        (client, server)
    }

    fn wait(fd: impl AsFd, flags: PollFlags) {
        let timeout = Timespec::try_from(Duration::from_secs(10)).unwrap();
        let ready = poll(&mut [PollFd::new(&fd, flags)], Some(&timeout));
        assert_eq!(ready, Ok(1));
    }

    #[test]
    fn connect_errors_distinguish_local_shortage_from_server_failure() {
        let nowhere = Ipv4Addr::new(192, 0, 2, 1);
        // Bound but not listening: no other socket has the port, and it refuses connections.
        let closed = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        closed.bind(&any.into()).unwrap();
        let address = closed.local_addr().unwrap().as_socket().unwrap();
        let error = connect(address, Some(nowhere.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(is_local_shortage(&error), "{error}");
        let error = TcpStream::connect(address).unwrap_err();
        assert!(!is_local_shortage(&error), "{error}");
    }

    #[test]
    fn unsent_bytes_are_counted_when_the_receive_window_is_full() {
        let (mut client, _server) = pair();
        assert_eq!(unsent(&client).unwrap(), 0);
        client.set_nonblocking(true).unwrap();
        while client.write(&[0; 65536]).is_ok() {}
        assert!(unsent(&client).unwrap() > 0);
    }

    #[test]
    fn a_client_that_closed_after_its_data_or_reset_is_detected() {
        for resets in [false, true] {
            let (mut client, server) = pair();
            assert!(!client_gone(&server).unwrap());
            client.write_all(b"x").unwrap();
            wait(&server, PollFlags::IN);
            assert!(!client_gone(&server).unwrap());
            if resets {
                reset_on_close(&client).unwrap();
            }
            drop(client);
            wait(&server, PollFlags::RDHUP);
            assert!(client_gone(&server).unwrap());
        }
    }

    #[test]
    fn idle_time_is_measured_from_the_last_received_data() {
        let (mut client, server) = pair();
        let before = Duration::from_secs(5);
        assert!(silent_for(&server).unwrap() < before);
        while silent_for(&server).unwrap() < Duration::from_millis(20) {
            let pause = Timespec::try_from(Duration::from_millis(1)).unwrap();
            poll(&mut [PollFd::new(&server, PollFlags::IN)], Some(&pause)).unwrap();
        }
        client.write_all(b"x").unwrap();
        wait(&server, PollFlags::IN);
        assert!(silent_for(&server).unwrap() < before);
    }

    #[test]
    fn a_source_port_is_assigned_at_connect_not_at_bind() {
        let sources: [IpAddr; 2] = [
            Ipv4Addr::new(127, 0, 0, 8).into(),
            Ipv6Addr::LOCALHOST.into(),
        ];
        for source in sources {
            let loopback: IpAddr = match source {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            let Ok(listener) = TcpListener::bind((loopback, 0)) else {
                becket_tidy::skip("needs IPv6");
                continue;
            };
            let address = listener.local_addr().unwrap();
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
            bind_no_port(&socket, source).unwrap();
            assert_eq!(socket.local_addr().unwrap().as_socket().unwrap().port(), 0);
            let stream = connect(address, Some(source)).unwrap();
            wait(&stream, PollFlags::OUT);
            assert_eq!(listener.accept().unwrap().1.ip(), source);
        }
    }
}
