//! A PostgreSQL client whose cancel request becket is sending to the servers.
//!
//! The request is sent to all servers of the listener ([`crate::backend::cancel`]). becket sends no
//! answer to the client, and closes the connection only after all sends. A PostgreSQL server also
//! closes the connection after the cancel: if the client continued earlier, its next query could be
//! cancelled.

use std::time::Duration;

use becket_proto::half_pipe::HalfPipe;

use super::context::{Context, Net};
use super::reached::Advance;
use crate::backend::awaited::{Awaited, AwaitedAnswer};
use becket_proto::close_reason::CloseReason;

#[derive(Debug)]
pub(super) struct Cancelling {
    outcome: Awaited<CloseReason>,
}

impl Cancelling {
    pub(super) fn new<N: Net>(outcome: Awaited<CloseReason>, cx: &mut Context<'_, '_, N>) -> Self {
        cx.core.deadline = cx.turn.now.running + WAIT;
        Self { outcome }
    }

    pub(super) fn advance<N: Net>(self, cx: &Context<'_, '_, N>) -> Advance<Self, N> {
        if cx.core.client.ready.failed {
            return Advance::end(CloseReason::Cancel);
        }
        match self.outcome.take() {
            AwaitedAnswer::Waiting => Advance::Wait(self),
            AwaitedAnswer::Done(reason) => Advance::close(reason, HalfPipe::default()),
            AwaitedAnswer::Lost => Advance::close(CloseReason::Cancel, HalfPipe::default()),
        }
    }

    pub(super) fn expire<N: Net>(self) -> Advance<Self, N> {
        Advance::close(CloseReason::Cancel, HalfPipe::default())
    }
}

/// Maximum time for sending a cancel request, including the wait for earlier requests.
const WAIT: Duration = Duration::from_secs(10);
