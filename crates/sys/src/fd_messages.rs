//! Messages with open descriptors between two processes of one program, over a Unix stream socket.
//!
//! A message consists of a header with the length of its text and the number of its descriptors,
//! the text, and one byte for each batch of descriptors. The descriptors of a batch are sent as
//! ancillary data of its byte (`SCM_RIGHTS`). [`send`] waits while the socket is full, up to a
//! timeout; [`Outgoing`] does not wait. A receiver sets the maximum length and the maximum number
//! of descriptors.
//!
//! Sources: unix(7), cmsg(3).

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::clock::Stopwatch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};

/// Sends a message with descriptors, and waits while the socket is full. The socket may be non-blocking.
///
/// # Errors
/// `TimedOut` if the receiver has not read the message within `patience`; otherwise the error of sendmsg(2). Part of
/// the message may have been sent.
pub fn send(
    stream: &UnixStream,
    text: &[u8],
    fds: &[BorrowedFd<'_>],
    patience: Duration,
) -> io::Result<()> {
    let mut outgoing = Outgoing::default();
    outgoing.push(text, fds.to_vec())?;
    let clock = Stopwatch::start();
    while !outgoing.flush(stream)? {
        let left = patience.saturating_sub(clock.elapsed());
        let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut writable = [PollFd::new(stream, PollFlags::OUT)];
        if retry_on_intr(|| poll(&mut writable, Some(&left)))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

/// Receives a message on a blocking socket. Returns `None` if the peer has closed the connection. Returns fewer
/// descriptors than were sent if this process has reached its descriptor limit.
///
/// # Errors
/// `InvalidData` for more than `most_text` bytes or `most_fds` descriptors.
pub fn receive(
    stream: &UnixStream,
    most_text: usize,
    most_fds: usize,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut head = [[0; 4]; 2];
    match (&mut (&*stream)).read_exact(head.as_flattened_mut()) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let [length, count] = head.map(|number| u32::from_le_bytes(number) as usize);
    if length > most_text || count > most_fds {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; length];
    (&*stream).read_exact(&mut text)?;
    let mut fds = Vec::with_capacity(count);
    for _ in 0..count.div_ceil(BATCH) {
        receive_some(stream, &mut [0], &mut fds)?;
    }
    Ok(Some((text, fds)))
}

/// Creates a file in memory with these contents. A process can send its descriptor even if the
/// contents exceed the socket buffer.
///
/// # Errors
/// Returns the errors of memfd_create(2) and write(2).
pub fn text_file(text: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("becket", MemfdFlags::CLOEXEC)?);
    file.write_all(text)?;
    file.rewind()?;
    Ok(file)
}

#[derive(Debug)]
pub struct Outgoing<F = OwnedFd> {
    parts: VecDeque<(Vec<u8>, Vec<F>)>,
    /// Number of bytes of the first part that were already sent.
    sent: usize,
}

impl<F> Default for Outgoing<F> {
    fn default() -> Self {
        Self {
            parts: VecDeque::new(),
            sent: 0,
        }
    }
}

impl<F: AsFd> Outgoing<F> {
    /// Appends a message.
    ///
    /// # Errors
    /// `InvalidInput` for a message that is too long.
    pub fn push(&mut self, text: &[u8], fds: Vec<F>) -> io::Result<()> {
        let number = |count: usize| u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput);
        let head = [number(text.len())?, number(fds.len())?].map(u32::to_le_bytes);
        self.parts
            .push_back(([head.as_flattened(), text].concat(), Vec::new()));
        let mut fds = fds.into_iter().peekable();
        while fds.peek().is_some() {
            self.parts
                .push_back((vec![b'+'], fds.by_ref().take(BATCH).collect()));
        }
        Ok(())
    }

    /// Returns the number of unsent parts: one for each message, and one for each batch of descriptors.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Sends as much as the socket accepts without waiting. Returns `true` if everything was sent.
    ///
    /// # Errors
    /// Returns the errors of sendmsg(2).
    pub fn flush(&mut self, stream: &UnixStream) -> io::Result<bool> {
        while let Some((bytes, fds)) = self.parts.front() {
            let left = bytes.get(self.sent..).unwrap_or_default();
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match send_now(stream, left, &fds) {
                Ok(count) => self.sent += count,
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if self.sent >= bytes.len() {
                self.parts.pop_front();
                self.sent = 0;
            }
        }
        Ok(true)
    }
}

/// Receive buffer for messages without descriptors.
#[derive(Debug, Default)]
pub struct Incoming(Vec<u8>);

impl Incoming {
    /// Creates a buffer that starts with bytes that were read earlier.
    pub fn of(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads at most `most` bytes without waiting. Returns the number of bytes, which is 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; otherwise the error of recv(2).
    pub fn read(&mut self, stream: &UnixStream, most: usize) -> io::Result<usize> {
        let before = self.0.len();
        self.0.resize(before + most, 0);
        let room = self.0.get_mut(before..).unwrap_or_default();
        let read = retry_on_intr(|| recv(stream, &mut *room, RecvFlags::DONTWAIT));
        let count = read.as_ref().map_or(0, |(count, _)| *count);
        self.0.truncate(before + count);
        Ok(read.map(|(count, _)| count)?)
    }

    /// Removes the next message. Returns `None` if it is incomplete.
    ///
    /// # Errors
    /// `InvalidData` for a text longer than `most`, and for a message with descriptors.
    pub fn take(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) as usize;
        let Some((length, rest)) = self.0.split_first_chunk() else {
            return Ok(None);
        };
        let Some((count, rest)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let (length, count) = (number(length), number(count));
        if length > most || count > 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(text) = rest.get(..length) else {
            return Ok(None);
        };
        let text = text.to_vec();
        self.0.drain(..8 + length);
        Ok(Some(text))
    }
}

pub(crate) fn receive_some(
    socket: impl AsFd,
    room: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<RecvMsg> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut room = [IoSliceMut::new(room)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = retry_on_intr(|| recvmsg(socket.as_fd(), &mut room, &mut control, flags))?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(received)
}

/// Sends bytes with at most [`BATCH`] descriptors, without waiting.
pub(crate) fn send_now(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, rustix::io::Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// Maximum number of descriptors in a batch. The kernel accepts 253.
const BATCH: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn nonblocking_sends_deliver_text_and_descriptors_in_order() {
        let (here, there) = UnixStream::pair().unwrap();
        let files = [0, 1, 2].map(|number: u8| text_file(&[b'0' + number]).unwrap());
        // More than one batch, and more text than the socket holds.
        let fds = (0..300).map(|number| files[number % 3].as_fd()).collect();
        let text = vec![b'x'; 1 << 20];
        let mut outgoing = Outgoing::default();
        outgoing.push(&text, fds).unwrap();
        outgoing.push(b"next", Vec::new()).unwrap();
        assert!(!outgoing.flush(&here).unwrap());
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let first = receive(&there, 1 << 20, 300).unwrap().unwrap();
                (first, receive(&there, 4, 0).unwrap().unwrap())
            });
            while !outgoing.flush(&here).unwrap() {
                let mut writable = [PollFd::new(&here, PollFlags::OUT)];
                poll(&mut writable, None).unwrap();
            }
            let (first, next) = receiver.join().unwrap();
            assert_eq!((first.0 == text, first.1.len()), (true, 300));
            for (number, fd) in first.1.into_iter().enumerate().take(3) {
                let text = io::read_to_string(File::from(fd)).unwrap();
                assert_eq!(text, number.to_string());
            }
            assert_eq!(next.0, b"next");
        });
        drop(here);
        assert!(receive(&there, 1, 1).unwrap().is_none());
    }

    #[test]
    fn only_complete_messages_within_the_limit_are_taken() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::default();
        let none = incoming.read(&there, 9).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        send(&here, b"text", &[], PATIENCE).unwrap();
        assert_eq!(incoming.read(&there, 9).unwrap(), 9);
        assert_eq!(incoming.take(4).unwrap(), None);
        let mut rest = Incoming::of(incoming.bytes().to_vec());
        assert_eq!(rest.read(&there, 9).unwrap(), 3);
        assert_eq!(rest.take(4).unwrap().unwrap(), b"text");
        send(&here, b"longer", &[], PATIENCE).unwrap();
        rest.read(&there, 99).unwrap();
        assert_eq!(rest.take(4).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(here);
        assert_eq!(rest.read(&there, 9).unwrap(), 0);
    }

    #[test]
    fn oversized_messages_are_rejected_and_blocked_sends_time_out() {
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, b"text", &[], PATIENCE).unwrap();
        let error = receive(&there, 3, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let text = vec![0; 1 << 24];
        let error = send(&here, &text, &[], Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // A reader that reads slowly does not extend the time-out.
        let (here, mut there) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || {
            while there.read(&mut [0; 256]).is_ok_and(|count| count > 0) {
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let error = send(&here, &text, &[], Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(here);
        reader.join().unwrap();
    }
}
