//! Counters of requests that the admin pages did not answer, by reason.

use becket_proto::labelled;

labelled! {
pub enum PageRefusal {
    /// The oldest connection was closed, because a new one exceeded the limit.
    Evicted = "evicted",
    /// The request or the response exceeded its time limit.
    Timeout = "timeout",
    /// The host name in the request is not accepted.
    ForeignHost = "foreign-host",
    /// The request is allowed only over the unix socket.
    Forbidden = "forbidden",
}
}
