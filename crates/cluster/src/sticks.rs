//! Sticks, the assignments of clients to servers, as the terminator stores them and peers exchange them.

use std::fmt;
use std::time::Duration;

use crate::replica::{PeerStick, StickCursor};

/// Memory of each client's last server, in the terminator.
pub trait StickMemory: fmt::Debug + Send + Sync {
    /// Stores a record of a peer. A `late` one comes from a dump, and replaces nothing. Returns whether it is new
    /// and useful here.
    fn learn_from_peer(&self, stick: &PeerStick, late: bool, now: Duration) -> bool;

    /// Shows sticks with their age, from `from` on. Returns the position to continue from. Visits at most `at_most`
    /// places of one memory, under one of its locks.
    fn visit_sticks(
        &self,
        from: StickCursor,
        now: Duration,
        at_most: usize,
        show: &mut dyn FnMut(&PeerStick, Duration),
    ) -> Option<StickCursor>;
}
