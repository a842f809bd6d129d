//! Connections at rest: how long they have been, and what ends them before their time-out: a drain, or memory that is short.

use std::time::Duration;

use becket_config::process::Timeouts;

use super::context::{Context, Net, Turn};
use super::reached::Advance;
use super::{Advanced, Connection, Phase};
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::Scratch;

impl<N: Net> Connection<N> {
    /// The process has begun to drain: a connection at rest is given less time.
    pub fn drain(&mut self, turn: &mut Turn<'_, N>, _: &mut Scratch) -> Advanced {
        let core = &mut self.core;
        let cx = Context { core, turn };
        let deadline = match &self.phase {
            Some(Phase::Relaying(phase)) => phase.deadline(&cx),
            Some(Phase::Serving(phase)) => phase.deadline(&cx),
            _ => return Advanced::Waiting,
        };
        self.core.deadline = self.core.deadline.min(deadline);
        Advanced::Waiting
    }

    /// Returns how long nothing has moved, or `None` if either side waits for something. While draining it is more than it was.
    pub fn rested(&self, now: Duration, timeouts: &Timeouts) -> Option<Duration> {
        let patience = match &self.phase {
            Some(Phase::Relaying(phase)) if phase.rests() => timeouts.idle,
            Some(Phase::Serving(phase)) if phase.rests() => timeouts.keep_alive,
            _ => return None,
        };
        Some((now + patience).saturating_sub(self.core.deadline))
    }

    /// Memory is short, and it is at rest: ends it.
    pub fn end_rest(&mut self, turn: &mut Turn<'_, N>, scratch: &mut Scratch) -> Advanced {
        self.drive(Phase::end_rest, turn, scratch)
    }
}

impl<N: Net> Phase<N> {
    fn end_rest(self, cx: &mut Context<'_, '_, N>, _: &mut Scratch) -> Advance<Self, N> {
        Advance::Reached(match self {
            Self::Relaying(mut phase) => phase.abort(CloseReason::MemoryRest),
            Self::Serving(phase) => phase.abort(CloseReason::MemoryRest, cx),
            phase => return Advance::Go(phase),
        })
    }
}
