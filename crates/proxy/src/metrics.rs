//! All counters of becket, with their names in `/metrics`.
//!
//! Each worker owns one [`Counters`], and only that worker writes it. It uses relaxed loads and
//! stores, which are cheaper than locked instructions. A scrape sums the counters of all workers;
//! each counter is read atomically, but not all at the same moment. Gauges are differences of
//! counters. `crates/control/src/exposition.rs` formats them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustls::HandshakeKind;

use becket_http::status::StatusCode;
use becket_proto::labelled;

use becket_keys::signing::queue::Signed;
use becket_log::facts::ByteCounts;
use becket_proto::close_reason::CloseReason;
use becket_tls::resumption::{Offer, Resumption};

/// A counter that one thread increments and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread may call it: concurrent calls would lose counts.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares the counters of one worker. The first group contains counters without labels: each has
/// its name in `/metrics` (without `_total`), and its doc comment is the help text. The second
/// group contains counters with labels, and counters from which other metrics are computed.
macro_rules! counters {
    (
        plain { $(#[doc = $help:literal] $field:ident = $name:literal,)* }
        others { $($(#[doc = $doc:literal])* $other:ident: $kind:ty,)* }
    ) => {
        /// The alignment separates the counters of two workers (see [`OwnLine`](becket_proto::own_line::OwnLine)).
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $(#[doc = $help] pub $field: Counter,)*
            $($(#[doc = $doc])* pub $other: $kind,)*
        }

        impl Counters {
            /// Counters without labels: name, help text and accessor.
            pub const PLAIN: &[(&str, &str, fn(&Self) -> &Counter)] =
                &[$(($name, $help, |counters| &counters.$field),)*];
        }
    };
}

counters! {
plain {
    /// Connections accepted
    accepted = "becket_connections_accepted",
    /// Clients that ended their stream without close_notify
    truncated = "becket_connections_truncated",
    /// Times that accepting paused because of a lack of descriptors
    accept_pauses = "becket_accept_pauses",
    /// Times that accepting paused because limits.connections was reached
    connection_limit_pauses = "becket_connection_limit_pauses",
    /// Handshakes that no longer needed a signature, because the client had closed the connection
    signatures_skipped = "becket_signatures_skipped",
    /// Changes of the listen backlog, caused by longer or shorter waits of clients
    backlog_changes = "becket_backlog_changes",
    /// Failed handshakes of clients that requested a name of a certificate
    handshakes_failed_by_name = "becket_handshakes_failed_by_name",
    /// Handshakes that sent no ticket, because it would be too long for a ClientHello
    tickets_withheld = "becket_tickets_withheld",
    /// Ciphertext received from clients
    client_bytes_in = "becket_client_received_bytes",
    /// Ciphertext sent to clients
    client_bytes_out = "becket_client_sent_bytes",
    /// Bytes received from servers
    server_bytes_in = "becket_server_received_bytes",
    /// Bytes sent to servers
    server_bytes_out = "becket_server_sent_bytes",
    /// Connects to servers that succeeded
    connects = "becket_connects",
    /// Connects to servers that failed or timed out
    connect_failures = "becket_connect_failures",
    /// Signatures of crypto threads that failed
    signatures_failed = "becket_signatures_failed",
    /// Signatures that no crypto thread made, because the client had closed the connection
    signatures_abandoned = "becket_signatures_abandoned",
    /// Turns of the event loops
    turns = "becket_event_loop_iterations",
    /// Bytes relayed through a pipe, without a copy
    spliced_bytes = "becket_spliced_bytes",
    /// Bytes of files sent without a copy
    sendfile_bytes = "becket_sendfile_bytes",
    /// Legs of connections whose TLS the kernel took over
    kernel_tls_legs = "becket_kernel_tls_legs",
    /// Times that a request for a file waited for a disk
    file_waits = "becket_file_waits",
}
others {
    /// Requests for files, by [`StatusCode`].
    file_requests: [Counter; StatusCode::ALL.len()],
    /// Closed connections by reason.
    closed: ByReason,
    /// Completed handshakes: first TLS 1.2, then TLS 1.3; each full, then resumed.
    handshakes: [[Counter; 2]; 2],
    /// Started handshakes. Handshakes in progress are `begun - ended`.
    handshakes_begun: Counter,
    /// Ended handshakes, successful or not.
    handshakes_ended: Counter,
    /// Time from accept to traffic keys of full handshakes, without queueing.
    handshake_full: AtomicHistogram,
    /// Time from accept to traffic keys of resumed handshakes, without queueing.
    handshake_resumed: AtomicHistogram,
    /// Resumptions that clients offered, by kind and result.
    resumptions: Resumptions,
    /// Handshakes whose early data (0-RTT) was accepted.
    early_accepted: Counter,
    /// Handshakes whose early data was announced but not accepted.
    early_rejected: Counter,
    /// Completed TLS handshakes with servers. Index 0 counts full handshakes, index 1 counts
    /// resumed handshakes.
    server_handshakes: [Counter; 2],
    /// Signatures requested from crypto threads. Unanswered requests are `begun - ended`.
    signatures_begun: Counter,
    /// Answered signature requests, successful or not.
    signatures_ended: Counter,
    /// Time from the request of a signature to its start on a crypto thread.
    signature_wait: AtomicHistogram,
    /// Duration of one signing operation on a crypto thread.
    signature: AtomicHistogram,
    /// Time that a connection waited in the queue for a server slot. Connections that got a slot
    /// without queueing are not counted.
    queue_waited: AtomicHistogram,
    /// Time of successful connects to servers, TLS included.
    connect_time: AtomicHistogram,
    /// Pipes lent to directions with bulk data. Currently lent pipes are `lent - returned`.
    pipes_lent: Counter,
    /// Pipes returned or closed.
    pipes_returned: Counter,
    /// Times that bulk data was copied for lack of a pipe, by [`PipeRefusal`].
    pipe_refusals: [Counter; PipeRefusal::ALL.len()],
    /// Times that the kernel did not take over TLS, by [`KernelTlsRefusal`].
    kernel_tls_refusals: [Counter; KernelTlsRefusal::ALL.len()],
}
}

impl Counters {
    pub fn server_traffic(&self) -> ByteCounts {
        ByteCounts {
            received: self.server_bytes_in.value(),
            sent: self.server_bytes_out.value(),
        }
    }

    /// Counts the result of a signature request. Signatures by tokens are not counted, because
    /// tokens have separate counters.
    pub fn count_signature(&self, signed: &Signed) {
        if signed.by_token {
            return;
        }
        self.signatures_ended.add(1);
        match &signed.signature {
            Some(Ok(_)) => {
                self.signature_wait.record(signed.waited);
                self.signature.record(signed.took);
            }
            Some(Err(_)) => self.signatures_failed.add(1),
            None => self.signatures_abandoned.add(1),
        }
    }

    pub fn count_server_handshake(&self, kind: Option<HandshakeKind>) {
        let [full, resumed] = &self.server_handshakes;
        match kind {
            Some(HandshakeKind::Resumed) => resumed.add(1),
            _ => full.add(1),
        }
    }
}

#[derive(Debug)]
pub struct ByReason([Counter; CloseReason::ALL.len()]);

impl Default for ByReason {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl ByReason {
    pub fn of(&self, reason: CloseReason) -> &Counter {
        &self.0[reason as usize]
    }

    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::value).sum()
    }
}

#[derive(Debug, Default)]
pub struct Resumptions([[Counter; Resumption::ALL.len()]; Offer::ALL.len()]);

impl Resumptions {
    pub fn of(&self, offer: Offer, outcome: Resumption) -> &Counter {
        &self.0[offer as usize][outcome as usize]
    }
}

labelled! {
/// The reason why bulk data is copied instead of spliced.
pub enum PipeRefusal {
    Exhausted = "exhausted",
    /// The kernel provides no pipe, or cannot splice these sockets.
    Kernel = "kernel",
}
}

labelled! {
/// Reason why the kernel does not encrypt and decrypt the records of a TLS connection.
pub enum KernelTlsRefusal {
    /// The kernel does not support the TLS version, the cipher or KeyUpdates.
    Unsupported = "unsupported",
    /// The kernel did not attach its TLS layer to the socket.
    Layer = "layer",
    /// The kernel rejected a key, and the connection was closed.
    Key = "key",
}
}

/// Histogram of durations, with eight buckets per power of two of microseconds. A quantile is at
/// most 12.5 % too high.
#[derive(Debug)]
pub struct AtomicHistogram {
    buckets: [Counter; BUCKETS],
    /// Sum of all durations in microseconds.
    sum: Counter,
}

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Counter::default()),
            sum: Counter::default(),
        }
    }
}

impl AtomicHistogram {
    /// Adds a duration. Only the owning thread may call this method, because concurrent calls would
    /// lose counts.
    pub fn record(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(us)].add(1);
        self.sum.add(us);
    }

    pub fn gather<'a>(histograms: impl IntoIterator<Item = &'a Self>) -> Times {
        let (mut counts, mut us) = ([0; BUCKETS], 0.0);
        for histogram in histograms {
            for (sum, bucket) in counts.iter_mut().zip(&histogram.buckets) {
                *sum += bucket.value();
            }
            us += histogram.sum.value() as f64;
        }
        let seconds = us / 1e6;
        Times { counts, seconds }
    }
}

