//! Outcomes of the datagrams of stud and hitch: counted by the control thread, read by pages.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_proto::labelled;

labelled! {
/// Outcome of a datagram.
pub enum StudOutcome {
    /// Its session was stored in the table.
    Stored = "stored",
    /// Its session was already in the table, and stays unchanged.
    Known = "known",
    /// It is no datagram of stud, or contains no valid session.
    Malformed = "malformed",
    /// Its HMAC was not made with the configured key.
    BadSeal = "bad-seal",
    /// Its session is of a version other than TLS 1.2.
    Version = "version",
    /// The policy does not have the cipher suite of its session.
    Suite = "suite",
    /// Its session lacks the extended master secret that the policy requires.
    NoExtendedMasterSecret = "no-extended-master-secret",
    /// The client of its session sent a certificate.
    ClientCertificate = "client-certificate",
    /// Its session uses a feature that becket does not support, such as compression.
    Unsupported = "unsupported",
    /// The server name of its session is not a host name.
    ServerName = "server-name",
    /// Its session is too old to resume, here or at the sender.
    TooOld = "too-old",
    /// Its session was created further in the future than clocks may differ.
    Clock = "clock",
    /// The table did not accept its session.
    NotKept = "not-kept",
}
}

/// Number of datagrams by outcome.
#[derive(Debug, Default)]
pub(super) struct StudCounts([AtomicU64; StudOutcome::ALL.len()]);

impl StudCounts {
    /// Counts a datagram.
    pub(super) fn count(&self, outcome: StudOutcome) {
        if let Some(counter) = self.0.get(outcome as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of datagrams with an outcome.
    pub(super) fn of(&self, outcome: StudOutcome) -> u64 {
        let counter = self.0.get(outcome as usize);
        counter.map_or(0, |counter| counter.load(Relaxed))
    }
}
