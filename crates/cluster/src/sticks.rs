//! Interface to the terminator's sticks: the stored assignments of clients to servers, which peers exchange.

use std::fmt;
use std::time::Duration;

use crate::replica::{PeerStick, StickCursor};

/// Tables that store the last server of each client.
pub trait StickMemory: fmt::Debug + Send + Sync {
    /// Stores a peer's stick. A `late` stick comes from a dump and never replaces an existing one.
    /// Returns whether the stick was new and its server is configured.
    fn learn_from_peer(&self, stick: &PeerStick, late: bool, now: Duration) -> bool;

    /// Calls `show` with each stick and its age, starting at `from`. Returns the position to
    /// continue from, or `None` at the end. Visits at most `at_most` entries of one backend under
    /// one lock.
    fn visit_sticks(
        &self,
        from: StickCursor,
        now: Duration,
        at_most: usize,
        show: &mut dyn FnMut(&PeerStick, Duration),
    ) -> Option<StickCursor>;
}
