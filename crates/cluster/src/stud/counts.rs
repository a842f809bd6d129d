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
    /// Not a datagram of stud, or without a valid session.
    Malformed = "malformed",
    /// Not sealed with our key.
    BadSeal = "bad-seal",
    /// A version other than TLS 1.2.
    Version = "version",
    /// A cipher suite that the policy does not have.
    Suite = "suite",
    /// No extended master secret, which the policy requires.
    NoExtendedMasterSecret = "no-extended-master-secret",
    /// A session of a client that sent a certificate.
    ClientCertificate = "client-certificate",
    /// A feature that becket does not support, such as compression.
    Unsupported = "unsupported",
    /// A server name that is not a host name.
    ServerName = "server-name",
    /// Too old to resume, here or at the sender.
    TooOld = "too-old",
    /// Created too far in the future for a difference of clocks.
    Clock = "clock",
    /// The table did not accept it.
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
