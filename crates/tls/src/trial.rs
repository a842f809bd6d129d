//! The trial of a policy: which of its clients another one would refuse.
//!
//! A [`Trial`] judges each hello that reaches its policy ([`Trial::judge`]) and refuses nobody. What it found goes with the client
//! through its handshake, as [`Judged`], and is counted when that is complete: a client that the policy itself does not serve has
//! nothing to lose, and only then it is known whether it has shown a certificate. What is remembered of clients is in
//! `last_day.rs`.
//!
//! [`Trials`] finds the trial of before for a configuration that is read anew, so that a report outlives a reload that leaves it alone. It
//! ends with an upgrade: the new process begins with none.

mod last_day;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use becket_config::choices::ClientCertificates;
use becket_config::policy::Policy;
use becket_config::suites::{Group, Version};
use becket_proto::client_hello::ClientHello;
use becket_proto::labelled;
use rustls::SupportedCipherSuite;

use self::last_day::{LastDay, TrialReport};
use crate::ja4::Ja4;

labelled! {
    /// What a trial says of a client.
    pub enum TrialOutcome {
        /// It would be served.
        Passed = "passed",
        /// No version in common.
        Version = "version",
        /// No suite of the version in common, or none for our certificate.
        Suite = "suite",
        /// No key exchange group in common.
        Group = "group",
        /// TLS 1.2 without extended master secret.
        Ems = "extended-master-secret",
        /// It has shown no certificate.
        ClientCertificate = "client-certificate",
    }
}

/// A trial that runs.
#[derive(Debug)]
pub struct Trial {
    policy: String,
    bar: Bar,
    totals: [AtomicU64; TrialOutcome::ALL.len()],
    last_day: LastDay,
}

/// What a client must offer.
#[derive(Debug, PartialEq)]
struct Bar {
    tls12: bool,
    tls13: bool,
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<Group>,
    ems: bool,
    certificate: bool,
}

/// A client whose hello was judged.
#[derive(Debug)]
pub struct Judged {
    trial: Arc<Trial>,
    /// [`TrialOutcome::ClientCertificate`] where nothing else is wrong and the trial wants one.
    outcome: TrialOutcome,
    /// Where the client may not pass. Its fingerprint is made once it is counted: that costs more than a copy.
    hello: Option<Box<ClientHello<'static>>>,
}

/// A client whose handshake is complete.
#[derive(Clone, Copy, Debug)]
pub struct TriedClient<'a> {
    /// The name that it asked for, if a certificate has it.
    pub name: Option<&'a str>,
    /// Where it is.
    pub address: IpAddr,
}

impl Trial {
    /// Judges a hello. `signs` says whether one of our certificates for the client fits a suite. Is linear in the hello, and keeps a
    /// copy of one that may not pass.
    pub fn judge(
        self: &Arc<Self>,
        hello: &ClientHello<'_>,
        signs: impl Fn(&SupportedCipherSuite) -> bool,
    ) -> Judged {
        let outcome = self.bar.judge(hello, signs);
        let may_fail = outcome != TrialOutcome::Passed;
        Judged {
            trial: Arc::clone(self),
            outcome,
            hello: may_fail.then(|| Box::new(hello.clone().into_owned())),
        }
    }

    /// How often there was each outcome since the trial began.
    pub fn totals(&self) -> impl Iterator<Item = (TrialOutcome, u64)> {
        let counts = self.totals.iter().map(|count| count.load(Relaxed));
        TrialOutcome::ALL.into_iter().zip(counts)
    }

    /// What the last day came to: this hour and the 23 before; of each table the first `most` rows.
    pub fn report(&self, most: usize, now: Duration) -> TrialReport {
        self.last_day.report(&self.policy, most, now)
    }
}

impl Bar {
    /// By the rules by which rustls chooses; signature schemes are those of the policy and not looked at.
    fn judge(
        &self,
        hello: &ClientHello<'_>,
        signs: impl Fn(&SupportedCipherSuite) -> bool,
    ) -> TrialOutcome {
        let is_13 = self.tls13 && hello.offers_tls13();
        let is_12 = !is_13 && self.tls12 && hello.offers_tls12();
        if !(is_12 || is_13) {
            return TrialOutcome::Version;
        }
        let is_common = |suite: &SupportedCipherSuite| {
            let number = u16::from(suite.suite());
            suite.tls13().is_some() == is_13
                && hello.cipher_suites().any(|offer| offer == number)
                && signs(suite)
        };
        if !self.suites.iter().any(is_common) {
            return TrialOutcome::Suite;
        }
        let is_common = |group: &Group| {
            let fits = is_13 || *group != Group::X25519MlKem768;
            fits && hello.groups().any(|offer| offer == *group as u16)
        };
        if !self.groups.iter().any(is_common) {
            return TrialOutcome::Group;
        }
        let mut extensions = hello.extension_types();
        if self.ems && is_12 && !extensions.any(|it| it == EXTENDED_MASTER_SECRET) {
            return TrialOutcome::Ems;
        }
        if self.certificate {
            return TrialOutcome::ClientCertificate;
        }
        TrialOutcome::Passed
    }
}

impl Judged {
    /// Counts the client, whose handshake is complete; `client` says which it is, and is asked only where it does not pass. `now`
    /// is of the monotonic clock.
    pub fn count<'a>(
        self,
        has_certificate: bool,
        client: impl FnOnce() -> TriedClient<'a>,
        now: Duration,
    ) {
        let outcome = match self.outcome {
            TrialOutcome::ClientCertificate if has_certificate => TrialOutcome::Passed,
            outcome => outcome,
        };
        self.trial.totals[outcome as usize].fetch_add(1, Relaxed);
        match outcome {
            TrialOutcome::Passed => self.trial.last_day.pass(now),
            failed => {
                let ja4 = self.hello.and_then(|hello| Ja4::of(&hello));
                self.trial.last_day.fail(failed, client(), ja4, now);
            }
        }
    }
}

/// The trials of all configurations of this process.
#[derive(Clone, Debug, Default)]
pub struct Trials(Arc<Mutex<Vec<Weak<Trial>>>>);

impl Trials {
    /// The trial of a policy, of which `tried` is what it would be and `suites` are its suites: the one that runs, if it is the same.
    pub fn of(&self, tried: &Policy, suites: Vec<SupportedCipherSuite>) -> Arc<Trial> {
        let bar = Bar {
            tls12: tried.versions.contains(&Version::Tls12),
            tls13: tried.versions.contains(&Version::Tls13),
            suites,
            groups: tried.groups.clone(),
            ems: tried.requires_ems(),
            certificate: tried.client_certificates == ClientCertificates::Required,
        };
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|trial| trial.strong_count() > 0);
        let mut alive = running.iter().filter_map(Weak::upgrade);
        let same = alive.find(|it| it.policy == *tried.name && it.bar == bar);
        same.unwrap_or_else(|| {
            let trial = Arc::new(Trial {
                policy: tried.name.to_string(),
                bar,
                totals: Default::default(),
                last_day: LastDay::default(),
            });
            running.push(Arc::downgrade(&trial));
            trial
        })
    }
}

/// RFC 7627, section 5.1.
const EXTENDED_MASTER_SECRET: u16 = 23;

#[cfg(test)]
mod tests;
