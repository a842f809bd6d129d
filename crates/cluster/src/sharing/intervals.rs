//! Intervals and time limits of certificate sharing.

use std::time::Duration;

/// Time limit for the acknowledgements of all peers.
pub(super) const ACK_TIME: Duration = Duration::from_secs(3);
/// Interval at which a record is repeated until it is acknowledged or answered.
pub(super) const REPEAT: Duration = Duration::from_millis(500);
/// Interval of all other work.
pub(super) const TICK: Duration = Duration::from_secs(1);
