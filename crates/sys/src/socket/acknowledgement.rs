//! Measures when the peer's kernel acknowledged sent data (`SO_TIMESTAMPING`, the kernel's
//! `Documentation/networking/timestamping.rst`).
//!
//! A client considers its connection established when the SYN-ACK arrives. If the server's accept queue is full, the
//! server's kernel drops the final ACK and the first data. Only acknowledged data shows that the connection has reached
//! the accept queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, Timestamps, recvmsg};

use super::option::set_int;
use crate::clock;

/// Enables or disables kernel timestamps for the acknowledgement of data sent from now on.
///
/// # Errors
/// Returns the errors of setsockopt(2); `InvalidInput` from a kernel before Linux 4.0.
pub fn note_acknowledgements(socket: impl AsFd, on: bool) -> io::Result<()> {
    let told = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    let noted = if on { libc::SOF_TIMESTAMPING_TX_ACK } else { 0 };
    let flags = (told | noted).cast_signed();
    set_int(
        socket.as_fd(),
        libc::SOL_SOCKET,
        libc::SO_TIMESTAMPING,
        flags,
    )
}

/// Returns how long ago the first recorded send was completely acknowledged, or `None` if it is not
/// acknowledged yet. Removes the record.
///
/// Uses the wall clock (`CLOCK_REALTIME`). A clock step makes the result wrong, but never negative.
///
/// # Errors
/// Returns the errors of recvmsg(2) except `WouldBlock`.
pub fn acknowledged_ago(socket: impl AsFd) -> io::Result<Option<Duration>> {
    let mut control = nix::cmsg_space!(Timestamps, [u8; CONTROL]);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let fd = socket.as_fd().as_raw_fd();
    let received = match recvmsg::<()>(fd, &mut [], Some(&mut control), flags) {
        Err(Errno::EAGAIN) => return Ok(None),
        received => received?,
    };
    let noted = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmTimestampsns(times) => Some(times.system),
        _ => None,
    });
    let now = clock::read(libc::CLOCK_REALTIME);
    Ok(noted.map(|at| now.saturating_sub(at.into())))
}

const CONTROL: usize = 128;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn the_acknowledgement_of_a_noted_send_is_reported_once() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(acknowledged_ago(&socket).unwrap(), None);
        socket.write_all(b"before").unwrap();
        note_acknowledgements(&socket, true).unwrap();
        assert_eq!(acknowledged_ago(&socket).unwrap(), None);
        socket.write_all(b"noted").unwrap();
        note_acknowledgements(&socket, false).unwrap();
        socket.write_all(b"behind").unwrap();
        // Over loopback the other side acknowledges at once, or later with a delayed acknowledgement.
        let patience = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        let mut look = [PollFd::new(&socket, PollFlags::empty())];
        assert_eq!(poll(&mut look, Some(&patience)), Ok(1), "nothing was told");
        let ago = acknowledged_ago(&socket).unwrap().unwrap();
        assert!(ago < Duration::from_secs(3600), "{ago:?}");
        assert_eq!(acknowledged_ago(&socket).unwrap(), None);
    }
}
