//! One leg of a connection: a socket, what is known of its readiness, and how much it carried.
//!
//! The sockets are registered edge-triggered, once. A short read or write empties or fills the
//! socket (epoll(7) says so of streams), so the next byte brings a new event and no call is spent
//! on finding `EAGAIN`. The exception is an end that was already reported: no event follows it,
//! so such a leg stays readable until the end itself was read.

use becket_proto::half_pipe::HalfPipe;

use crate::metrics::Counter;
use crate::scratch::Buffer;
use crate::socket::{Fault, Ready, Socket, Traffic};

/// One side's socket.
#[derive(Debug)]
pub(crate) struct Leg<S> {
    /// Non-blocking, registered.
    pub socket: S,
    /// Gathered from events, cleared by calls.
    pub ready: Ready,
    /// Bytes so far.
    pub traffic: Traffic,
    /// A send was told that the peer had reset.
    reset: bool,
}

/// What [`Leg::receive`] got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// Bytes, now in the buffer.
    Bytes,
    /// Nothing for now.
    Nothing,
    /// The end of the stream.
    End,
}

impl<S: Socket> Leg<S> {
    /// A leg of which nothing is known but `ready`.
    pub(crate) fn new(socket: S, ready: Ready) -> Self {
        Self {
            socket,
            ready,
            traffic: Traffic::default(),
            reset: false,
        }
    }

    /// Receives up to `most` bytes behind what `buffer` holds. One system call.
    ///
    /// # Errors
    ///
    /// [`Fault::Closed`] or [`Fault::Reset`], never [`Fault::WouldBlock`].
    pub(crate) fn receive(
        &mut self,
        buffer: &mut Buffer,
        most: usize,
        counter: &Counter,
    ) -> Result<Got, Fault> {
        match self.socket.receive(buffer.next(most)).map_err(Fault::from) {
            Ok(0) if self.reset => Err(Fault::Reset),
            Ok(0) => {
                self.ready.readable = false;
                Ok(Got::End)
            }
            Ok(n) => {
                buffer.advance(n);
                self.traffic.received += n as u64;
                counter.add(n as u64);
                self.ready.readable = n == most || self.ready.ended;
                Ok(Got::Bytes)
            }
            Err(Fault::WouldBlock) => {
                self.ready.readable = false;
                Ok(Got::Nothing)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Sends from `bytes` and returns how many were taken; fewer than all means that the socket
    /// is full. One system call, none for no bytes.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    pub(crate) fn send(&mut self, bytes: &[u8], counter: &Counter) -> Result<usize, Fault> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let sent = match self.socket.send(bytes).map_err(Fault::from) {
            Ok(n) => n,
            Err(Fault::WouldBlock) => 0,
            Err(fault) => {
                self.reset |= fault == Fault::Reset;
                return Err(fault);
            }
        };
        self.ready.writable = sent == bytes.len();
        self.traffic.sent += sent as u64;
        counter.add(sent as u64);
        Ok(sent)
    }

    /// Sends what waits in `pipe`, as far as the socket takes it.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    pub(crate) fn flush(&mut self, pipe: &mut HalfPipe, counter: &Counter) -> Result<(), Fault> {
        let sent = self.send(pipe.waiting(), counter)?;
        pipe.sent(sent);
        if pipe.waiting().is_empty() {
            pipe.handle_writable();
        } else {
            pipe.block_sink();
        }
        Ok(())
    }

    /// Sends `bytes` behind what waits in `pipe`, which keeps what the socket does not take.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        pipe: &mut HalfPipe,
        counter: &Counter,
    ) -> Result<(), Fault> {
        if bytes.is_empty() || !pipe.is_clear() {
            pipe.offer(bytes);
            return Ok(());
        }
        let sent = self.send(bytes, counter)?;
        if sent < bytes.len() {
            pipe.offer(&bytes[sent..]);
            pipe.block_sink();
        }
        Ok(())
    }
}
