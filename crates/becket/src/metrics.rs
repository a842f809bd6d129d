//! Every number that becket counts, and its name in `/metrics`.
//!
//! Each worker owns one [`Counters`]: only that worker writes it, with relaxed loads and stores
//! and no locked instruction; the control thread reads all of them and sums on scrape. A scrape
//! therefore sees each number at some recent instant, never a torn one. Gauges are differences
//! of counters. Rendering lives in `control/admin.rs`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustls::HandshakeKind;

use crate::close_reason::CloseReason;
use crate::leg::Traffic;

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

/// Numbers of one worker.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections ended, by [`CloseReason`] as index.
    pub closed: ByReason,
    /// Handshakes completed, by [`HandshakeClass`].
    pub handshakes: [Counter; HandshakeClass::COUNT],
    /// Handshakes begun and not completed or failed yet are `begun - ended`.
    pub handshakes_begun: Counter,
    /// Handshakes that ended, in whatever way.
    pub handshakes_ended: Counter,
    /// From accept to traffic keys without the time in a queue, full handshakes.
    pub handshake_full: Histogram,
    /// The same of resumed handshakes.
    pub handshake_resumed: Histogram,
    /// Resumptions that clients offered, by what they offered and what became of it.
    pub resumptions: Resumptions,
    /// Handshakes that gave no ticket, because it would be longer than a client could bring back.
    pub tickets_withheld: Counter,
    /// Handshakes with early data (0-RTT) that was taken.
    pub early_accepted: Counter,
    /// Handshakes for which early data was announced and none was taken.
    pub early_rejected: Counter,
    /// Ciphertext bytes received from clients.
    pub client_bytes_in: Counter,
    /// Ciphertext bytes sent to clients.
    pub client_bytes_out: Counter,
    /// Plaintext bytes received from servers.
    pub server_bytes_in: Counter,
    /// Plaintext bytes sent to servers.
    pub server_bytes_out: Counter,
    /// Connects to servers that succeeded.
    pub connects: Counter,
    /// TLS handshakes with servers that were completed: full, then resumed.
    pub server_handshakes: [Counter; 2],
    /// Connects to servers that failed or timed out; the next server was tried.
    pub connect_failures: Counter,
    /// From asking for a slot to getting one, of connections that had to wait.
    pub queue_waited: Histogram,
    /// From giving a slot back to going on with it, of those connections.
    pub hand_over: Histogram,
    /// Clients that ended their stream without close_notify.
    pub truncated: Counter,
    /// Times that accepting paused for want of descriptors.
    pub accept_pauses: Counter,
    /// Times that accepting paused because `limits.connections` was reached.
    pub connection_limit_pauses: Counter,
    /// Sessions that peers were not told of because control was behind.
    pub sessions_untold: Counter,
    /// Turns of the event loop.
    pub turns: Counter,
}

impl Counters {
    /// What came from servers and went to them.
    pub fn server_traffic(&self) -> Traffic {
        Traffic {
            received: self.server_bytes_in.value(),
            sent: self.server_bytes_out.value(),
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
    /// Number of classes.
    pub const COUNT: usize = 4;

    /// Index into [`Counters::handshakes`].
    pub const fn index(self) -> usize {
        (self.tls13 as usize) * 2 + self.resumed as usize
    }

    /// The class at an index.
    pub const fn at(index: usize) -> Self {
        Self {
            tls13: index & 2 != 0,
            resumed: index & 1 != 0,
        }
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

/// By what a client may resume; TLS has one way for each version, and TLS 1.2 two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Offer {
    /// TLS 1.2, session ID.
    Id,
    /// TLS 1.2, ticket.
    Ticket,
    /// TLS 1.3, pre-shared key.
    Psk,
}

impl Offer {
    /// Every value: `ALL[o as usize] == o`.
    pub const ALL: &[Self] = &[Self::Id, Self::Ticket, Self::Psk];

    /// The label in metrics, the word that the access log has for the resumption.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Ticket => "ticket",
            Self::Psk => "psk",
        }
    }
}

/// What became of a session or ticket that a client offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Resumption {
    /// Opened, or found in the table.
    Opened,
    /// Not in the table, or not a ticket of ours.
    Unknown,
    /// Its time in the table was over, or its key is gone.
    Expired,
    /// Older than `sessions.max-age` since the full handshake.
    TooOld,
    /// Made under another policy.
    OtherPolicy,
    /// The seal does not open.
    BadSeal,
    /// Sealed under a secret that is not accepted here: of another cluster, of a host that is
    /// alone, or of this one before it was restarted alone.
    UnknownSecret,
    /// The client's chain in it no longer verifies, or is the second that was offered.
    ClientCertificate,
}

impl Resumption {
    /// Every value: `ALL[r as usize] == r`.
    pub const ALL: &[Self] = &[
        Self::Opened,
        Self::Unknown,
        Self::Expired,
        Self::TooOld,
        Self::OtherPolicy,
        Self::BadSeal,
        Self::UnknownSecret,
        Self::ClientCertificate,
    ];

    /// The label in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::TooOld => "too-old",
            Self::OtherPolicy => "other-policy",
            Self::BadSeal => "bad-seal",
            Self::UnknownSecret => "unknown-secret",
            Self::ClientCertificate => "client-certificate",
        }
    }
}

/// Times in logarithmic buckets, eight to an octave of microseconds: an error of at most 12.5 %.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    /// Sum of all times, microseconds.
    sum: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Counter::default()),
            sum: Counter::default(),
        }
    }
}

impl Histogram {
    /// Counts one time. Only the owning thread may call it.
    pub fn record(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(us)].add(1);
        self.sum.add(us);
    }

    /// How many times fell into each bucket; see [`bucket_limit`].
    pub fn counts(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|i| self.buckets[i].value())
    }

    /// Sum of all times.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum.value())
    }
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
/// Number of buckets of a [`Histogram`].
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
        for i in 0..HandshakeClass::COUNT {
            assert_eq!(HandshakeClass::at(i).index(), i);
        }
        for (i, offer) in Offer::ALL.iter().enumerate() {
            assert_eq!(*offer as usize, i);
        }
        for (i, resumption) in Resumption::ALL.iter().enumerate() {
            assert_eq!(*resumption as usize, i);
        }
    }
}
