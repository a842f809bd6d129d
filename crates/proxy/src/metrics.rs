//! Every number that becket counts, and its name in `/metrics`.
//!
//! Each worker owns one [`Counters`]: only that worker writes it, with relaxed loads and stores
//! and no locked instruction; the control thread reads all of them and sums on scrape. A scrape
//! therefore sees each number at some recent instant, never a torn one. Gauges are differences
//! of counters. `crates/control/src/exposition.rs` writes them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustls::HandshakeKind;

use becket_http::status::StatusCode;
use becket_proto::labelled;

use crate::socket::ByteCounts;
use becket_keys::signing::queue::Signed;
use becket_proto::close_reason::CloseReason;
use becket_tls::resumption::{Offer, Resumption};

/// A number that one thread counts up and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread may call it: concurrent adds would lose counts.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count so far.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares the numbers of one worker: first those that are one number in `/metrics`, with its name without `_total` and
/// their doc as its help; then those that have labels there, or are only part of one.
macro_rules! counters {
    (
        plain { $(#[doc = $help:literal] $field:ident = $name:literal,)* }
        others { $(#[doc = $doc:literal] $other:ident: $kind:ty,)* }
    ) => {
        /// Numbers of one worker.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $help] pub $field: Counter,)*
            $(#[doc = $doc] pub $other: $kind,)*
        }

        impl Counters {
            /// Those that are one number: name, help, and where it is.
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
    /// Times that accepting paused for want of descriptors
    accept_pauses = "becket_accept_pauses",
    /// Times that accepting paused because limits.connections was reached
    connection_limit_pauses = "becket_connection_limit_pauses",
    /// Handshakes that were not signed for, because the client had gone
    signatures_skipped = "becket_signatures_skipped",
    /// Times that the length of the listening sockets' queues was changed, because clients waited for too long or no longer did
    backlog_changes = "becket_backlog_changes",
    /// Handshakes that failed with clients that asked for a name of a certificate
    handshakes_failed_by_name = "becket_handshakes_failed_by_name",
    /// Handshakes that gave no ticket, because it would be too long to come back
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
    /// Signatures that no crypto thread made, because the client had left
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
    /// Connections ended.
    closed: ByReason,
    /// Handshakes completed, by [`HandshakeClass`].
    handshakes: [Counter; HandshakeClass::ALL.len()],
    /// Handshakes begun; those that have not ended yet are `begun - ended`.
    handshakes_begun: Counter,
    /// Handshakes that ended, in whatever way.
    handshakes_ended: Counter,
    /// From accept to traffic keys without the time in a queue, full handshakes.
    handshake_full: AtomicHistogram,
    /// From accept to traffic keys without the time in a queue, resumed handshakes.
    handshake_resumed: AtomicHistogram,
    /// Resumptions that clients offered, by what they offered and what became of it.
    resumptions: Resumptions,
    /// Handshakes with early data (0-RTT) that was taken.
    early_accepted: Counter,
    /// Handshakes for which early data was announced and none was taken.
    early_rejected: Counter,
    /// TLS handshakes with servers that were completed: full, then resumed.
    server_handshakes: [Counter; 2],
    /// Signatures asked of crypto threads; those that have not been answered yet are `begun - ended`.
    signatures_begun: Counter,
    /// Signatures that crypto threads have answered, in whatever way.
    signatures_ended: Counter,
    /// From asking for a signature to a crypto thread that takes it up.
    signature_wait: AtomicHistogram,
    /// What a signature takes on a crypto thread.
    signature: AtomicHistogram,
    /// From asking for a slot to getting one, of connections that had to wait.
    queue_waited: AtomicHistogram,
    /// Pipes lent to directions that carry bulk; those that still are lent are `lent - returned`.
    pipes_lent: Counter,
    /// Pipes given back or closed.
    pipes_returned: Counter,
    /// Times that bulk was copied for want of a pipe, by [`PipeRefusal`].
    pipe_refusals: [Counter; PipeRefusal::ALL.len()],
    /// Times that the kernel did not take over TLS, by [`KernelTlsRefusal`].
    kernel_tls_refusals: [Counter; KernelTlsRefusal::ALL.len()],
}
}

impl Counters {
    /// What came from servers and went to them.
    pub fn server_traffic(&self) -> ByteCounts {
        ByteCounts {
            received: self.server_bytes_in.value(),
            sent: self.server_bytes_out.value(),
        }
    }

    /// Counts what a crypto thread has answered. Tokens count for themselves.
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

    /// Counts a handshake with a server.
    pub fn count_server_handshake(&self, kind: Option<HandshakeKind>) {
        let [full, resumed] = &self.server_handshakes;
        match kind {
            Some(HandshakeKind::Resumed) => resumed.add(1),
            _ => full.add(1),
        }
    }
}

/// One counter per [`CloseReason`].
#[derive(Debug)]
pub struct ByReason([Counter; CloseReason::ALL.len()]);

impl Default for ByReason {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl ByReason {
    /// The counter of one reason.
    pub fn of(&self, reason: CloseReason) -> &Counter {
        &self.0[reason as usize]
    }

    /// Sum over all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().map(Counter::value).sum()
    }
}

/// How a handshake went: version and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeClass {
    /// TLS 1.3, else 1.2.
    pub tls13: bool,
    /// Resumed, else full.
    pub resumed: bool,
}

impl HandshakeClass {
    /// Every class, by its index.
    pub const ALL: [Self; 4] = [
        Self::of(false, false),
        Self::of(false, true),
        Self::of(true, false),
        Self::of(true, true),
    ];

    const fn of(tls13: bool, resumed: bool) -> Self {
        Self { tls13, resumed }
    }

    /// Index into [`Counters::handshakes`].
    pub const fn index(self) -> usize {
        (self.tls13 as usize) * 2 + self.resumed as usize
    }
}

/// One counter per [`Offer`] and [`Resumption`].
#[derive(Debug, Default)]
pub struct Resumptions([[Counter; Resumption::ALL.len()]; Offer::ALL.len()]);

impl Resumptions {
    /// The counter of one outcome.
    pub fn of(&self, offer: Offer, outcome: Resumption) -> &Counter {
        &self.0[offer as usize][outcome as usize]
    }
}

labelled! {
/// Why bulk is copied where a pipe would do.
pub enum PipeRefusal {
    /// All are in use.
    Exhausted = "exhausted",
    /// The kernel grants no pipe, or does not splice these sockets.
    Kernel = "kernel",
}
}

labelled! {
/// Why the kernel did not take over the TLS of a leg.
pub enum KernelTlsRefusal {
    /// The version, the cipher or a second key is nothing that it does.
    Unsupported = "unsupported",
    /// It refused the layer.
    Layer = "layer",
    /// It refused a key, and the connection ended.
    Key = "key",
}
}

/// Times in logarithmic buckets, eight to an octave of microseconds: an error of at most 12.5 %.
#[derive(Debug)]
pub struct AtomicHistogram {
    buckets: [Counter; BUCKETS],
    /// Sum of all times, microseconds.
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
    /// Counts one time. Only the owning thread may call it.
    pub fn record(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(us)].add(1);
        self.sum.add(us);
    }

    /// How many times fell into each bucket (see [`bucket_limit`]), and the sum of all times in seconds: of several workers together.
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

/// What histograms have counted.
#[derive(Debug)]
pub struct Times {
    /// By bucket.
    pub counts: [u64; BUCKETS],
    /// Sum of all times.
    pub seconds: f64,
}

/// The time in microseconds that so large a share of what was counted in between did not exceed,
/// up to the width of a bucket; `None` if nothing was counted.
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

/// The bucket of a time: values below 8 us have one each, then eight to an octave.
fn bucket(us: u64) -> usize {
    let us = us.min(LIMIT_US - 1);
    if us < 8 {
        return us as usize;
    }
    let octave = us.ilog2() as usize;
    let eighth = (us >> (octave - 3)) as usize & 7;
    (octave - 2) * 8 + eighth
}

/// The first time, in microseconds, that is beyond the bucket.
pub fn bucket_limit(index: usize) -> u64 {
    if index < 8 {
        return index as u64 + 1;
    }
    let octave = index / 8 + 2;
    ((index % 8 + 9) as u64) << (octave - 3)
}

/// Times of 67 s and more share the last bucket.
const LIMIT_US: u64 = 1 << 26;
/// Number of buckets of a [`AtomicHistogram`].
pub const BUCKETS: usize = 24 * 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_below_the_limit_of_its_bucket_and_not_below_the_one_before() {
        for us in (0..100_000).chain((100_000..LIMIT_US).step_by(9_973)) {
            let i = bucket(us);
            assert!(us < bucket_limit(i), "{us} in {i}");
            assert!(i == 0 || us >= bucket_limit(i - 1), "{us} in {i}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn classes_and_indexes_agree() {
        for (i, class) in HandshakeClass::ALL.iter().enumerate() {
            assert_eq!(class.index(), i);
        }
    }
}
