//! Idle connections: their idle time, and closing them early for a drain, for memory pressure, or
//! for clients that wait for a slot.

use std::sync::Arc;
use std::time::Duration;

use becket_config::process::Timeouts;

use super::context::{Context, Net, Turn};
use super::reached::Advance;
use super::{Advanced, Connection, Phase};
use crate::backend::server_state::ServerState;
use crate::socket::StreamSocket;
use becket_proto::close_reason::CloseReason;
use becket_tls::scratch::Scratch;

impl<N: Net> Connection<N> {
    /// Shortens the deadline of an idle connection when the process starts to drain.
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

    /// Returns the idle time, or `None` if a request or response is in progress. Reports too much
    /// while the process drains, because it is computed from the deadline, which a drain shortens.
    pub fn rested(&self, now: Duration, timeouts: &Timeouts) -> Option<Duration> {
        let patience = match &self.phase {
            Some(Phase::Relaying(phase)) if phase.rests() => timeouts.idle,
            Some(Phase::Serving(phase)) if phase.rests() => timeouts.keep_alive,
            _ => return None,
        };
        Some((now + patience).saturating_sub(self.core.deadline))
    }

    /// Returns the server if it has answered the client and the connection is idle. Returns `None`
    /// with kernel TLS, which hides partial records.
    pub fn rests_at(&self) -> Option<&Arc<ServerState>> {
        match &self.phase {
            Some(Phase::Relaying(phase)) if phase.rests_answered() => {
                Some(phase.server.slot.server())
            }
            _ => None,
        }
    }

    /// Returns the total number of bytes received and sent on both legs.
    pub fn moved(&self) -> u64 {
        let (client, server) = (self.core.client.traffic, self.core.facts.server_traffic);
        client.received + client.sent + server.received + server.sent
    }

    /// Returns `true` if the client's kernel has acknowledged all sent data. Costs a system call.
    pub fn is_acknowledged(&self) -> bool {
        self.core.client.socket.is_acknowledged()
    }

    /// Takes the records of an established connection from rustls, which frees 1.3 KiB. Returns
    /// `true` if it did.
    ///
    /// # Errors
    ///
    /// Returns the reason to close the connection if AWS-LC rejects a key.
    pub fn leave_rustls(&mut self) -> Result<bool, CloseReason> {
        match &mut self.phase {
            Some(Phase::Relaying(phase)) => phase.leave_rustls(),
            Some(Phase::Serving(phase)) => phase.leave_rustls(),
            _ => Ok(false),
        }
    }

    /// Closes an idle connection before its timeout.
    pub fn end_rest(
        &mut self,
        reason: CloseReason,
        turn: &mut Turn<'_, N>,
        scratch: &mut Scratch,
    ) -> Advanced {
        let end = |phase: Phase<N>, cx: &mut Context<'_, '_, N>, _: &mut Scratch| {
            phase.end_rest(reason, cx)
        };
        self.drive(end, turn, scratch)
    }
}

impl<N: Net> Phase<N> {
    fn end_rest(self, reason: CloseReason, cx: &Context<'_, '_, N>) -> Advance<Self, N> {
        Advance::Reached(match self {
            Self::Relaying(mut phase) => phase.abort(reason),
            Self::Serving(phase) => phase.abort(reason, cx),
            phase => return Advance::Go(phase),
        })
    }
}
