//! What became of the datagrams of stud and hitch: counted by the control thread, read by pages.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_proto::labelled;

labelled! {
/// What became of a datagram.
pub enum StudOutcome {
    /// Its session is in the table.
    Stored = "stored",
    /// Its session is there already, and stays as it is.
    Known = "known",
    /// No datagram of stud, or no session in it.
    Malformed = "malformed",
    /// Not sealed with our key.
    BadSeal = "bad-seal",
    /// Of another version than TLS 1.2.
    Version = "version",
    /// Of a suite that the policy does not have.
    Suite = "suite",
    /// Without extended master secret, which the policy requires.
    NoExtendedMasterSecret = "no-extended-master-secret",
    /// Of a client that showed a certificate.
    ClientCertificate = "client-certificate",
    /// With what becket does not speak, such as compression.
    Unsupported = "unsupported",
    /// Of a name that is no host name.
    ServerName = "server-name",
    /// Too old to resume, here or there.
    TooOld = "too-old",
    /// Made in a future too far away for a difference of clocks.
    Clock = "clock",
    /// The table takes none.
    NotKept = "not-kept",
}
}

/// How often which outcome.
#[derive(Debug, Default)]
pub(super) struct StudCounts([AtomicU64; StudOutcome::ALL.len()]);

impl StudCounts {
    /// Counts one.
    pub(super) fn count(&self, outcome: StudOutcome) {
        if let Some(counter) = self.0.get(outcome as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// How often until now.
    pub(super) fn of(&self, outcome: StudOutcome) -> u64 {
        let counter = self.0.get(outcome as usize);
        counter.map_or(0, |counter| counter.load(Relaxed))
    }
}
