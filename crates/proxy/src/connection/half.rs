//! One side of a relay during a turn: receive, decrypt, encrypt, send.
//!
//! Both sides process data in the same way. They differ only in errors and stream ends, for which
//! [`Side`] and the callers are responsible. A side may use TLS in becket, kernel TLS or none; only
//! [`Tls`] distinguishes them. `kernel.rs` takes the TLS of a leg with bulk data from rustls.

mod kernel;

use std::fs::File;
use std::rc::Rc;
use std::{fmt, mem};

use becket_config::process::LimitsSection;
use becket_proto::half_pipe::{HalfPipe, Next as Step};

use super::context::Side;
use super::kernel_tls::KernelRecords;
use crate::leg::{Got, Leg};
use crate::metrics::Counters;
use crate::pipes::{Lent, PAGE, PLACES, Pipes};
use crate::socket::{KernelTlsSocket, SocketError};
use becket_proto::close_reason::CloseReason;
use becket_tls::engine::{Engine, is_without_data};
use becket_tls::scratch::{Buffer, READ, Scratch};
use becket_tls::side::TlsSide;

/// TLS state of a leg, either in becket or in the kernel.
pub(super) enum Tls<C: TlsSide> {
    Own(Engine<C>),
    Kernel(Box<KernelRecords<C>>),
    /// TLS is being taken from rustls. If this fails, the connection ends.
    Between,
}

/// One side of the relay during a turn: the leg, its TLS, and the direction that sends to its peer.
pub(super) struct Half<'a, S, C: TlsSide> {
    pub(super) side: Side,
    pub(super) leg: &'a mut Leg<S>,
    /// TLS state; `None` if bytes are relayed unchanged.
    pub(super) tls: Option<&'a mut Tls<C>>,
    /// Direction to the peer. Its bytes are encrypted if the leg has TLS.
    pub(super) pipe: &'a mut HalfPipe<Lent>,
    pub(super) counters: &'a Counters,
    pub(super) limits: &'a LimitsSection,
    /// Pipes for data from the peer; `None` if becket decrypts or encrypts on either leg, or if a
    /// [`Learner`](super::learner::Learner) reads the data.
    pub(super) pipes: Option<&'a Rc<Pipes>>,
    /// `true` if TLS leaves rustls at the next possible moment.
    moves: bool,
    /// Bytes that may still be read from the peer in this turn.
    pub(super) left: usize,
    /// `true` if the peer has sent data since this flag was last cleared.
    pub(super) spoke: bool,
    /// `true` if the peer sent FIN without close_notify while the other side could still send.
    pub(super) truncated: bool,
}

impl<C: TlsSide> Tls<C> {
    /// Returns the TLS engine, or `None` with kernel TLS.
    pub(super) fn engine(&self) -> Option<&Engine<C>> {
        match self {
            Self::Own(engine) => Some(engine),
            Self::Kernel(_) | Self::Between => None,
        }
    }

    /// Returns `true` if no partial record was received. With kernel TLS, partial records are not
    /// visible, so this returns `false`.
    pub(super) fn is_without_part(&self) -> bool {
        self.engine().is_some_and(Engine::is_without_part)
    }

    pub(super) fn engine_mut(&mut self) -> Option<&mut Engine<C>> {
        match self {
            Self::Own(engine) => Some(engine),
            Self::Kernel(_) | Self::Between => None,
        }
    }

    /// Takes the records from rustls if the engine is at rest and the kernel will not take them.
    /// Returns `true` if it did.
    pub(super) fn leave_rustls(&mut self) -> Result<bool, CloseReason> {
        let engine = self.engine();
        if !engine.is_some_and(|engine| !engine.is_movable() && engine.is_at_rest()) {
            return Ok(false);
        }
        let Self::Own(engine) = mem::replace(self, Self::Between) else {
            return Ok(false);
        };
        let direct = engine.into_direct();
        *self = Self::Own(direct.map_err(|_| CloseReason::Internal)?);
        Ok(true)
    }
}

