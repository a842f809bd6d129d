//! Takes the TLS of a leg with bulk data from rustls.
//!
//! If the listener or the backend allows kernel TLS, the leg moves to the kernel after it has
//! carried `limits.kernel-tls-after` bytes, at a moment when no bytes are pending for its peer and
//! the engine holds no bytes. Its data is then relayed like that of a leg without TLS. Such moments
//! exist on a busy leg, too, because its reads stop at the end of a record
//! ([`Half::most_to_read`]). First, the TLS layer is attached to the socket. If the kernel refuses
//! the layer, or does not support the negotiated cipher, becket keeps the leg. After the layer is
//! attached, the leg cannot return, so a rejected key ends the connection.
//!
//! Otherwise the engine encrypts and decrypts without rustls ([`Tls::leave_rustls`]) after
//! [`DIRECT_AFTER`](super::DIRECT_AFTER) bytes, or at the connection's second alarm.
//!
//! Legs with less data call no function of this module. [`KernelRecords`] processes records after a
//! move to the kernel. Decisions 0028 and 0052 explain the moves.

use std::mem;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::records;

use super::super::kernel_tls::{KernelCipher, KernelRecords};
use super::{Half, Tls};
use crate::metrics::KernelTlsRefusal;
use crate::pipes::Lent;
use crate::socket::KernelTlsSocket;
use becket_proto::close_reason::CloseReason;

use becket_tls::engine::Engine;
use becket_tls::scratch::{Buffer, READ};
use becket_tls::side::TlsSide;

impl<S: KernelTlsSocket, C: TlsSide> Half<'_, S, C> {
    /// Returns how many bytes to receive after the bytes in `sealed`. If the socket contains the
    /// end of a record, the received bytes end there.
    pub(super) fn most_to_read(&mut self, sealed: &mut Buffer) -> usize {
        let held = sealed.len();
        let seen = self.leg.socket.peek(sealed.next(READ)).unwrap_or(0);
        sealed.advance(seen);
        let whole = records::whole(sealed.filled());
        sealed.truncate(held);
        match whole.checked_sub(held) {
            Some(most @ 1..) => most,
            _ => READ,
        }
    }

    /// Takes the TLS of this leg from rustls if [`Self::note_bulk`] requires this: the kernel
    /// encrypts and decrypts if it may and no bytes are pending, otherwise the engine without
    /// rustls. `onward` is the direction that carries data from this leg.
    pub(in super::super) fn leave_rustls(
        &mut self,
        onward: &mut HalfPipe<Lent>,
    ) -> Result<(), CloseReason> {
        let Some(tls) = self.tls.as_deref_mut().filter(|_| self.moves) else {
            return Ok(());
        };
        if tls.engine().is_some_and(Engine::is_movable) {
            return self.enter_kernel(onward);
        }
        self.moves = !tls.leave_rustls()?;
        Ok(())
    }

    fn enter_kernel(&mut self, onward: &mut HalfPipe<Lent>) -> Result<(), CloseReason> {
        let Some(tls) = self.tls.as_deref_mut() else {
            return Ok(());
        };
        self.pipe.release();
        let ends = self.pipe.source_ended() || onward.source_ended();
        let engine = match tls {
            Tls::Own(engine) if !self.pipe.waits() && !ends && engine.is_at_rest() => engine,
            _ => return Ok(()),
        };
        self.moves = false;
        let socket = &mut self.leg.socket;
        let common = engine.facts().map(TlsSide::common);
        let kind = common.and_then(KernelCipher::of).filter(|kind| {
            let without_rekey = self.limits.kernel_tls_without_rekey;
            let support = socket.support();
            support.covers(kind.version, kind.cipher, without_rekey)
        });
        let refuse = |why: KernelTlsRefusal| self.counters.kernel_tls_refusals[why as usize].add(1);
        let Some(kind) = kind.filter(|_| socket.attach().is_ok()) else {
            engine.stay();
            refuse(match kind {
                None => KernelTlsRefusal::Unsupported,
                Some(_) => KernelTlsRefusal::Layer,
            });
            return Ok(());
        };
        let Tls::Own(engine) = mem::replace(tls, Tls::Between) else {
            return Err(CloseReason::Internal);
        };
        let entered = KernelRecords::enter(engine, (kind, self.side), socket);
        let kernel = entered.inspect_err(|_| refuse(KernelTlsRefusal::Key))?;
        *tls = Tls::Kernel(Box::new(kernel));
        self.counters.kernel_tls_legs.add(1);
        // Data that arrived during the move causes no further event, so the next step reads again.
        onward.handle_readable();
        Ok(())
    }
}
