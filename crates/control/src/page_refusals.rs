//! Connections to the admin pages that were not served, by reason.

use becket_proto::labelled;
use becket_proxy::metrics::Counter;

labelled! {
/// Why a connection to the admin pages ended without an answer.
pub enum PageRefusal {
    /// It was the oldest connection, and made room for a newer one.
    Evicted = "evicted",
    /// The request or the answer took too long.
    Timeout = "timeout",
    /// The request named a foreign host.
    ForeignHost = "foreign-host",
    /// The request needs the unix socket.
    Forbidden = "forbidden",
}
}

/// One counter per [`PageRefusal`]. The thread of the pages is the one that counts.
#[derive(Debug, Default)]
pub struct PageRefusals([Counter; PageRefusal::ALL.len()]);

impl PageRefusals {
    /// The counter of one reason.
    pub fn of(&self, refusal: PageRefusal) -> &Counter {
        &self.0[refusal as usize]
    }
}
