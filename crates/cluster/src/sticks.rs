//! Where clients were sent, as the terminator remembers it and as peers are shown it.

use std::fmt;
use std::time::Duration;

use crate::replica::{PeerStick, StickCursor};

/// Which server each client had, as the terminator remembers it.
pub trait StickMemory: fmt::Debug + Send + Sync {
    /// Takes what a peer says; `late` if it says so some time after, so that it replaces nothing. Returns whether that is news
    /// and of use here.
    fn learn_from_peer(&self, stick: &PeerStick, late: bool, now: Duration) -> bool;

    /// Shows where clients were sent, with the time since, from `from` on; returns where to go on. Looks at no more than
    /// `at_most` places of one memory, under one of its locks.
    fn visit_sticks(
        &self,
        from: StickCursor,
        now: Duration,
        at_most: usize,
        show: &mut dyn FnMut(&PeerStick, Duration),
    ) -> Option<StickCursor>;
}
