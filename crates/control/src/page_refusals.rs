//! Connections to the admin pages that were not served, by reason.

use becket_proto::labelled;
use becket_proxy::metrics::Counter;

labelled! {
/// Reason why a connection to the admin pages ended without an answer.
pub enum PageRefusal {
    /// The oldest connection was closed to accept a newer one.
    Evicted = "evicted",
    /// The request or the answer took too long.
    Timeout = "timeout",
    /// The request named a foreign host.
    ForeignHost = "foreign-host",
    /// The request needs the unix socket.
    Forbidden = "forbidden",
}
}

/// One counter per [`PageRefusal`]. Only the thread of the pages counts.
#[derive(Debug, Default)]
pub struct PageRefusals([Counter; PageRefusal::ALL.len()]);

impl PageRefusals {
    /// Returns the counter of one reason.
    pub fn of(&self, refusal: PageRefusal) -> &Counter {
        &self.0[refusal as usize]
    }
}
