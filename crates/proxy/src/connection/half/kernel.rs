//! A leg that carries bulk: the kernel takes over its TLS, and its bytes pass like those of a leg without.
//!
//! Each leg moves by itself, in the middle of its life: once it has carried `limits.kernel-tls-after`, at a moment when nothing
//! waits to be sent to its peer and the engine holds nothing. A busy leg has such moments because reads stop at the end of a
//! record from then on ([`Half::most_to_read`]). The socket gets its layer first; where that is refused, or the kernel lacks what
//! was negotiated, the leg stays as it is for good. Behind that there is no way back: a key that the kernel refuses ends the
//! connection.
//!
//! What differs afterwards is here: records without data, the ends of both directions, and keys that wear out. A FIN without
//! close_notify is no end, as before. [`KernelTls`] reads and writes those records; decision 0028 has why.

use std::mem;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::records;

use super::super::context::Side;
use super::super::kernel_tls::{KernelFailure, KernelTls, Negotiated, Taken, Tls};
use super::Half;
use crate::leg::Got;
use crate::metrics::KernelTlsRefusal;
use crate::pipes::Lent;
use crate::socket::{KernelTlsSocket, SocketError};
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::{Buffer, READ};
use becket_tls::side::TlsSide;

impl<S: KernelTlsSocket, C: TlsSide> Half<'_, S, C> {
    pub(super) fn kernel(&mut self) -> Option<&mut KernelTls<C>> {
        match self.tls.as_deref_mut() {
            Some(Tls::Kernel(kernel)) => Some(kernel),
            _ => None,
        }
    }

    /// Whether the kernel is to take over as soon as it can.
    fn is_due(&self) -> bool {
        let engine = self.tls.as_ref().and_then(|tls| tls.engine());
        let traffic = self.leg.traffic;
        engine.is_some_and(|engine| engine.is_movable())
            && traffic.received + traffic.sent >= self.limits.kernel_tls_after as u64
    }

    /// How much to receive behind what the engine held, which is in `sealed`: whole records, where the kernel is to take over and
    /// there are any.
    pub(super) fn most_to_read(&mut self, sealed: &mut Buffer) -> usize {
        if !self.is_due() {
            return READ;
        }
        let held = sealed.len();
        let seen = self.leg.socket.look(sealed.next(READ)).unwrap_or(0);
        sealed.advance(seen);
        let whole = records::whole(sealed.filled());
        sealed.truncate(held);
        match whole.checked_sub(held) {
            Some(most @ 1..) => most,
            _ => READ,
        }
    }

    /// Has the kernel take over, if it is time; `onward` is the direction that begins at the peer.
    pub(super) fn enter_kernel(&mut self, onward: &mut HalfPipe<Lent>) -> Result<(), CloseReason> {
        if !self.is_due() {
            return Ok(());
        }
        self.pipe.release();
        if self.pipe.waits() {
            return Ok(());
        }
        let ends = self.pipe.source_ended() || onward.source_ended();
        let Some(engine) = self.tls.as_deref_mut().and_then(Tls::engine_mut) else {
            return Ok(());
        };
        if ends || !engine.is_at_rest() {
            return Ok(());
        }
        let (socket, limits) = (&mut self.leg.socket, self.limits);
        let kind = Negotiated::of(engine.facts().common()).filter(|kind| {
            let without_rekey = limits.kernel_tls_without_rekey;
            let support = socket.support();
            support.covers(kind.version, kind.cipher, without_rekey)
        });
        let refusals = &self.counters.kernel_tls_refusals;
        let Some(kind) = kind else {
            engine.stay();
            refusals[KernelTlsRefusal::Unsupported as usize].add(1);
            return Ok(());
        };
        if socket.attach().is_err() {
            engine.stay();
            refusals[KernelTlsRefusal::Layer as usize].add(1);
            return Ok(());
        }
        let Some(tls) = self.tls.as_deref_mut() else {
            return Ok(());
        };
        let Tls::Own(engine) = mem::replace(tls, Tls::Between) else {
            return Err(CloseReason::Internal);
        };
        match KernelTls::enter(engine, kind, socket) {
            Ok(kernel) => *tls = Tls::Kernel(Box::new(kernel)),
            Err(_) => {
                refusals[KernelTlsRefusal::Key as usize].add(1);
                return Err(CloseReason::KernelTls);
            }
        }
        self.counters.kernel_tls_legs.add(1);
        // What has arrived meanwhile may have been reported already.
        onward.handle_readable();
        Ok(())
    }

    /// Takes what the kernel has opened into `plain`, or one record without data. Returns what that weighs.
    pub(super) fn take_opened(
        &mut self,
        onward: &mut HalfPipe<Lent>,
        plain: &mut Buffer,
    ) -> Result<usize, CloseReason> {
        let counter = self.side.bytes_in(self.counters);
        let mut weight = 0;
        while plain.len() < READ {
            let before = plain.len();
            let Some(Tls::Kernel(kernel)) = self.tls.as_deref_mut() else {
                return Err(CloseReason::Internal);
            };
            let taken = match self.leg.receive(plain, READ - before, counter) {
                Ok(Got::Bytes(n)) => kernel.note_data(n).map(|()| Taken::Data),
                Ok(Got::Nothing) => Ok(Taken::Nothing),
                // It is there in the next call as well.
                Ok(Got::End) | Err(SocketError::Refused) if before > 0 => break,
                Ok(Got::End) | Err(SocketError::Refused) => {
                    let taken = kernel.take_record(self.leg, plain, counter);
                    // The kernel refused what it does not show: no record.
                    taken.and_then(|taken| match taken {
                        Taken::Nothing => Err(SocketError::Unopened.into()),
                        taken => Ok(taken),
                    })
                }
                Err(fault) => Err(fault.into()),
            };
            match taken.map_err(|failure| self.fail(failure))? {
                Taken::Data => onward.passed(plain.len() - before),
                Taken::Heeded(more) => {
                    weight += more;
                    break;
                }
                Taken::CloseNotify => {
                    onward.end_source();
                    break;
                }
                Taken::End => return self.end_without_close_notify(onward),
                Taken::Nothing => {
                    onward.block_source();
                    break;
                }
            }
        }
        Ok(weight)
    }

    /// Whether so many bytes may be sent, in so many pieces at most; the socket takes nothing where not. What the socket says
    /// otherwise, sending finds out.
    pub(super) fn may_send(&mut self, bytes: usize, pieces: usize) -> Result<bool, CloseReason> {
        let Some(Tls::Kernel(kernel)) = self.tls.as_deref_mut() else {
            return Ok(true);
        };
        match kernel.before_sending(&mut self.leg.socket, bytes, pieces) {
            Ok(may) => Ok(may),
            Err(KernelFailure::Socket(_)) => Ok(true),
            Err(failure) => Err(self.fail(failure)),
        }
    }

    /// Says that no more follows, where the kernel has TLS. False where the socket takes nothing now.
    pub(super) fn take_leave(&mut self) -> bool {
        let Some(Tls::Kernel(kernel)) = self.tls.as_deref_mut() else {
            return true;
        };
        // A peer that is gone needs no end.
        kernel.close_notify(&mut self.leg.socket).unwrap_or(true)
    }

    /// What a failure is called. The peer is told.
    pub(super) fn fail(&mut self, failure: KernelFailure) -> CloseReason {
        if let Some(Tls::Kernel(kernel)) = self.tls.as_deref_mut() {
            kernel.tell(failure, &mut self.leg.socket);
        }
        match (failure, self.side) {
            (KernelFailure::Broken(_) | KernelFailure::Alert, Side::Client) => {
                CloseReason::ClientTlsError
            }
            (KernelFailure::Broken(_) | KernelFailure::Alert, Side::Server) => {
                CloseReason::ServerTlsError
            }
            (KernelFailure::WithoutData, Side::Client) => CloseReason::RecordsWithoutData,
            (KernelFailure::WithoutData, Side::Server) => CloseReason::ServerRecordsWithoutData,
            (KernelFailure::KeyUpdate, _) => CloseReason::KeyUpdate,
            (KernelFailure::Refused, _) => CloseReason::KernelTls,
            (KernelFailure::Socket(_), side) => side.reset(),
        }
    }
}
