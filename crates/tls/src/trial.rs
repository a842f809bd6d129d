//! Policies on trial: counts the clients that a stricter policy would reject, without rejecting
//! them.
//!
//! [`TrialPolicy::evaluate`] evaluates each ClientHello. The result is stored as [`Evaluated`] and
//! counted after the handshake, because only then is it known that the current policy accepts the
//! client, and if the client presented a certificate.
//!
//! [`Trials`] finds the running trial of an unchanged policy after a reload, so that its counters
//! continue. In a new process, the counters start at zero.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use becket_config::choices::ClientCertificates;
use becket_config::policy::Policy;
use becket_config::suites::{KeyExchangeGroup, ServedVersion};
use becket_proto::client_hello::ClientHello;
use becket_proto::labelled;
use rustls::SupportedCipherSuite;

labelled! {
    pub enum TrialResult {
        Passed = "passed",
        /// The client and the trial policy have no TLS version in common.
        Version = "version",
        /// The client and the trial policy have no suite in common that fits the version and the
        /// server's certificate.
        Suite = "suite",
        /// The client and the trial policy have no key exchange group in common.
        Group = "group",
        /// The client uses TLS 1.2 without extended master secret.
        Ems = "extended-master-secret",
        ClientCertificate = "client-certificate",
    }
}

#[derive(Debug)]
pub struct TrialPolicy {
    requirements: Policy,
    suites: Vec<SupportedCipherSuite>,
    counts: [AtomicU64; TrialResult::ALL.len()],
}

/// Result of a trial for a ClientHello, to be counted after the handshake.
#[derive(Debug)]
pub struct Evaluated {
    trial: Arc<TrialPolicy>,
    /// Preliminary result. [`TrialResult::ClientCertificate`] becomes [`TrialResult::Passed`] if
    /// the client presents a certificate.
    result: TrialResult,
}

impl TrialPolicy {
    /// Evaluates a ClientHello by the rules of rustls. `signs` returns `true` if a certificate for
    /// the client fits a suite. Signature schemes are not checked, because they are not part of a
    /// policy.
    pub fn evaluate(
        self: &Arc<Self>,
        hello: &ClientHello<'_>,
        signs: impl Fn(&SupportedCipherSuite) -> bool,
    ) -> Evaluated {
        Evaluated {
            trial: Arc::clone(self),
            result: self.result(hello, signs),
        }
    }

    fn result(
        &self,
        hello: &ClientHello<'_>,
        signs: impl Fn(&SupportedCipherSuite) -> bool,
    ) -> TrialResult {
        let allows = |version| self.requirements.versions.contains(&version);
        let is_13 = allows(ServedVersion::Tls13) && hello.offers_tls13();
        let is_12 = !is_13 && allows(ServedVersion::Tls12) && hello.offers_tls12();
        if !(is_12 || is_13) {
            return TrialResult::Version;
        }
        let is_common = |suite: &SupportedCipherSuite| {
            let number = u16::from(suite.suite());
            suite.tls13().is_some() == is_13
                && hello.cipher_suites().any(|offer| offer == number)
                && signs(suite)
        };
        if !self.suites.iter().any(is_common) {
            return TrialResult::Suite;
        }
        let is_common = |group: &KeyExchangeGroup| {
            let fits = is_13 || *group != KeyExchangeGroup::X25519MlKem768;
            fits && hello.groups().any(|offer| offer == *group as u16)
        };
        if !self.requirements.groups.iter().any(is_common) {
            return TrialResult::Group;
        }
        let mut extensions = hello.extension_types();
        let requires_ems = is_12 && self.requirements.requires_ems();
        if requires_ems && !extensions.any(|it| it == EXTENDED_MASTER_SECRET) {
            return TrialResult::Ems;
        }
        match self.requirements.client_certificates {
            ClientCertificates::Required => TrialResult::ClientCertificate,
            _ => TrialResult::Passed,
        }
    }

    /// Returns the number of handshakes since the start of the trial, by result.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.counts.iter().map(|count| count.load(Relaxed));
        let labels = TrialResult::ALL.map(TrialResult::label);
        labels.into_iter().zip(counts).collect()
    }
}

impl Evaluated {
    /// Counts the result after the handshake. Returns the reason if the trial policy would reject
    /// the client.
    pub fn count(self, has_certificate: bool) -> Option<&'static str> {
        let result = match self.result {
            TrialResult::ClientCertificate if has_certificate => TrialResult::Passed,
            result => result,
        };
        self.trial.counts[result as usize].fetch_add(1, Relaxed);
        (result != TrialResult::Passed).then(|| result.label())
    }
}

#[derive(Clone, Debug, Default)]
pub struct Trials(Arc<Mutex<Vec<Weak<TrialPolicy>>>>);

impl Trials {
    /// Returns the running trial with the same `requirements`, or starts a new trial.
    pub fn of(&self, requirements: Policy, suites: Vec<SupportedCipherSuite>) -> Arc<TrialPolicy> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|trial| trial.strong_count() > 0);
        let mut alive = running.iter().filter_map(Weak::upgrade);
        alive
            .find(|it| it.requirements == requirements)
            .unwrap_or_else(|| {
                let trial = Arc::new(TrialPolicy {
                    requirements,
                    suites,
                    counts: Default::default(),
                });
                running.push(Arc::downgrade(&trial));
                trial
            })
    }
}

/// Extension `extended_master_secret` (RFC 7627, section 5.1).
const EXTENDED_MASTER_SECRET: u16 = 23;

#[cfg(test)]
mod tests;
