//! The wait of a PostgreSQL client that asked to cancel what another connection does.
//!
//! All servers of the backend are being told ([`crate::backend::cancel`]). The client hears nothing but the end, and
//! that only then: as at a server, a client that went on before could have its next query cancelled. It holds no server
//! meanwhile: that one was connected for a handshake, and who cancels makes none.

use std::time::Duration;

use becket_proto::half_pipe::HalfPipe;

use super::closing::Closing;
use super::{Context, Net, Next, Phase};
use crate::backend::cancel::CancelOutcome;
use crate::backend::pool::Pool;
use becket_proto::close_reason::CloseReason;

/// A client whose cancel is under way.
#[derive(Debug)]
pub(super) struct Cancelling {
    told: CancelOutcome,
}

impl Cancelling {
    /// Leaves the request for control.
    pub(super) fn begin<N: Net>(
        pool: &Pool,
        request: &[u8],
        cx: &mut Context<'_, '_, N>,
    ) -> Next<N> {
        cx.turn.counters.handshakes_ended.add(1);
        let (cancel, told) = pool.cancel(cx.turn.place, request);
        let client = cx.core.facts.client.ip();
        let source = cx.turn.admission.source(client);
        cx.turn.cancels.enqueue(source, cancel);
        cx.core.deadline = cx.turn.now.running + WAIT;
        Next::Go(Phase::Cancelling(Self { told }))
    }

    pub(super) fn advance<N: Net>(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        if cx.core.client.ready.failed {
            return Next::End(CloseReason::Cancel);
        }
        match self.told.outcome() {
            Some(reason) => Closing::begin(reason, HalfPipe::default(), cx),
            None => Next::Wait(Phase::Cancelling(self)),
        }
    }

    /// The servers were told, as far as they can be.
    pub(super) fn expire<N: Net>(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        Closing::begin(CloseReason::Cancel, HalfPipe::default(), cx)
    }
}

/// As long as cancels that came before may take, and then its own.
const WAIT: Duration = Duration::from_secs(10);
