//! The end of a connection that the client has not ended: the last bytes out, FIN, and a wait.
//!
//! A socket that is closed with unread bytes in it sends a reset, and a reset may overtake the
//! last bytes of the answer in the client's kernel (RFC 9112, section 9.6 describes it). So the
//! connection is half-closed, and what still comes is read and dropped until the client has
//! ended, `timeouts.linger` is over, or it has sent more than [`MOST_DROPPED`].

use becket_proto::half_pipe::HalfPipe;

use super::{Core, Net, Next, Phase, Turn};
use crate::close_reason::CloseReason;
use crate::leg::Got;
use crate::scratch::{READ, Scratch};
use crate::socket::Socket;

/// Waits for the client to take the last bytes.
#[derive(Debug)]
pub(super) struct Closing {
    reason: CloseReason,
    /// Finished when the client has been sent FIN.
    last: HalfPipe,
    /// Bytes that came and were dropped.
    dropped: usize,
}

impl Closing {
    /// Sends `last` and FIN, then waits. The reason was decided by what led here. A client to
    /// whom FIN alone would say that all is well is reset, unless all is well.
    pub(super) fn begin<N: Net>(
        reason: CloseReason,
        last: HalfPipe,
        core: &mut Core<N>,
        turn: &Turn<'_, N>,
    ) -> Next<N> {
        if core.fin_is_an_end && reason != CloseReason::Finished {
            core.client.socket.reset_on_close();
            return Next::End(reason);
        }
        core.deadline = turn.now.mono + turn.timeouts.linger;
        core.client.ready.readable = true;
        Next::Go(Phase::Closing(Self {
            reason,
            last,
            dropped: 0,
        }))
    }

    /// Does what can be done now.
    pub(super) fn advance<N: Net>(
        mut self,
        core: &mut Core<N>,
        turn: &Turn<'_, N>,
        scratch: &mut Scratch,
    ) -> Next<N> {
        let client = &mut core.client;
        if !self.last.is_finished() {
            let counter = &turn.counters.client_bytes_out;
            if client.flush(&mut self.last, counter).is_err() {
                return Next::End(self.reason);
            }
            if !self.last.waiting().is_empty() {
                return Next::Wait(Phase::Closing(self));
            }
            self.last.finish();
            client.socket.finish();
        }
        let mut left = turn.limits.bytes_per_turn;
        while client.ready.readable {
            if left == 0 {
                return Next::Yield(Phase::Closing(self));
            }
            let counter = &turn.counters.client_bytes_in;
            scratch.sealed_in.clear();
            match client.receive(&mut scratch.sealed_in, READ, counter) {
                Ok(Got::Bytes) => {
                    let came = scratch.sealed_in.len();
                    left = left.saturating_sub(came);
                    self.dropped += came;
                }
                Ok(Got::Nothing) => break,
                Ok(Got::End) | Err(_) => return Next::End(self.reason),
            }
            if self.dropped > MOST_DROPPED {
                core.client.socket.reset_on_close();
                return Next::End(self.unless_finished(CloseReason::LingerLimit));
            }
        }
        Next::Wait(Phase::Closing(self))
    }

    /// The client did not close in time.
    pub(super) fn expire<N: Net>(self) -> Next<N> {
        Next::End(self.unless_finished(CloseReason::LingerTimeout))
    }

    /// What led here, unless all was well until `now`.
    fn unless_finished(&self, now: CloseReason) -> CloseReason {
        match self.reason {
            CloseReason::Finished => now,
            reason => reason,
        }
    }
}

/// What was under way when the client learnt of the end fits in; more is a client that does not care.
const MOST_DROPPED: usize = 1024 * 1024;
