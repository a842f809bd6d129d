//! Telling the service manager how we are.
//!
//! The protocol is that of sd_notify(3): datagrams of `KEY=value` lines to the Unix socket named in `NOTIFY_SOCKET`, a path or,
//! after `@`, an abstract name. Beyond that, `fd:0` is the standard input: whoever started this process, and nobody else, hears there. A manager that does not listen is no reason to stop: the caller logs the error and goes on.
//! The supervisor decides when to send what (`crates/process/src/run.rs`).

use std::env;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::clock;

/// What there is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// Start-up or a reload is finished.
    Ready,
    /// A reload has begun; [`Notice::Ready`] ends it. Sent with the monotonic time, as `Type=notify-reload` asks.
    Reloading,
    /// The drain has begun.
    Stopping,
    /// A line for people, shown by `systemctl status`. Control characters become spaces.
    Status(&'a str),
    /// A sign of life.
    Watchdog,
}

impl Notice<'_> {
    /// The status after a reload that changed nothing.
    pub const REFUSED: &'static str = "serving; the last reload was refused, the log says why";
}

/// The way to the service manager.
#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    /// Absent where the socket has one other end.
    address: Option<SocketAddr>,
}

impl Notifier {
    /// Finds the service manager through the environment; `None` if there is none that wants to know.
    ///
    /// # Errors
    /// `Unsupported` for an address that is neither a path nor abstract; `InvalidInput` for one that is too long.
    pub fn from_env() -> io::Result<Option<Self>> {
        let Some(address) = env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty())
        else {
            return Ok(None);
        };
        Self::new(&address).map(Some)
    }

    fn new(address: &OsStr) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            b"fd:0" => {
                let socket = UnixDatagram::from(io::stdin().as_fd().try_clone_to_owned()?);
                socket.set_nonblocking(true)?;
                let address = None;
                return Ok(Self { socket, address });
            }
            _ => {
                let message =
                    format!("NOTIFY_SOCKET is {address:?}, neither a path nor an abstract name");
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let address = Some(address);
        Ok(Self { socket, address })
    }

    /// Sends notices in one datagram, without waiting.
    ///
    /// # Errors
    /// What sendto(2) returns: `WouldBlock` if the manager does not keep up, `NotFound` or `ConnectionRefused` if it is gone.
    pub fn send(&self, notices: &[Notice<'_>]) -> io::Result<()> {
        let message = message(notices, clock::read(libc::CLOCK_MONOTONIC));
        match &self.address {
            Some(address) => self.socket.send_to_addr(message.as_bytes(), address),
            None => self.socket.send(message.as_bytes()),
        }
        .map(drop)
    }
}

fn message(notices: &[Notice<'_>], now: Duration) -> String {
    let mut text = String::new();
    for notice in notices {
        match notice {
            Notice::Ready => text.push_str("READY=1"),
            Notice::Reloading => {
                text.push_str("RELOADING=1\nMONOTONIC_USEC=");
                write!(text, "{}", now.as_micros()).unwrap_or_default();
            }
            Notice::Stopping => text.push_str("STOPPING=1"),
            Notice::Status(status) => {
                text.push_str("STATUS=");
                text.extend(status.chars().map(|c| if c.is_control() { ' ' } else { c }));
            }
            Notice::Watchdog => text.push_str("WATCHDOG=1"),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn notices_are_lines() {
        let notices = [
            Notice::Ready,
            Notice::Status("3 listeners"),
            Notice::Watchdog,
            Notice::Stopping,
        ];
        assert_eq!(
            message(&notices, Duration::ZERO),
            "READY=1\nSTATUS=3 listeners\nWATCHDOG=1\nSTOPPING=1\n"
        );
    }

    #[test]
    fn a_reload_carries_the_time_in_microseconds() {
        let now = Duration::from_millis(1234);
        assert_eq!(
            message(&[Notice::Reloading], now),
            "RELOADING=1\nMONOTONIC_USEC=1234000\n"
        );
    }

    #[test]
    fn a_status_cannot_smuggle_in_another_line() {
        assert_eq!(
            message(&[Notice::Status("a\nREADY=1")], Duration::ZERO),
            "STATUS=a READY=1\n"
        );
    }

    #[test]
    fn a_socket_with_a_path_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(path.as_os_str()).unwrap();
        notifier.send(&[Notice::Ready]).unwrap();
        assert_eq!(receive(&manager), "READY=1\n");
        drop(manager);
        assert_eq!(
            notifier.send(&[Notice::Ready]).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn an_abstract_socket_is_told() {
        let name = format!("becket-sys-notify-{}", std::process::id());
        let manager =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Notifier::new(OsStr::new(&format!("@{name}")))
            .unwrap()
            .send(&[Notice::Stopping])
            .unwrap();
        assert_eq!(receive(&manager), "STOPPING=1\n");
    }

    #[test]
    fn other_addresses_are_not_supported() {
        let error = Notifier::new(OsStr::new("vsock:2:1234")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
