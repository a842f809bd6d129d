//! What became of the datagrams of stud and hitch: counted by the control thread, read by pages.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudOutcome {
    /// Its session is in the table.
    Stored,
    /// Its session is there already, and stays as it is.
    Known,
    /// No datagram of stud, or no session in it.
    Malformed,
    /// Not sealed with our key.
    BadSeal,
    /// Of another version than TLS 1.2.
    Version,
    /// Of a suite that the policy does not have.
    Suite,
    /// Without extended master secret, which the policy requires.
    NoExtendedMasterSecret,
    /// Of a client that showed a certificate.
    ClientCertificate,
    /// With what becket does not speak, such as compression.
    Unsupported,
    /// Of a name that is no host name.
    ServerName,
    /// Too old to resume, here or there.
    TooOld,
    /// Made in a future too far away for a difference of clocks.
    Clock,
    /// The table takes none.
    NotKept,
}

impl StudOutcome {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Stored,
        Self::Known,
        Self::Malformed,
        Self::BadSeal,
        Self::Version,
        Self::Suite,
        Self::NoExtendedMasterSecret,
        Self::ClientCertificate,
        Self::Unsupported,
        Self::ServerName,
        Self::TooOld,
        Self::Clock,
        Self::NotKept,
    ];

    /// The label in metrics and status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Known => "known",
            Self::Malformed => "malformed",
            Self::BadSeal => "bad-seal",
            Self::Version => "version",
            Self::Suite => "suite",
            Self::NoExtendedMasterSecret => "no-extended-master-secret",
            Self::ClientCertificate => "client-certificate",
            Self::Unsupported => "unsupported",
            Self::ServerName => "server-name",
            Self::TooOld => "too-old",
            Self::Clock => "clock",
            Self::NotKept => "not-kept",
        }
    }
}

/// How often which outcome.
#[derive(Debug, Default)]
pub struct StudCounts([AtomicU64; StudOutcome::ALL.len()]);

impl StudCounts {
    /// Counts one.
    pub fn count(&self, outcome: StudOutcome) {
        if let Some(counter) = self.0.get(outcome as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// How often until now.
    pub fn of(&self, outcome: StudOutcome) -> u64 {
        let counter = self.0.get(outcome as usize);
        counter.map_or(0, |counter| counter.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_a_counter_and_a_name_of_its_own() {
        let counts = StudCounts::default();
        for (place, outcome) in StudOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
            counts.count(outcome);
            assert_eq!(counts.of(outcome), 1);
        }
        let mut names = StudOutcome::ALL.map(StudOutcome::name);
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "{names:?}");
    }
}
