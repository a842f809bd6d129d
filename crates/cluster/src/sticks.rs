//! Sticks, the assignments of clients to servers, as the terminator stores them and peers exchange them.

use std::fmt;
use std::time::Duration;

use crate::replica::{PeerStick, StickCursor};

/// The terminator's tables of the last server of each client.
pub trait StickMemory: fmt::Debug + Send + Sync {
    /// Stores a stick of a peer. A `late` stick comes from a dump, and replaces no other stick.
    /// Returns whether the stick is news here and its server is known.
    fn learn_from_peer(&self, stick: &PeerStick, late: bool, now: Duration) -> bool;

    /// Calls `show` with sticks and their age, from `from` on. Returns the position to continue
    /// from. Visits at most `at_most` places of one backend's table, under one of its locks.
    fn visit_sticks(
        &self,
        from: StickCursor,
        now: Duration,
        at_most: usize,
        show: &mut dyn FnMut(&PeerStick, Duration),
    ) -> Option<StickCursor>;
}