#[derive(Debug)]
pub struct Times {
    /// Number of durations in each bucket; see [`bucket_limit`].
    pub counts: [u64; BUCKETS],
    pub seconds: f64,
}

/// Returns the quantile `share` of the durations counted between two snapshots, in microseconds,
/// rounded up to a bucket limit. Returns `None` if nothing was counted.
pub fn quantile(before: &[u64; BUCKETS], after: &[u64; BUCKETS], share: f64) -> Option<u64> {
    let counts = || before.iter().zip(after).map(|(b, a)| a.saturating_sub(*b));
    let all: u64 = counts().sum();
    let rank = ((all as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    let bucket = counts().position(|count| {
        seen += count;
        seen >= rank
    });
    bucket.map(bucket_limit)
}

/// Returns the index of the bucket for a duration. Each value below 8 us has its own bucket; each
/// larger power of two is divided into eight buckets.
fn bucket(us: u64) -> usize {
    let us = us.min(LIMIT_US - 1);
    if us < 8 {
        return us as usize;
    }
    let octave = us.ilog2() as usize;
    let eighth = (us >> (octave - 3)) as usize & 7;
    (octave - 2) * 8 + eighth
}

/// Returns the exclusive upper limit of a bucket in microseconds.
pub fn bucket_limit(index: usize) -> u64 {
    if index < 8 {
        return index as u64 + 1;
    }
    let octave = index / 8 + 2;
    ((index % 8 + 9) as u64) << (octave - 3)
}

/// Lower limit of the last bucket. This bucket counts all durations of 67 s and more.
const LIMIT_US: u64 = 1 << 26;
pub const BUCKETS: usize = 24 * 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_within_the_limits_of_its_bucket() {
        for us in (0..100_000).chain((100_000..LIMIT_US).step_by(9_973)) {
            let i = bucket(us);
            assert!(us < bucket_limit(i), "{us} in {i}");
            assert!(i == 0 || us >= bucket_limit(i - 1), "{us} in {i}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
