//! Connections to the admin pages that were not served, by reason.

use becket_proto::labelled;

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
