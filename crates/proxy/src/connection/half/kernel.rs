//! A leg that carries bulk: the kernel takes over its TLS, and its bytes pass like those of a leg without.
//!
//! Each leg moves by itself, in the middle of its life: once it has carried `limits.kernel-tls-after`, at a moment when nothing
//! waits to be sent to its peer and the engine holds nothing. A busy leg has such moments because reads stop at the end of a
//! record from then on ([`Half::most_to_read`]). The socket gets its layer first; if that is refused, or the kernel lacks what
//! was negotiated, the leg stays as it is for good. Afterwards there is no way back: a key that the kernel refuses ends the
//! connection.
//!
//! Nothing here is called for a leg that is not about to move. [`KernelRecords`] has what differs afterwards; decision 0028 has why.

use std::mem;

use becket_proto::half_pipe::HalfPipe;
use becket_proto::records;

use super::super::kernel_tls::{KernelCipher, KernelRecords};
use super::{Half, Tls};
use crate::metrics::KernelTlsRefusal;
use crate::pipes::Lent;
use crate::socket::KernelTlsSocket;
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::{Buffer, READ};
use becket_tls::side::TlsSide;

impl<S: KernelTlsSocket, C: TlsSide> Half<'_, S, C> {
    /// How much to receive behind what the engine held, which is in `sealed`: whole records, if there are any.
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

    /// Has the kernel take over if this leg is to move and can; `onward` is the direction that begins at the peer.
    pub(in super::super) fn enter_kernel(
        &mut self,
        onward: &mut HalfPipe<Lent>,
    ) -> Result<(), CloseReason> {
        let Some(tls) = self.tls.as_deref_mut().filter(|_| self.moves) else {
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
        let kind = KernelCipher::of(engine.facts().common()).filter(|kind| {
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
        // Bytes that have arrived meanwhile may have been reported already.
        onward.handle_readable();
        Ok(())
    }
}
