//! Messages with open descriptors between two processes of ours, over a Unix stream socket.
//!
//! A message is the length of its text and the number of its descriptors, the text, and then a byte for each batch of descriptors,
//! which travel with it (`SCM_RIGHTS`). Whoever sends waits a stated time for the other to read; who receives names the most that it takes.
//!
//! Source: unix(7), cmsg(3).

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::clock::Stopwatch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends a text and descriptors. The socket may be non-blocking.
///
/// # Errors
/// `TimedOut` when the other has not read all of it within that time; otherwise what sendmsg(2) returns. Part of the message may be sent.
pub fn send(
    stream: &UnixStream,
    text: &[u8],
    fds: &[BorrowedFd<'_>],
    patience: Duration,
) -> io::Result<()> {
    let number = |count: usize| u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput);
    let head = [number(text.len())?, number(fds.len())?].map(u32::to_le_bytes);
    let clock = Stopwatch::start();
    let time = || patience.saturating_sub(clock.elapsed());
    let mut left = &[&head.concat(), text].concat()[..];
    while !left.is_empty() {
        left = &left[send_some(stream, left, &[], &time)?..];
    }
    for batch in fds.chunks(BATCH) {
        send_some(stream, b"+", batch, &time)?;
    }
    Ok(())
}

/// Receives a message on a blocking socket; nothing when the other has closed it.
///
/// # Errors
/// `InvalidData` for more than is taken, and for descriptors that got lost because too many are open here.
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
    while fds.len() < count {
        let before = fds.len();
        receive_batch(stream, &mut fds)?;
        if fds.len() == before || fds.len() > count {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "descriptors were lost: too many open files",
            ));
        }
    }
    Ok(Some((text, fds)))
}

fn receive_batch(stream: &UnixStream, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(())
}

fn send_some(
    stream: &UnixStream,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    time: &dyn Fn() -> Duration,
) -> io::Result<usize> {
    loop {
        let wait = Timespec::try_from(time()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut writable = [PollFd::new(stream, PollFlags::OUT)];
        if poll(&mut writable, Some(&wait))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(stream.as_fd(), &[IoSlice::new(bytes)], &mut control, flags) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// The kernel takes 253 at a time.
const BATCH: usize = 128;

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_text_arrives_with_its_descriptors_in_their_order() {
        let (here, there) = UnixStream::pair().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let files = [0, 1, 2].map(|number| {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, number.to_string()).unwrap();
            File::open(path).unwrap()
        });
        // More than one batch, and more text than the socket holds.
        let fds: Vec<_> = (0..300).map(|number| files[number % 3].as_fd()).collect();
        let text = vec![b'x'; 1 << 20];
        let (received, sent) = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&there, 1 << 20, 300).unwrap().unwrap());
            let sent = send(&here, &text, &fds, PATIENCE);
            (receiver.join().unwrap(), sent)
        });
        sent.unwrap();
        assert_eq!((received.0 == text, received.1.len()), (true, 300));
        for (number, fd) in received.1.into_iter().enumerate().take(3) {
            let text = io::read_to_string(File::from(fd)).unwrap();
            assert_eq!(text, number.to_string());
        }
        drop(here);
        assert!(receive(&there, 1, 1).unwrap().is_none());
    }

    #[test]
    fn more_than_is_taken_is_refused_and_who_does_not_read_is_left() {
        let (here, there) = UnixStream::pair().unwrap();
        send(&here, b"text", &[], PATIENCE).unwrap();
        let error = receive(&there, 3, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let text = vec![0; 1 << 24];
        let error = send(&here, &text, &[], Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // Nor does it help to read a little again and again.
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
