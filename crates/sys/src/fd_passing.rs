//! Listening sockets inherited from a service manager.
//!
//! The protocol is that of sd_listen_fds(3), which systemd, systemfd and s6 support. `LISTEN_PID` is the process that
//! receives the sockets. `LISTEN_FDS` is the number of descriptors, which begin at 3. The names in `LISTEN_FDNAMES` are
//! ignored, because the address identifies a socket. Each descriptor must be a listening TCP socket.

use std::env;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use socket2::{Domain, SockRef, Type};

/// Takes over the listening sockets that were passed to this process, non-blocking and close-on-exec.
/// Returns an empty list if the environment lists none, or is meant for another process.
///
/// Removes the variables, so that neither a second call nor a child process uses them. Call this at the start of `main`:
/// before threads are started, since the environment must not change while they run, and before descriptors are opened.
///
/// # Errors
/// `InvalidData` if a variable cannot be parsed; `InvalidInput` if a descriptor is not a listening TCP socket; `ResourceBusy`
/// if sockets were passed and other threads run. Each message names the variable or the descriptor.
#[doc(alias = "sd_listen_fds")]
pub fn inherited_listeners() -> io::Result<Vec<TcpListener>> {
    let [pid, count] = ["LISTEN_PID", "LISTEN_FDS"].map(|name| env::var(name).ok());
    let count = passed(pid.as_deref(), count.as_deref(), std::process::id())?;
    if count == 0 {
        return Ok(Vec::new());
    }
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "inherited sockets must be taken over before threads are started",
        ));
    }
    for name in [
        "LISTEN_PID",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "LISTEN_PIDFDID",
    ] {
        // SAFETY: this is the only thread, so no other thread reads or writes the environment.
        unsafe { env::remove_var(name) };
    }
    let all = FIRST_PASSED..FIRST_PASSED + count;
    all.map(|fd| {
        adopt(fd).map_err(|error| {
            let message =
                format!("inherited descriptor {fd} is not a listening TCP socket: {error}");
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })
    })
    .collect()
}

fn passed(pid: Option<&str>, count: Option<&str>, own_pid: u32) -> io::Result<RawFd> {
    let (Some(pid), Some(count)) = (pid, count) else {
        return Ok(0);
    };
    if pid.parse() != Ok(own_pid) {
        return Ok(0);
    }
    let number = count.parse().ok();
    let number = number.filter(|number| (0..=MOST_PASSED).contains(number));
    number.ok_or_else(|| {
        let message = format!("LISTEN_FDS is {count:?}, not a number up to {MOST_PASSED}");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

fn adopt(fd: RawFd) -> io::Result<TcpListener> {
    // SAFETY: fcntl takes numbers only, and fails if the descriptor is not open.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, since fcntl accepted it and no other thread could close it.
    let seen = unsafe { BorrowedFd::borrow_raw(fd) };
    if !is_tcp_listener(seen)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the descriptor is open, and the process that started this one passed it to be owned. It is taken only once,
    // since the variables that name it were removed.
    let listener = TcpListener::from(unsafe { OwnedFd::from_raw_fd(fd) });
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn is_tcp_listener(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let socket = SockRef::from(&socket);
    let domain = socket.domain()?;
    Ok([Domain::IPV4, Domain::IPV6].contains(&domain)
        && socket.r#type()? == Type::STREAM
        && socket.is_listener()?)
}

/// `SD_LISTEN_FDS_START` of sd_listen_fds(3).
const FIRST_PASSED: RawFd = 3;
/// Maximum number of descriptors, far more than any service needs.
const MOST_PASSED: RawFd = 4096;

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn only_descriptors_passed_to_this_process_are_counted() {
        for (pid, count, expected) in [
            (Some("42"), Some("3"), Some(3)),
            (Some("42"), Some("0"), Some(0)),
            (Some("43"), Some("1"), Some(0)),
            (Some(""), Some("1"), Some(0)),
            (None, Some("1"), Some(0)),
            (Some("42"), None, Some(0)),
            (Some("42"), Some("-1"), None),
            (Some("42"), Some("x"), None),
            (Some("42"), Some("4097"), None),
        ] {
            assert_eq!(passed(pid, count, 42).ok(), expected, "{pid:?} {count:?}");
        }
    }

    #[test]
    fn a_descriptor_that_does_not_listen_is_rejected_and_stays_open() {
        assert!(adopt(RawFd::MAX).is_err());
        let file = fs::File::open("/dev/null").unwrap();
        let datagram = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let bound = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        for fd in [file.as_raw_fd(), datagram.as_raw_fd(), bound.as_raw_fd()] {
            assert!(adopt(fd).is_err());
        }
        assert!(file.metadata().is_ok());
    }
}
