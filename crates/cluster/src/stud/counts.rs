//! Outcomes of the datagrams of stud and hitch: counted by the control thread, read by pages.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_proto::labelled;

labelled! {
/// Outcome of a datagram.
pub enum StudOutcome {
    /// The session was stored in the table.
    Stored = "stored",
    /// The session was already in the table, and stays unchanged.
    Known = "known",
    /// The datagram is not one of stud or hitch, or contains no valid session.
    Malformed = "malformed",
    /// The HMAC was not made with the configured key.
    BadSeal = "bad-seal",
    /// The session is of a version other than TLS 1.2.
    Version = "version",
    /// The policy does not have the cipher suite of the session.
    Suite = "suite",
    /// The session lacks the extended master secret that the policy requires.
    NoExtendedMasterSecret = "no-extended-master-secret",
    /// The client of the session sent a certificate.
    ClientCertificate = "client-certificate",
    /// The session uses a feature that becket does not support, such as compression.
    Unsupported = "unsupported",
    /// The server name of the session is not a host name.
    ServerName = "server-name",
    /// The session is too old to resume, here or at the sender.
    TooOld = "too-old",
    /// The session was created further in the future than clocks may differ.
    Clock = "clock",
    /// The table did not accept the session.
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