impl<C: TlsSide> fmt::Debug for Tls<C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(engine) => engine.fmt(out),
            Self::Kernel(_) => out.write_str("Kernel"),
            Self::Between => out.write_str("Between"),
        }
    }
}

impl<'a, S: KernelTlsSocket, C: TlsSide> Half<'a, S, C> {
    pub(super) fn new(
        side: Side,
        (leg, tls): (&'a mut Leg<S>, Option<&'a mut Tls<C>>),
        pipe: &'a mut HalfPipe<Lent>,
        (counters, limits): (&'a Counters, &'a LimitsSection),
    ) -> Self {
        Self {
            side,
            leg,
            tls,
            pipe,
            counters,
            limits,
            pipes: None,
            moves: false,
            left: 0,
            spoke: false,
            truncated: false,
        }
    }

    /// Returns `true` if becket reads and writes plaintext on this socket, because there is no TLS
    /// or the kernel encrypts and decrypts.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.engine().is_none())
    }

    /// Copies the leg's readiness to its two directions. `onward` is the direction that carries
    /// data from this leg.
    pub(super) fn note_readiness(&mut self, onward: &mut HalfPipe<Lent>) {
        let ready = self.leg.ready;
        if ready.readable || ready.ended || self.waits() {
            onward.handle_readable();
        }
        if ready.writable {
            self.pipe.handle_writable();
        }
    }

    /// Returns `true` if the leg has carried enough bytes that rustls should no longer process its
    /// records. `ahead` is the number of bytes that will follow.
    pub(super) fn note_bulk(&mut self, ahead: u64) -> bool {
        let engine = self.tls.as_ref().and_then(|tls| tls.engine());
        let traffic = self.leg.traffic;
        let bytes = traffic.received + traffic.sent + ahead;
        let for_kernel = self.limits.kernel_tls_after as u64;
        self.moves = engine.is_some_and(|engine| {
            if engine.is_movable() {
                bytes >= for_kernel
            } else {
                bytes >= for_kernel.min(DIRECT_AFTER) && engine.may_leave_rustls()
            }
        });
        self.moves
    }

    /// Takes the TLS of each leg from rustls, if [`Self::note_bulk`] has requested this.
    pub(super) fn both_leave_rustls<T: KernelTlsSocket, D: TlsSide>(
        &mut self,
        to: &mut Half<'_, T, D>,
    ) -> Result<(), CloseReason> {
        self.leave_rustls(to.pipe)?;
        to.leave_rustls(self.pipe)
    }

    /// Returns `true` if the engine can decrypt more data without new input.
    pub(super) fn waits(&self) -> bool {
        let engine = self.tls.as_ref().and_then(|tls| tls.engine());
        engine.is_some_and(|engine| engine.waits())
    }

    /// Runs one step of the direction from this leg to the other leg. Returns `false` if no step is
    /// possible. Calls `seen` with the relayed plaintext.
    pub(super) fn step<T: KernelTlsSocket, D: TlsSide>(
        &mut self,
        to: &mut Half<'_, T, D>,
        scratch: &mut Scratch,
        seen: impl FnOnce(&[u8]),
    ) -> Result<bool, CloseReason> {
        match to.pipe.next() {
            Step::Read if self.left > 0 => {
                if !self.has_pipe(to.pipe) || !self.splice(to.pipe)? {
                    self.forward(to, scratch, seen)?;
                }
            }
            Step::Write => to.flush(self.pipe)?,
            Step::Finish => {
                if let Some(Tls::Kernel(kernel)) = to.tls.as_deref_mut()
                    && !self.truncated
                    && !kernel.close_notify(&mut to.leg.socket)
                {
                    return Ok(false);
                }
                // If both directions have ended, no separate FIN is needed, because closing the
                // socket sends it.
                if !self.pipe.is_finished() {
                    to.leg.socket.finish();
                }
                to.pipe.finish();
            }
            Step::Read | Step::Wait | Step::Done => return Ok(false),
        }
        Ok(true)
    }

    /// Returns `true` if `onward`, the direction that carries data from this leg, has a pipe.
    /// Borrows a pipe first if the direction has bulk data.
    fn has_pipe(&self, onward: &mut HalfPipe<Lent>) -> bool {
        let Some(pipes) = self.pipes else {
            return false;
        };
        if onward.lent().is_none()
            && onward.is_bulk(pipes.bulk())
            && let Some(pipe) = pipes.lend()
        {
            onward.lend(pipe);
        }
        onward.lent().is_some()
    }

    /// Moves data from the peer into the pipe. If there is no data, returns the empty pipe to the
    /// pool. Returns `false` if the caller must receive instead, because the stream has ended or
    /// the next record may contain no data.
    fn splice(&mut self, onward: &mut HalfPipe<Lent>) -> Result<bool, CloseReason> {
        let counter = self.side.bytes_in(self.counters);
        let mut kernel = match self.tls.as_deref_mut() {
            Some(Tls::Kernel(kernel)) => Some(kernel),
            _ => None,
        };
        let mut got = self.leg.splice(onward, self.left, counter);
        if let (Some(kernel), Ok(Got::Bytes(n))) = (&mut kernel, &mut got) {
            // With kernel TLS, one call returns one record, so the call is repeated. An error or
            // the end of the stream is ignored here, because the next call reports it again.
            while *n < self.left
                && let Ok(Got::Bytes(more)) = self.leg.splice(onward, self.left - *n, counter)
            {
                *n += more;
            }
            kernel.note_data(*n, &mut self.leg.socket)?;
        }
        let mut spliced = true;
        match (got, kernel) {
            (Ok(Got::Bytes(n)), _) => {
                self.left -= n;
                self.spoke = true;
                self.counters.spliced_bytes.add(n as u64);
                return Ok(true);
            }
            (Ok(Got::Nothing), _) => onward.block_source(),
            (Ok(Got::End) | Err(SocketError::Refused), Some(_)) => spliced = false,
            (Ok(Got::End), None) => onward.end_source(),
            (Err(SocketError::Refused), None) => {
                if let Some(lent) = onward.take_pipe(Vec::new()) {
                    lent.refused();
                }
            }
            (Err(error), Some(kernel)) => return Err(kernel.fail(error, &mut self.leg.socket)),
            (Err(_), None) => return Err(self.side.reset()),
        }
        if let Some(lent) = onward.take_pipe(Vec::new()) {
            lent.give_back();
        }
        Ok(spliced)
    }

    /// Receives once, decrypts, encrypts and sends. At the end of the peer's stream, close_notify
    /// is sent with the last data. Data that precedes an error is still sent.
    fn forward<T: KernelTlsSocket, D: TlsSide>(
        &mut self,
        to: &mut Half<'_, T, D>,
        scratch: &mut Scratch,
        seen: impl FnOnce(&[u8]),
    ) -> Result<(), CloseReason> {
        scratch.clear();
        let taken = self.take(to.pipe, scratch);
        let Scratch {
            sealed_in,
            plain,
            sealed_out,
        } = scratch;
        let plain = plain.filled();
        let weight = taken.as_ref().map_or(0, |weight| *weight);
        let came = weight.max(plain.len()).max(sealed_in.len());
        self.left = self.left.saturating_sub(came);
        self.spoke |= !plain.is_empty();
        seen(plain);
        let bytes = match to.tls.as_deref_mut().and_then(Tls::engine_mut) {
            Some(engine) => {
                let end = to.pipe.source_ended() && !self.truncated;
                if end || !plain.is_empty() {
                    sealed_out.push(&to.pipe.take_held());
                }
                let sealed = engine.seal(plain, end, sealed_out);
                sealed.map_err(|_| CloseReason::Internal)?;
                sealed_out.filled()
            }
            None => plain,
        };
        if to.pipe.source_ended() {
            to.send_before_fin(bytes, self.pipe)?;
        } else {
            to.send(bytes, self.pipe)?;
        }
        taken.map(drop)
    }

    /// Receives data from the peer into `scratch.plain`, decrypted if there is TLS, and sends TLS
    /// output, such as alerts, to the peer. `onward` is the direction that carries data from this
    /// leg. Returns the weight of the records; see `proto::records`.
    pub(super) fn take(
        &mut self,
        onward: &mut HalfPipe<Lent>,
        scratch: &mut Scratch,
    ) -> Result<usize, CloseReason> {
        let counter = self.side.bytes_in(self.counters);
        let Scratch {
            sealed_in,
            plain,
            sealed_out,
        } = scratch;
        let engine = match self.tls.as_deref_mut() {
            None => return self.take_plain(onward, plain),
            Some(Tls::Own(engine)) => engine,
            Some(Tls::Kernel(kernel)) => {
                return match kernel.receive(self.leg, onward, plain, counter)? {
                    Some(weight) => Ok(weight),
                    None => self.end_without_close_notify(onward),
                };
            }
            Some(Tls::Between) => return Err(CloseReason::Internal),
        };
        let opened = if engine.waits() {
            engine.resume(plain, sealed_out)
        } else {
            sealed_in.push(engine.held());
            let most = if self.moves {
                self.most_to_read(sealed_in)
            } else {
                READ
            };
            let got = self.leg.receive(sealed_in, most, counter);
            match got.map_err(|_| self.side.reset())? {
                Got::Bytes(_) => {}
                Got::Nothing => {
                    onward.block_source();
                    return Ok(0);
                }
                Got::End => return self.end_without_close_notify(onward),
            }
            let Some(Tls::Own(engine)) = self.tls.as_deref_mut() else {
                return Err(CloseReason::Internal);
            };
            engine.receive(sealed_in.filled_mut(), plain, sealed_out)
        };
        if !self.leg.ready.readable && !self.waits() {
            onward.block_source();
        }
        self.send(sealed_out.filled(), onward)?;
        sealed_out.clear();
        let opened = opened.map_err(|error| {
            if is_without_data(&error) {
                self.side.without_data()
            } else {
                self.side.tls_error()
            }
        })?;
        if opened.ended {
            onward.end_source();
        }
        Ok(opened.weight)
    }

    /// Receives bytes of a leg without TLS, until the buffer contains [`READ`] bytes or the socket
    /// is empty.
    fn take_plain(
        &mut self,
        onward: &mut HalfPipe<Lent>,
        plain: &mut Buffer,
    ) -> Result<usize, CloseReason> {
        let counter = self.side.bytes_in(self.counters);
        while plain.len() < READ {
            let got = self.leg.receive(plain, READ - plain.len(), counter);
            match got.map_err(|_| self.side.reset())? {
                Got::End => {
                    onward.end_source();
                    break;
                }
                Got::Bytes(n) => onward.passed(n),
                Got::Nothing => {}
            }
            if !self.leg.ready.readable {
                onward.block_source();
                break;
            }
        }
        Ok(0)
    }

    fn end_without_close_notify(
        &mut self,
        onward: &mut HalfPipe<Lent>,
    ) -> Result<usize, CloseReason> {
        match self.side {
            Side::Server => Err(CloseReason::ServerTruncated),
            Side::Client => {
                self.truncated = !self.pipe.source_ended();
                self.counters.truncated.add(u64::from(self.truncated));
                onward.end_source();
                Ok(0)
            }
        }
    }

    /// Sends bytes to the peer after the pending bytes. `back` is the direction that carries data
    /// from this leg.
    pub(super) fn send(
        &mut self,
        bytes: &[u8],
        back: &mut HalfPipe<Lent>,
    ) -> Result<(), CloseReason> {
        if self.pipe.is_finished() {
            return Ok(());
        }
        if let Some(Tls::Kernel(kernel)) = self.tls.as_deref_mut()
            && !bytes.is_empty()
            && !kernel.before_sending(&mut self.leg.socket, bytes.len(), 1)?
        {
            self.pipe.offer(bytes);
            self.pipe.block_sink();
            return Ok(());
        }
        let counter = self.side.bytes_out(self.counters);
        let sent = self.leg.push(bytes, self.pipe, counter);
        self.settle(sent, back)
    }

    /// Sends the last bytes like [`Self::send`]. The next step sends FIN, which then shares the
    /// packet of these bytes.
    fn send_before_fin(
        &mut self,
        bytes: &[u8],
        back: &mut HalfPipe<Lent>,
    ) -> Result<(), CloseReason> {
        if self.pipe.is_finished() || matches!(self.tls, Some(Tls::Kernel(_))) {
            return self.send(bytes, back);
        }
        let counter = self.side.bytes_out(self.counters);
        let sent = self.leg.push_more(bytes, self.pipe, counter);
        self.settle(sent, back)
    }

    /// Sends `head`, and then up to `most` bytes of a file from offset `at` with sendfile(2). These
    /// bytes must be in the page cache. Returns the number of file bytes sent. Returns `None` if
    /// the caller must read the file instead, because the kernel cannot send it or the file has
    /// become shorter.
    ///
    /// Only for [plain](Self::is_plain) legs.
    pub(super) fn send_file(
        &mut self,
        head: &[u8],
        (file, at, most): (&File, u64, usize),
    ) -> Result<Option<usize>, CloseReason> {
        if let Some(Tls::Kernel(kernel)) = self.tls.as_deref_mut() {
            let (bytes, pieces) = (head.len() + most, 2 + most / PAGE);
            if !kernel.before_sending(&mut self.leg.socket, bytes, pieces)? {
                self.pipe.offer(head);
                self.leg.ready.writable = false;
                return Ok(Some(0));
            }
        }
        let counter = self.side.bytes_out(self.counters);
        let sent = self
            .leg
            .send_file(head, (file, at, most), self.pipe, counter);
        let sent = sent.map_err(|_| self.side.reset())?;
        self.counters.sendfile_bytes.add(sent as u64);
        let is_blocked = self.pipe.waits() || !self.leg.ready.writable;
        Ok(Some(sent).filter(|sent| *sent > 0 || is_blocked))
    }

    /// Sends the pending bytes. `back` is the direction that carries data from this leg.
    pub(super) fn flush(&mut self, back: &mut HalfPipe<Lent>) -> Result<(), CloseReason> {
        if let Some(Tls::Kernel(kernel)) = self.tls.as_deref_mut() {
            let (bytes, pieces) = match self.pipe.lent() {
                Some((_, filled)) => (filled, PLACES),
                None => (self.pipe.waiting().len(), 1),
            };
            if !kernel.before_sending(&mut self.leg.socket, bytes, pieces)? {
                self.pipe.block_sink();
                return Ok(());
            }
        }
        let counter = self.side.bytes_out(self.counters);
        let sent = self.leg.flush(self.pipe, counter);
        self.settle(sent, back)
    }

    /// Converts the result of a send. A failed send to the server is no error yet: the server may
    /// have sent an early response before it closed, so its data is still read.
    fn settle(
        &mut self,
        sent: Result<(), SocketError>,
        back: &mut HalfPipe<Lent>,
    ) -> Result<(), CloseReason> {
        match (sent, self.side) {
            (Ok(()), _) => Ok(()),
            (Err(_), Side::Client) => Err(CloseReason::ClientReset),
            (Err(_), Side::Server) => {
                self.leg.ready.readable = true;
                back.handle_readable();
                self.pipe.finish();
                Ok(())
            }
        }
    }
}

/// Minimum bytes of a leg before becket encrypts and decrypts without rustls. The change costs about
/// as much CPU as 40 KiB save (calculated). A smaller `limits.kernel-tls-after` replaces this value.
const DIRECT_AFTER: u64 = 64 * 1024;
