//! Outcomes of the datagrams from stud and hitch, counted by the control thread and read by status
//! pages.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_proto::labelled;

labelled! {
pub enum StudOutcome {
    /// The session was stored in the table.
    Stored = "stored",
    /// The session was already in the table, and stays unchanged.
    Known = "known",
    /// The datagram is not in the format of stud or hitch, or contains no valid session.
    Malformed = "malformed",
    /// The HMAC was not made with the configured key.
    BadSeal = "bad-seal",
    /// The session's protocol version is not TLS 1.2.
    Version = "version",
    /// The policy does not include the session's cipher suite.
    Suite = "suite",
    /// The session lacks the extended master secret that the policy requires.
    NoExtendedMasterSecret = "no-extended-master-secret",
    /// The client of the session sent a certificate.
    ClientCertificate = "client-certificate",
    /// The session uses a feature that becket does not support, such as compression.
    Unsupported = "unsupported",
    /// The server name of the session is not a host name.
    ServerName = "server-name",
    /// The session is too old to be resumed, by the limits of this host or of the sender.
    TooOld = "too-old",
    /// The session was created further in the future than the tolerated clock difference.
    Clock = "clock",
    /// The table did not accept the session.
    NotKept = "not-kept",
}
}

#[derive(Debug, Default)]
pub(super) struct StudCounts([AtomicU64; StudOutcome::ALL.len()]);

impl StudCounts {
    pub(super) fn count(&self, outcome: StudOutcome) {
        if let Some(counter) = self.0.get(outcome as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn of(&self, outcome: StudOutcome) -> u64 {
        let counter = self.0.get(outcome as usize);
        counter.map_or(0, |counter| counter.load(Relaxed))
    }
}
