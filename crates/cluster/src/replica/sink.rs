//! Interfaces to the session table and to the table of sticks (assignments of clients to servers).
//!
//! `Sink` applies the records of peers. `DumpSource` supplies the records of a dump.

use std::time::Duration;

use becket_proto::bounded_table::Cursor;

use super::names::PeerName;
use super::record::{PeerRecord, PeerStick, SessionRecord};
use super::status::DropCause;

/// Position in a walk over the sticks of all backends. The default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StickCursor {
    /// Index of the backend, in an order that the implementation chooses.
    pub backend: usize,
    pub at: Cursor,
}

pub trait Sink {
    /// Applies a record. Must not block.
    ///
    /// # Errors
    /// Fails with [`DropCause::UnknownPolicy`], or with [`DropCause::Unwanted`] if the record
    /// changed nothing, for example because the session has expired.
    fn take(&mut self, from: PeerName, record: PeerRecord<'_>) -> Result<(), DropCause>;
}

/// Source of the records of a dump: sessions, through
/// [`SessionTable::visit`](becket_proto::session_table::SessionTable::visit), and sticks, through
/// [`Stick::visit`](becket_proto::stick::Stick::visit).
pub trait DumpSource {
    /// Calls `show` with at most `at_most` sessions, starting at `from`. Returns the position to
    /// continue from, or `None` at the end.
    ///
    /// Sessions whose full handshake is older than `youngest` may be omitted. The sessions are sent
    /// as [`PeerRecord::Sync`].
    fn visit(
        &mut self,
        from: Cursor,
        youngest: Duration,
        at_most: usize,
        show: &mut dyn FnMut(SessionRecord<'_>),
    ) -> Option<Cursor>;

    /// Calls `show` with at most `at_most` sticks that were used within `youngest`, like
    /// [`visit`](Self::visit). The sticks are sent as [`PeerRecord::Stuck`].
    fn visit_sticks(
        &mut self,
        from: StickCursor,
        youngest: Duration,
        at_most: usize,
        show: &mut dyn FnMut(PeerStick),
    ) -> Option<StickCursor>;

    /// Returns the number of sessions in the table, from which joining nodes choose the peer that
    /// sends the dump. Called at most once per poll.
    fn held(&self) -> u32;
}
