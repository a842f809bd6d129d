//! One leg of a connection: a socket, what is known of its readiness, and how much it carried.
//!
//! The sockets are registered edge-triggered, once. A short read or write empties or fills the
//! socket (epoll(7) says so of streams), so the next byte brings a new event and no call is spent
//! on finding `EAGAIN`. The exception is an end that was already reported: no event follows it,
//! so such a leg stays readable until the end itself was read.

use std::fs::File;
use std::io::{self, Read};

use becket_proto::half_pipe::HalfPipe;
use becket_sys::kernel_tls::ReceivedRecord;

use crate::metrics::Counter;
use crate::pipes::Lent;
use crate::socket::{ByteCounts, KernelTlsSocket, Ready, SocketError, StreamSocket};
use becket_tls::scratch::{Buffer, READ};

/// One side's socket.
#[derive(Debug)]
pub struct Leg<S> {
    /// Non-blocking, registered.
    pub socket: S,
    /// Gathered from events, cleared by calls.
    pub ready: Ready,
    /// Bytes so far.
    pub traffic: ByteCounts,
    /// A call was told that the peer had reset.
    reset: bool,
}

/// The outcome of [`Leg::receive`] or [`Leg::splice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// So many bytes, now in the buffer or the pipe.
    Bytes(usize),
    /// Nothing for now.
    Nothing,
    /// The end of the stream.
    End,
}

impl<S: StreamSocket> Leg<S> {
    /// A leg of which nothing is known but `ready`.
    pub fn new(socket: S, ready: Ready) -> Self {
        Self {
            socket,
            ready,
            traffic: ByteCounts::default(),
            reset: false,
        }
    }

    /// Receives up to `most` bytes behind what `buffer` holds. One system call.
    ///
    /// # Errors
    ///
    /// [`SocketError::Closed`] or [`SocketError::Reset`], never [`SocketError::WouldBlock`].
    pub fn receive(
        &mut self,
        buffer: &mut Buffer,
        most: usize,
        counter: &Counter,
    ) -> Result<Got, SocketError> {
        let received = self.socket.receive(buffer.next(most));
        let got = self.note_received(received, counter);
        if let Ok(Got::Bytes(n)) = got {
            buffer.advance(n);
            self.ready.readable = n == most || self.ready.ended;
        }
        got
    }

    /// Moves up to `most` bytes into the pipe that was lent, which is empty. One system call. Only
    /// [`Got::Nothing`] says that the socket is empty.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`], or [`SocketError::Refused`].
    pub fn splice(
        &mut self,
        pipe: &mut HalfPipe<Lent>,
        most: usize,
        counter: &Counter,
    ) -> Result<Got, SocketError> {
        let Some((lent, _)) = pipe.lent() else {
            return Err(SocketError::Refused);
        };
        let received = self.socket.splice_in(lent.pipe(), most);
        let got = self.note_received(received, counter);
        if let Ok(Got::Bytes(n)) = got {
            pipe.fill(n);
        }
        got
    }

    /// Receives a record of whatever type, where the kernel opens them, into the room behind what `buffer` holds, and leaves it
    /// to the caller to count it in; `None` when there is none. One system call.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`], or [`SocketError::Unopened`].
    pub fn receive_record(
        &mut self,
        buffer: &mut Buffer,
        counter: &Counter,
    ) -> Result<Option<ReceivedRecord>, SocketError>
    where
        S: KernelTlsSocket,
    {
        let record = match self
            .socket
            .receive_record(buffer.next(READ))
            .map_err(SocketError::from)
        {
            Ok(ReceivedRecord { kind: None, len: 0 }) if self.reset => {
                return Err(SocketError::Reset);
            }
            Ok(record) => record,
            Err(SocketError::WouldBlock) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        self.traffic.received += record.len as u64;
        counter.add(record.len as u64);
        Ok(Some(record))
    }

    fn note_received(
        &mut self,
        received: io::Result<usize>,
        counter: &Counter,
    ) -> Result<Got, SocketError> {
        match received.map_err(SocketError::from) {
            Ok(0) if self.reset => Err(SocketError::Reset),
            Ok(0) => {
                self.ready.readable = false;
                Ok(Got::End)
            }
            Ok(n) => {
                self.traffic.received += n as u64;
                counter.add(n as u64);
                Ok(Got::Bytes(n))
            }
            Err(SocketError::WouldBlock) => {
                self.ready.readable = false;
                Ok(Got::Nothing)
            }
            Err(fault) => {
                self.reset |= fault == SocketError::Reset;
                Err(fault)
            }
        }
    }

    /// Sends from `bytes` and returns how many were taken; fewer than all means that the socket
    /// is full. One system call, none for no bytes.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    pub fn send(&mut self, bytes: &[u8], counter: &Counter) -> Result<usize, SocketError> {
        self.send_by(S::send, bytes, counter)
    }

