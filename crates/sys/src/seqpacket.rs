//! Sockets between two processes of one program that preserve message boundaries: SOCK_SEQPACKET.
//!
//! Messages arrive in order, each of them completely or not at all. A descriptor may be sent with a
//! message. Several threads may send on one socket without a lock.
//!
//! Source: unix(7), recvmsg(2).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, ReturnFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair,
};

use crate::fd_messages::{receive_some, send_now};

/// One end of a connected pair of sockets.
#[derive(Debug)]
pub struct Seqpacket(OwnedFd);

impl Seqpacket {
    /// Creates a connected pair, which is close-on-exec.
    ///
    /// # Errors
    /// Fails if too many files are open.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Sends a message without waiting. The message must not be empty.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full; `BrokenPipe` if the peer has closed its end.
    pub fn send(&self, message: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send_now(&self.0, message, fd.as_slice())?;
        Ok(())
    }

    /// Waits for a message or until the peer closes its end. Returns `false` if `patience` expires
    /// first.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let time = Timespec::try_from(patience).map_err(|_| io::ErrorKind::InvalidInput)?;
        let ready = || poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&time));
        Ok(retry_on_intr(ready)? > 0)
    }

    /// Waits until a message can be sent or the peer closes its end.
    pub fn wait_to_send(&self) -> io::Result<()> {
        retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None))?;
        Ok(())
    }

    /// Waits for a message. Returns its length, and the descriptor that was sent with it. The
    /// length is 0 if the peer has closed its end.
    ///
    /// # Errors
    /// `InvalidData` for a message that is longer than `room`.
    pub fn receive(&self, room: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        let mut fds = Vec::new();
        let received = receive_some(&self.0, room, &mut fds)?;
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((received.bytes, fds.pop()))
    }

    /// Shuts down both ends, and wakes all threads that wait at either end.
    pub fn end(&self) {
        // Fails only if the peer has already closed its end.
        shutdown(&self.0, Shutdown::Both).ok();
    }
}

impl From<OwnedFd> for Seqpacket {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Seqpacket> for OwnedFd {
    fn from(socket: Seqpacket) -> Self {
        socket.0
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn messages_keep_their_boundaries_and_carry_a_descriptor() {
        let (here, there) = Seqpacket::pair().unwrap();
        assert!(!there.wait(Duration::ZERO).unwrap());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("pin"), "1234").unwrap();
        let file = File::open(folder.path().join("pin")).unwrap();
        here.send(b"one", Some(file.as_fd())).unwrap();
        here.send(b"two", None).unwrap();
        let mut room = [0; 3];
        let (3, Some(fd)) = there.receive(&mut room).unwrap() else {
            panic!("no descriptor");
        };
        assert_eq!(&room, b"one");
        let mut text = [0; 4];
        File::from(fd).read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"1234");
        assert!(matches!(there.receive(&mut room).unwrap(), (3, None)));
        here.send(b"more than three", None).unwrap();
        let error = there.receive(&mut room).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(here);
        assert!(matches!(there.receive(&mut room).unwrap(), (0, None)));
    }

    #[test]
    fn a_full_queue_does_not_block_send_and_shutdown_wakes_both_sides() {
        let (here, there) = Seqpacket::pair().unwrap();
        let error = (0..100_000)
            .find_map(|_| here.send(&[0; 1000], None).err())
            .unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| here.wait_to_send());
            while !sender.is_finished() {
                if there.wait(Duration::ZERO).unwrap() {
                    there.receive(&mut [0; 1000]).unwrap();
                }
            }
            sender.join().unwrap().unwrap();
        });
        here.send(b"last", None).unwrap();
        here.end();
        assert!(there.wait(Duration::from_secs(60)).unwrap());
        assert!(here.wait(Duration::from_secs(60)).unwrap());
    }
}
