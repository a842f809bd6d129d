//! Listening sockets inherited from a service manager or from the previous process.
//!
//! The protocol is that of sd_listen_fds(3): `LISTEN_PID` is the process that the sockets are for, `LISTEN_FDS` the number of
//! descriptors, which begin at 3, and `LISTEN_FDNAMES` their names, joined by colons. Other programs than systemd support it (systemfd,
//! s6, a becket that restarts itself). The environment is trusted to name descriptors that this process may own, but each of them
//! must be a listening TCP socket.

use std::env;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use socket2::{Domain, SockRef, Type};

/// A listening socket that was open when the process started.
#[derive(Debug)]
pub struct InheritedListener {
    /// Name of the socket, if it has one: in systemd, `FileDescriptorName=` or the name of the socket unit.
    pub name: Option<String>,
    /// The socket, which is set to non-blocking and close-on-exec.
    pub listener: TcpListener,
}

/// Takes over the listening sockets that were passed to this process. Returns none if the environment names none or another
/// process.
///
/// Removes the variables, so that neither a second call nor a child process uses them. Call this at the start of `main`:
/// before threads are started, since the environment must not change while they run, and before descriptors are opened.
///
/// # Errors
/// `InvalidData` if a variable cannot be parsed; `InvalidInput` if a descriptor is not a listening TCP socket; `ResourceBusy`
/// if sockets were passed and other threads run. Each message names the variable or the descriptor.
#[doc(alias = "sd_listen_fds")]
pub fn inherited_listeners() -> io::Result<Vec<InheritedListener>> {
    let [pid, count, names] =
        ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"].map(|name| env::var(name).ok());
    let passed = Passed::parse(
        pid.as_deref(),
        count.as_deref(),
        names.as_deref(),
        std::process::id(),
    )?;
    if passed.is_empty() {
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
    passed.into_iter().map(Passed::adopt).collect()
}

/// A descriptor that the environment names.
#[derive(Debug, PartialEq, Eq)]
struct Passed {
    fd: RawFd,
    name: Option<String>,
}

impl Passed {
    fn parse(
        pid: Option<&str>,
        count: Option<&str>,
        names: Option<&str>,
        own_pid: u32,
    ) -> io::Result<Vec<Self>> {
        let (Some(pid), Some(count)) = (pid, count) else {
            return Ok(Vec::new());
        };
        if pid.parse() != Ok(own_pid) {
            return Ok(Vec::new());
        }
        let count: RawFd = count
            .parse()
            .ok()
            .filter(|count| (0..=MOST_PASSED).contains(count))
            .ok_or_else(|| {
                invalid_data(format!(
                    "LISTEN_FDS is {count:?}, not a number up to {MOST_PASSED}"
                ))
            })?;
        let mut names = names.unwrap_or_default().split(':');
        let passed = (FIRST_PASSED..FIRST_PASSED + count)
            .map(|fd| Self {
                fd,
                name: names
                    .next()
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned),
            })
            .collect();
        Ok(passed)
    }

    fn adopt(self) -> io::Result<InheritedListener> {
        let refuse = |error: io::Error| {
            let name = self.name.as_deref().unwrap_or("unnamed");
            let message = format!(
                "inherited descriptor {} ({name}) is not a listening TCP socket: {error}",
                self.fd
            );
            io::Error::new(io::ErrorKind::InvalidInput, message)
        };
        // SAFETY: fcntl takes numbers only, and fails if the descriptor is not open.
        if unsafe { libc::fcntl(self.fd, libc::F_GETFD) } < 0 {
            return Err(refuse(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is open, since fcntl accepted it and no other thread could close it.
        let seen = unsafe { BorrowedFd::borrow_raw(self.fd) };
        if !is_tcp_listener(seen).map_err(refuse)? {
            return Err(refuse(io::ErrorKind::InvalidInput.into()));
        }
        // SAFETY: the descriptor is open, and the process that started this one passed it to be owned. It is taken only once,
        // since the variables that name it were removed.
        let listener = TcpListener::from(unsafe { OwnedFd::from_raw_fd(self.fd) });
        rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)?;
        listener.set_nonblocking(true)?;
        Ok(InheritedListener {
            name: self.name,
            listener,
        })
    }
}

fn is_tcp_listener(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let socket = SockRef::from(&socket);
    let domain = socket.domain()?;
    Ok([Domain::IPV4, Domain::IPV6].contains(&domain)
        && socket.r#type()? == Type::STREAM
        && socket.is_listener()?)
}

fn invalid_data(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// `SD_LISTEN_FDS_START`.
const FIRST_PASSED: RawFd = 3;
/// Maximum number of descriptors: more than any service listens on, and far from overflow.
const MOST_PASSED: RawFd = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pid: &str, count: &str, names: Option<&str>) -> io::Result<Vec<Passed>> {
        Passed::parse(Some(pid), Some(count), names, 42)
    }

    fn passed(fd: RawFd, name: Option<&str>) -> Passed {
        Passed {
            fd,
            name: name.map(str::to_owned),
        }
    }

    #[test]
    fn descriptors_begin_at_three_and_have_names() {
        let expected = [
            passed(3, Some("tls")),
            passed(4, None),
            passed(5, Some("admin")),
        ];
        assert_eq!(parse("42", "3", Some("tls::admin")).unwrap(), expected);
        assert_eq!(
            parse("42", "2", None).unwrap(),
            [passed(3, None), passed(4, None)]
        );
        assert_eq!(
            parse("42", "2", Some("a")).unwrap(),
            [passed(3, Some("a")), passed(4, None)]
        );
        assert_eq!(
            parse("42", "1", Some("a:b")).unwrap(),
            [passed(3, Some("a"))]
        );
    }

    #[test]
    fn what_is_meant_for_another_process_is_left_alone() {
        assert_eq!(parse("43", "1", None).unwrap(), []);
        assert_eq!(parse("", "1", None).unwrap(), []);
        assert_eq!(Passed::parse(None, Some("1"), None, 42).unwrap(), []);
        assert_eq!(Passed::parse(Some("42"), None, None, 42).unwrap(), []);
        assert_eq!(parse("42", "0", None).unwrap(), []);
    }

    #[test]
    fn a_count_that_is_none_is_an_error() {
        for count in ["", "-1", "x", "4097", "99999999999999999999"] {
            assert_eq!(
                parse("42", count, None).unwrap_err().kind(),
                io::ErrorKind::InvalidData,
                "{count}"
            );
        }
    }

    #[test]
    fn a_closed_descriptor_is_refused() {
        let error = passed(RawFd::MAX, Some("tls")).adopt().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("(tls)"), "{error}");
    }

    #[test]
    fn a_descriptor_that_does_not_listen_is_refused_and_stays_open() {
        use std::os::fd::AsRawFd;
        let file = fs::File::open("/dev/null").unwrap();
        assert!(passed(file.as_raw_fd(), None).adopt().is_err());
        let datagram = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(passed(datagram.as_raw_fd(), None).adopt().is_err());
        let bound = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(passed(bound.as_raw_fd(), None).adopt().is_err());
        assert!(file.metadata().is_ok());
    }
}
