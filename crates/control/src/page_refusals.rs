//! Connections to the admin pages that were not served, by reason.

use becket_proto::labelled;
use becket_proxy::metrics::Counter;

labelled! {
pub enum PageRefusal {
    /// The oldest connection was closed to accept a newer one.
    Evicted = "evicted",
    /// The request or the answer took too long.
    Timeout = "timeout",
    /// The host name of the request is not accepted.
    ForeignHost = "foreign-host",
    /// The request is allowed only over the unix socket.
    Forbidden = "forbidden",
}
}

/// One counter per [`PageRefusal`]. Only the HTTP thread of the admin pages increments them.
#[derive(Debug, Default)]
pub struct PageRefusals([Counter; PageRefusal::ALL.len()]);

impl PageRefusals {
    pub fn of(&self, refusal: PageRefusal) -> &Counter {
        &self.0[refusal as usize]
    }
}
