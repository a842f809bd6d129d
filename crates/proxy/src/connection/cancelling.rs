//! The wait of a PostgreSQL client that asked to cancel what another connection does.
//!
//! All servers of the listener are being told ([`crate::backend::cancel`]). The client gets nothing but the end, and
//! that only then: as at a server, a client that continued before could have its next query cancelled.

use std::time::Duration;

use becket_proto::half_pipe::HalfPipe;

use super::context::{Context, Net};
use super::reached::Advance;
use crate::backend::cancel::CancelOutcome;
use becket_proto::close_reason::CloseReason;

/// A client whose cancel is under way.
#[derive(Debug)]
pub(super) struct Cancelling {
    outcome: CancelOutcome,
}

impl Cancelling {
    pub(super) fn new<N: Net>(outcome: CancelOutcome, cx: &mut Context<'_, '_, N>) -> Self {
        cx.core.deadline = cx.turn.now.running + WAIT;
        Self { outcome }
    }

    pub(super) fn advance<N: Net>(self, cx: &Context<'_, '_, N>) -> Advance<Self, N> {
        if cx.core.client.ready.failed {
            return Advance::end(CloseReason::Cancel);
        }
        match self.outcome.outcome() {
            Some(reason) => Advance::close(reason, HalfPipe::default()),
            None => Advance::Wait(self),
        }
    }

    /// The servers were told, as far as they can be.
    pub(super) fn expire<N: Net>(self) -> Advance<Self, N> {
        Advance::close(CloseReason::Cancel, HalfPipe::default())
    }
}

/// As long as cancels that came before may take, and then its own.
const WAIT: Duration = Duration::from_secs(10);
