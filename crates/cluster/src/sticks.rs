//! Sticks, the assignments of clients to servers, as the terminator stores them and peers exchange them.

use std::fmt;
use std::time::Duration;

use crate::replica::{PeerStick, StickCursor};

/// The terminator's tables that store the last server of each client.
pub trait StickMemory: fmt::Debug + Send + Sync {
    /// Stores a stick from a peer. A `late` stick comes from a dump and never replaces an existing
    /// one. Returns `true` if the stick is new on this node and its server is known.
    fn learn_from_peer(&self, stick: &PeerStick, late: bool, now: Duration) -> bool;

    /// Calls `show` with each stick and its age, starting at `from`. Returns the position to
    /// continue from. Each call visits at most `at_most` entries of one backend and holds one lock
    /// of its table.
    fn visit_sticks(
        &self,
        from: StickCursor,
        now: Duration,
        at_most: usize,
        show: &mut dyn FnMut(&PeerStick, Duration),
    ) -> Option<StickCursor>;
}
