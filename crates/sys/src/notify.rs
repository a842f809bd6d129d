//! Sends status messages to the service manager.
//!
//! The protocol is that of sd_notify(3): datagrams of `KEY=value` lines to the Unix socket in
//! `NOTIFY_SOCKET`, which is a path or, after `@`, an abstract name. As an extension, `fd:0` means
//! standard input, through which the parent process receives the messages. The caller logs a
//! failure and continues.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::clock;

#[derive(Debug)]
pub struct Notifier {
    socket: UnixDatagram,
    /// Address of the service manager; `None` if the socket is connected.
    address: Option<SocketAddr>,
}

impl Notifier {
    /// Finds the service manager through the environment. Returns `None` if there is none.
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

    /// Sends lines in one datagram, without waiting.
    ///
    /// # Errors
    /// Returns the errors of sendto(2): `WouldBlock` if the manager does not keep up, `NotFound` or
    /// `ConnectionRefused` if it has exited.
    pub fn send(&self, lines: &str) -> io::Result<()> {
        match &self.address {
            Some(address) => self.socket.send_to_addr(lines.as_bytes(), address),
            None => self.socket.send(lines.as_bytes()),
        }
        .map(drop)
    }
}

/// Returns the message that announces a reload. `Type=notify-reload` requires it to contain the monotonic time.
#[must_use]
pub fn reloading() -> String {
    let now = clock::read(libc::CLOCK_MONOTONIC);
    format!("RELOADING=1\nMONOTONIC_USEC={}\n", now.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_reach_a_path_or_an_abstract_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("becket-sys-notify-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (address, manager) in [
            (path.clone().into_os_string(), UnixDatagram::bind(&path)),
            (
                format!("@{name}").into(),
                UnixDatagram::bind_addr(&abstract_name),
            ),
        ] {
            let manager = manager.unwrap();
            let notifier = Notifier::new(&address).unwrap();
            notifier.send("READY=1\n").unwrap();
            let mut buffer = [0; 256];
            let length = manager.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1\n");
            drop(manager);
            let gone = notifier.send("READY=1\n").unwrap_err();
            assert_eq!(gone.kind(), io::ErrorKind::ConnectionRefused);
        }
        let error = Notifier::new(OsStr::new("vsock:2:1234")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