    fn send_by(
        &mut self,
        send: fn(&mut S, &[u8]) -> io::Result<usize>,
        bytes: &[u8],
        counter: &Counter,
    ) -> Result<usize, SocketError> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let sent = send(&mut self.socket, bytes);
        let sent = self.note_sent(sent, counter)?;
        self.ready.writable = sent == bytes.len();
        Ok(sent)
    }

    fn note_sent(
        &mut self,
        sent: io::Result<usize>,
        counter: &Counter,
    ) -> Result<usize, SocketError> {
        let sent = match sent.map_err(SocketError::from) {
            Ok(n) => n,
            Err(SocketError::WouldBlock) => 0,
            Err(fault) => {
                self.reset |= fault == SocketError::Reset;
                return Err(fault);
            }
        };
        self.traffic.sent += sent as u64;
        counter.add(sent as u64);
        Ok(sent)
    }

    /// Sends what waits in `pipe`, as far as the socket takes it.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    pub fn flush(
        &mut self,
        pipe: &mut HalfPipe<Lent>,
        counter: &Counter,
    ) -> Result<(), SocketError> {
        self.empty(pipe, counter)?;
        let sent = self.send(pipe.waiting(), counter)?;
        pipe.sent(sent);
        if pipe.waits() {
            pipe.block_sink();
        } else {
            pipe.handle_writable();
        }
        Ok(())
    }

    /// Sends what is in the pipe that was lent, if one was, until the socket is full. Where the kernel does not splice to the
    /// socket, the bytes are left on the heap.
    fn empty(&mut self, pipe: &mut HalfPipe<Lent>, counter: &Counter) -> Result<(), SocketError> {
        while let Some((lent, filled @ 1..)) = pipe.lent() {
            let sent = self.socket.splice_out(lent.pipe(), filled);
            match self.note_sent(sent, counter) {
                Ok(0) => {
                    self.ready.writable = false;
                    return Ok(());
                }
                Ok(n) => {
                    self.ready.writable = true;
                    pipe.sent(n);
                }
                Err(SocketError::Refused) => {
                    let mut bytes = vec![0; filled];
                    let read = lent.pipe().read_exact(&mut bytes);
                    read.map_err(SocketError::from)?;
                    if let Some(lent) = pipe.take_pipe(bytes) {
                        lent.refused();
                    }
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    /// Sends `bytes` behind what waits in `pipe`, which keeps what the socket does not take.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    pub fn push(
        &mut self,
        bytes: &[u8],
        pipe: &mut HalfPipe<Lent>,
        counter: &Counter,
    ) -> Result<(), SocketError> {
        self.push_by(S::send, bytes, pipe, counter)
    }

    /// Sends `head` as [`Self::push`] does and, unless some of it waits, up to `most` bytes of a file after it, which are in memory.
    /// Returns how many of these were sent. 0 on a leg that is still writable: the kernel sends no such file, or the file has ended.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    pub fn send_file(
        &mut self,
        head: &[u8],
        (file, at, most): (&File, u64, usize),
        pipe: &mut HalfPipe<Lent>,
        counter: &Counter,
    ) -> Result<usize, SocketError> {
        self.push_by(S::send_more, head, pipe, counter)?;
        let mut total = 0;
        while total < most && !pipe.waits() {
            let sent = self.socket.send_file(file, at + total as u64, most - total);
            let is_end = matches!(sent, Ok(0));
            match self.note_sent(sent, counter) {
                Ok(0) => {
                    self.ready.writable = is_end;
                    break;
                }
                Ok(n) => total += n,
                Err(SocketError::Refused) => break,
                Err(fault) => return Err(fault),
            }
        }
        Ok(total)
    }

    fn push_by(
        &mut self,
        send: fn(&mut S, &[u8]) -> io::Result<usize>,
        bytes: &[u8],
        pipe: &mut HalfPipe<Lent>,
        counter: &Counter,
    ) -> Result<(), SocketError> {
        if bytes.is_empty() || !pipe.is_clear() {
            pipe.offer(bytes);
            return Ok(());
        }
        let sent = self.send_by(send, bytes, counter)?;
        if sent < bytes.len() {
            pipe.offer(&bytes[sent..]);
            pipe.block_sink();
        }
        Ok(())
    }
}
