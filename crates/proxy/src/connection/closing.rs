//! Closes a connection on which the client may still be sending: sends the last bytes and FIN, then
//! waits.
//!
//! Closing a socket with unread data sends a reset, which may overtake the last bytes of the
//! response in the client's kernel (RFC 9112, section 9.6). So the connection is half-closed, and
//! incoming data is discarded until the client closes its side, `timeouts.linger` expires, or more
//! than [`MOST_DROPPED`] bytes arrive.

use becket_proto::half_pipe::HalfPipe;

use super::context::{Context, Net};
use super::reached::Advance;
use crate::leg::Got;
use crate::pipes::Lent;
use crate::socket::{SocketError, StreamSocket};
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::{READ, Scratch};

#[derive(Debug)]
pub(super) struct Closing {
    reason: CloseReason,
    /// Pending bytes for the client; finished when FIN was sent.
    last: HalfPipe<Lent>,
    dropped: usize,
}

impl Closing {
    /// Sends `last` and FIN, then waits. If the client would mistake FIN for the end of a complete
    /// response, the connection is reset instead, unless `reason` is `Finished`.
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
                // With kernel TLS, the socket refuses a plain receive if the next record contains
                // no application data.
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

    /// Returns `now` if the connection was closing normally (`Finished`), otherwise the original
    /// reason.
    fn unless_finished(&self, now: CloseReason) -> CloseReason {
        match self.reason {
            CloseReason::Finished => now,
            reason => reason,
        }
    }
}

/// Number of bytes that a record without data counts towards `MOST_DROPPED`.
const WITHOUT_DATA: usize = 4096;
/// Maximum number of discarded bytes. It exceeds the amount of data that a client sends before it
/// receives FIN.
const MOST_DROPPED: usize = 1024 * 1024;
