//! One leg of a connection: a socket, its known readiness, and its byte counts.
//!
//! Sockets are registered once, edge-triggered. A read or write that moves fewer bytes than
//! requested means that the receive buffer is empty or the send buffer is full (epoll(7), for
//! streams). So the leg counts as not ready without a further call that returns `EAGAIN`, and the
//! next byte causes an event. The end of a stream causes only one event, so the leg then stays
//! readable until the end is read.

use std::fs::File;
use std::io::{self, Read};

use becket_proto::half_pipe::HalfPipe;
use becket_sys::kernel_tls::ReceivedRecord;

use crate::metrics::Counter;
use crate::pipes::Lent;
use crate::socket::{KernelTlsSocket, Ready, SocketError, StreamSocket};
use becket_log::facts::ByteCounts;
use becket_tls::scratch::{Buffer, READ};

#[derive(Debug)]
pub struct Leg<S> {
    pub socket: S,
    /// Known readiness of the socket: events set it, and system calls clear it.
    pub ready: Ready,
    pub traffic: ByteCounts,
    /// `true` if a system call on the socket has failed with a connection reset.
    reset: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// Number of bytes that this call moved into the buffer or the pipe.
    Bytes(usize),
    Nothing,
    End,
}

impl<S: StreamSocket> Leg<S> {
    pub fn new(socket: S, ready: Ready) -> Self {
        Self {
            socket,
            ready,
            traffic: ByteCounts::default(),
            reset: false,
        }
    }

    /// Receives up to `most` bytes and appends them to `buffer`, with one system call.
    ///
    /// # Errors
    ///
    /// Returns [`SocketError::Closed`] or [`SocketError::Reset`], never
    /// [`SocketError::WouldBlock`].
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

    /// Moves up to `most` received bytes into the lent, empty pipe, with one system call. The
    /// socket is empty only if the result is [`Got::Nothing`], not if fewer bytes than `most` were
    /// moved.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::receive`], or [`SocketError::Refused`].
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

    /// Receives one TLS record of any type, decrypted by the kernel, into the free space of
    /// `buffer`. The caller must advance `buffer` by the length of the record. Returns `None` if no
    /// record is available.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::receive`], or [`SocketError::Unopened`].
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

    /// Sends `bytes` with one system call, or none if `bytes` is empty. Returns the number of bytes
    /// that the socket accepted. If it accepted only a part, the send buffer is full.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::receive`].
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

    /// Sends the pending bytes of `pipe` until none is left or the socket is full.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::receive`].
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

    /// Splices the contents of the lent pipe, if any, into the socket until the socket is full.
    /// Copies the contents to the heap if the kernel cannot splice to this socket.
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

    /// Sends `bytes` after the pending bytes of `pipe`, which stores the bytes that the socket does
    /// not accept.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::receive`].
    pub fn push(
        &mut self,
        bytes: &[u8],
        pipe: &mut HalfPipe<Lent>,
        counter: &Counter,
    ) -> Result<(), SocketError> {
        self.push_by(S::send, bytes, pipe, counter)
    }

    /// Sends like [`Self::push`]. The kernel may hold back the last bytes until the caller sends
    /// more, or FIN, which must follow immediately.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::receive`].
    pub fn push_more(
        &mut self,
        bytes: &[u8],
        pipe: &mut HalfPipe<Lent>,
        counter: &Counter,
    ) -> Result<(), SocketError> {
        self.push_by(S::send_more, bytes, pipe, counter)
    }

    /// Sends `head` like [`Self::push`]. If the socket accepted all of `head`, sends up to `most`
    /// bytes of a file that is in the page cache. Returns the number of file bytes sent. If that
    /// number is 0 and the leg is still writable, the kernel cannot send this file, or the file has
    /// ended.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Self::receive`].
    pub fn send_file(
        &mut self,
        head: &[u8],
        (file, at, most): (&File, u64, usize),
        pipe: &mut HalfPipe<Lent>,
        counter: &Counter,
    ) -> Result<usize, SocketError> {
        self.push_more(head, pipe, counter)?;
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
