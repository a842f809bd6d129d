//! What the state machine needs of the session table and of the memory of sticks: a place for records of peers, and the
//! source of dumps.

use std::time::Duration;

use becket_proto::bounded_table::Cursor;

use super::names::PeerName;
use super::record::{PeerRecord, PeerStick, SessionRecord};

/// A place in a walk through who sticks: there is a memory for each backend. The default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StickCursor {
    /// The number of the backend, in an order of the caller's.
    pub backend: usize,
    /// The place in its memory.
    pub at: Cursor,
}

/// Where received records go.
pub trait Sink {
    /// Takes a record; each that was offered comes at most once. Must not block.
    fn take(&mut self, from: PeerName, record: PeerRecord<'_>) -> SinkOutcome;
}

/// What a [`Sink`] did with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkOutcome {
    /// It was put to use.
    Taken,
    /// Its policy is not known here. Counted for the peer.
    UnknownPolicy,
    /// It was of no use.
    Unwanted,
}

/// Where the records for a node that joins come from: the session table, seen through
/// [`SessionTable::visit`](becket_proto::session_table::SessionTable::visit), and who sticks, by
/// [`Stick::visit`](becket_proto::stick::Stick::visit).
pub trait DumpSource {
    /// Shows sessions from `from` on, at most `at_most` of them; returns where to go on, or nothing at the end.
    ///
    /// A session older than `youngest` (the time since its full handshake) need not be shown. What `show` is given is
    /// sent as [`PeerRecord::Sync`].
    fn visit(
        &mut self,
        from: Cursor,
        youngest: Duration,
        at_most: usize,
        show: &mut dyn FnMut(SessionRecord<'_>),
    ) -> Option<Cursor>;

    /// Likewise where clients were sent: those that came within `youngest`. What `show` is given is sent as
    /// [`PeerRecord::Stuck`].
    fn visit_sticks(
        &mut self,
        from: StickCursor,
        youngest: Duration,
        at_most: usize,
        show: &mut dyn FnMut(PeerStick),
    ) -> Option<StickCursor>;

    /// How many sessions are held, for the others to choose whom to ask. Called for keep-alives, once a poll at most.
    fn held(&self) -> u32;
}
