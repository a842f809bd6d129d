//! Results that a thread records during the run: one [`Samples`] per step, merged at the end.

use std::collections::BTreeMap;

use derive_more::AddAssign;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::histogram::Histogram;
use crate::report::{Handshakes, Traffic};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// Transactions with an intended start within the step.
    pub attempted: u64,
    pub succeeded: u64,
    #[serde(with = "pairs")]
    pub failures: BTreeMap<Failure, u64>,
    /// Transactions that succeeded within the step, including transactions that started before it.
    pub completed: u64,
    /// Connections that the server did not close within the linger time.
    pub lingered: u64,
    pub traffic: Traffic,
    /// Handshakes by requested kind and by actual kind (full or resumed).
    pub handshakes: Handshakes,
    /// Number of TLS 1.3 tickets received after full handshakes.
    pub tickets_full: u64,
    /// Number of TLS 1.3 tickets received after resumed handshakes.
    pub tickets_resumed: u64,
    pub latency: Histograms,
}

#[derive(Clone, Debug, Default, PartialEq, AddAssign, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histograms {
    pub connect: Histogram,
    pub handshake_full: Histogram,
    pub handshake_resumed: Histogram,
    /// Time from the sending of the request to the first byte of the response.
    pub first_byte: Histogram,
    /// Time from the actual start of the transaction to the first byte of the response.
    pub answered: Histogram,
    /// Time from the server's acknowledgement of the connection's first bytes to the last byte of the response.
    /// Measured only with one transaction per connection.
    pub since_queued: Histogram,
    /// Time from the actual start of the transaction to the last byte of the response.
    pub whole: Histogram,
    /// Time from the intended start of the transaction to the last byte of the response.
    pub corrected: Histogram,
    /// Delay from the intended to the actual start of a transaction.
    pub late: Histogram,
}

impl Samples {
    pub fn fail(&mut self, failure: Failure) {
        *self.failures.entry(failure).or_default() += 1;
    }

    pub fn failed(&self) -> u64 {
        self.failures
            .values()
            .fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Adds the results of another thread.
    pub fn merge(&mut self, other: Self) {
        self.attempted += other.attempted;
        self.succeeded += other.succeeded;
        for (failure, count) in other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        self.completed += other.completed;
        self.lingered += other.lingered;
        self.traffic += other.traffic;
        self.handshakes += other.handshakes;
        self.tickets_full += other.tickets_full;
        self.tickets_resumed += other.tickets_resumed;
        self.latency += other.latency;
    }
}

/// Failures as a list of pairs, because the keys of a JSON object are strings.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::failure::Failure;

    pub(super) fn serialize<S: Serializer>(
        failures: &BTreeMap<Failure, u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(failures)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<Failure, u64>, D::Error> {
        let pairs = Vec::<(Failure, u64)>::deserialize(from)?;
        Ok(pairs.into_iter().collect())
    }
}
