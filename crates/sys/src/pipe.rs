//! Pipes that move bytes from one socket to another without a copy into this process: pipe(2) and splice(2).
//!
//! A pipe has a fixed number of *slots*, one for each memory range that it refers to. Data from a TCP socket may fill a
//! slot with only part of a page, so a pipe may be full long before it contains as many bytes as its size.
//!
//! Sources: pipe(7), splice(2), `Documentation/admin-guide/sysctl/fs.rst` of Linux.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};

/// Both ends of a pipe. Operations never block if the sockets are non-blocking.
#[derive(Debug)]
pub struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

impl Pipe {
    /// Creates a pipe of `size` bytes. If the kernel refuses the size, halves it repeatedly, down to the default size.
    ///
    /// # Errors
    /// Fails if no descriptors are free; `QuotaExceeded` if the user has reached `fs.pipe-user-pages-soft`, so that the
    /// kernel would give this pipe at most two pages.
    pub fn new(size: usize) -> io::Result<Self> {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let pipe = Self { out, into };
        let mut wanted = size;
        let mut granted = pipe.size()?;
        while wanted > granted {
            match fcntl_setpipe_size(&pipe.into, wanted) {
                Ok(_) => granted = pipe.size()?,
                Err(_) => wanted /= 2,
            }
        }
        if granted < DEFAULT_SIZE {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(pipe)
    }

    /// Returns the size that the kernel granted: 4 KiB per slot.
    ///
    /// # Errors
    /// Returns the errors of fcntl(2); none occurs on a pipe.
    pub fn size(&self) -> io::Result<usize> {
        Ok(fcntl_getpipe_size(&self.into)?)
    }

    /// Moves up to `most` bytes that `source` has received into the pipe; 0 means the end of the stream. A
    /// result below `most` does not imply that `source` is empty or that the pipe is full.
    ///
    /// # Errors
    /// `WouldBlock` if `source` is empty or the pipe is full; the error of `source`; `InvalidInput` if the
    /// kernel cannot splice from it.
    pub fn fill_from(&self, source: impl AsFd, most: usize) -> io::Result<usize> {
        Ok(splice(source, None, &self.into, None, most, NEVER_BLOCK)?)
    }

    /// Moves up to `most` bytes from the pipe to `sink`. `most` must not exceed the contents of the pipe: otherwise the
    /// kernel may hold back the last bytes until it has more data.
    ///
    /// If the peer of the sink has closed, SIGPIPE is raised. Rust's runtime makes the process ignore this signal.
    ///
    /// # Errors
    /// `WouldBlock` if `sink` accepts no data; the error of `sink`; `InvalidInput` if the kernel cannot splice to it.
    pub fn drain_to(&self, sink: impl AsFd, most: usize) -> io::Result<usize> {
        Ok(splice(&self.out, None, sink, None, most, NEVER_BLOCK)?)
    }
}

impl Read for &Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.out, buffer)?)
    }
}

impl Write for &Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.into, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the limit for all pipes of one unprivileged user in pages (`fs.pipe-user-pages-soft`), or `None` without a
/// limit. Above the limit, each new pipe has only two pages.
#[must_use]
pub fn user_pages() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft");
    let pages = text.ok().and_then(|text| text.trim().parse().ok());
    Some(pages.unwrap_or(KERNEL_PAGES)).filter(|pages| *pages > 0)
}

/// Flags of every splice call. They make the pipe non-blocking; a socket keeps its configured mode.
const NEVER_BLOCK: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);
/// Size of a new pipe in bytes: 16 slots of 4 KiB each.
pub const DEFAULT_SIZE: usize = 64 * 1024;
/// The kernel's default limit in pages, for systems without /proc.
const KERNEL_PAGES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn tcp() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        (near, far)
    }

    fn wait(socket: &TcpStream, flags: PollFlags) {
        poll(&mut [PollFd::new(socket, flags)], None).unwrap();
    }

    #[test]
    fn bytes_are_spliced_between_sockets_until_the_end() {
        let pipe = Pipe::new(1 << 20).unwrap();
        assert!(pipe.size().unwrap() >= DEFAULT_SIZE);
        let ((mut client, from), (to, mut server)) = (tcp(), tcp());
        server.set_nonblocking(false).unwrap();
        let blocked = pipe.fill_from(&from, 100).map_err(|error| error.kind());
        assert_eq!(blocked, Err(io::ErrorKind::WouldBlock));
        client.write_all(b"question").unwrap();
        drop(client);
        wait(&from, PollFlags::RDHUP);
        assert_eq!(pipe.fill_from(&from, 5).unwrap(), 5);
        assert_eq!(pipe.drain_to(&to, 5).unwrap(), 5);
        assert_eq!(pipe.fill_from(&from, 100).unwrap(), 3);
        assert_eq!(pipe.drain_to(&to, 3).unwrap(), 3);
        assert_eq!(pipe.fill_from(&from, 100).unwrap(), 0);
        let blocked = pipe.drain_to(&to, 1).map_err(|error| error.kind());
        assert_eq!(blocked, Err(io::ErrorKind::WouldBlock));
        drop(to);
        let mut got = String::new();
        server.read_to_string(&mut got).unwrap();
        assert_eq!(got, "question");
    }

    #[test]
    fn a_closed_sink_returns_an_error_without_a_signal() {
        let pipe = Pipe::new(DEFAULT_SIZE).unwrap();
        let (sink, peer) = UnixStream::pair().unwrap();
        drop(peer);
        (&pipe).write_all(b"x").unwrap();
        let error = pipe.drain_to(&sink, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn pipe_contents_are_readable_and_splicing_a_folder_is_an_error() {
        let pipe = Pipe::new(DEFAULT_SIZE).unwrap();
        (&pipe).write_all(b"abc").unwrap();
        let folder = std::fs::File::open("/").unwrap();
        let refused = pipe.fill_from(folder, 3).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let mut buffer = [0; 8];
        assert_eq!((&pipe).read(&mut buffer).unwrap(), 3);
        let empty = (&pipe).read(&mut buffer).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    }
}
