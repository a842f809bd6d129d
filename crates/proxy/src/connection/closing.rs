//! The end of a connection that the client has not ended: the last bytes out, FIN, and a wait.
//!
//! A socket that is closed with unread bytes in it sends a reset, and a reset may overtake the
//! last bytes of the answer in the client's kernel (RFC 9112, section 9.6 describes it). So the
//! connection is half-closed, and what still comes is read and dropped until the client has
//! ended, `timeouts.linger` is over, or it has sent more than [`MOST_DROPPED`].

use becket_proto::half_pipe::HalfPipe;

use super::context::{Context, Net};
use super::reached::Advance;
use crate::leg::Got;
use crate::pipes::Lent;
use crate::socket::{SocketError, StreamSocket};
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::{READ, Scratch};

/// Waits for the client to take the last bytes.
#[derive(Debug)]
pub(super) struct Closing {
    reason: CloseReason,
    /// Finished when the client has been sent FIN.
    last: HalfPipe<Lent>,
    /// Bytes that came and were dropped.
    dropped: usize,
}

impl Closing {
    /// Sends `last` and FIN, then waits. The reason was decided by what led here. A client to
    /// whom FIN alone would say that all is well is reset, unless all is well.
    pub(super) fn begin<N: Net>(
        reason: CloseReason,
        last: HalfPipe<Lent>,
        cx: &mut Context<'_, '_, N>,
    ) -> Advance<Self, N> {
        if cx.core.fin_is_an_end && reason != CloseReason::Finished {
            cx.core.client.socket.reset_on_close();
            return Advance::end(reason);
        }
        cx.core.deadline = cx.turn.now.running + cx.turn.timeouts.linger;
        cx.core.client.ready.readable = true;
        Advance::Go(Self {
            reason,
            last,
            dropped: 0,
        })
    }

    pub(super) fn advance<N: Net>(
        mut self,
        cx: &mut Context<'_, '_, N>,
        scratch: &mut Scratch,
    ) -> Advance<Self, N> {
        if !self.last.is_finished() {
            if cx.flush(&mut self.last).is_err() {
                return Advance::end(self.reason);
            }
            if self.last.waits() {
                return Advance::Wait(self);
            }
            self.last.finish();
            cx.core.client.socket.finish();
        }
        let mut left = cx.turn.limits.bytes_per_turn;
        while cx.core.client.ready.readable {
            if left == 0 {
                return Advance::Yield(self);
            }
            scratch.sealed_in.clear();
            match cx.receive(&mut scratch.sealed_in, READ) {
                Ok(Got::Bytes(came)) => {
                    left = left.saturating_sub(came);
                    self.dropped += came;
                }
                Ok(Got::Nothing) => break,
                // A record without data, if the kernel has TLS.
                Err(SocketError::Refused) => {
                    let counter = &cx.turn.counters.client_bytes_in;
                    let client = &mut cx.core.client;
                    match client.receive_record(&mut scratch.sealed_in, counter) {
                        Ok(Some(_)) => {
                            left = left.saturating_sub(WITHOUT_DATA);
                            self.dropped += WITHOUT_DATA;
                        }
                        Ok(None) => break,
                        Err(_) => return Advance::end(self.reason),
                    }
                }
                Ok(Got::End) | Err(_) => return Advance::end(self.reason),
            }
            if self.dropped > MOST_DROPPED {
                cx.core.client.socket.reset_on_close();
                return Advance::end(self.unless_finished(CloseReason::LingerLimit));
            }
        }
        Advance::Wait(self)
    }

    pub(super) fn expire<N: Net>(self) -> Advance<Self, N> {
        Advance::end(self.unless_finished(CloseReason::LingerTimeout))
    }

    /// The reason that led here, unless all was well until `now`.
    fn unless_finished(&self, now: CloseReason) -> CloseReason {
        match self.reason {
            CloseReason::Finished => now,
            reason => reason,
        }
    }
}

/// Weight of a record without data, as in `proto::records`.
const WITHOUT_DATA: usize = 4096;
/// Bytes that were under way when the client learnt of the end fit in; more comes from a client that does not care.
const MOST_DROPPED: usize = 1024 * 1024;
