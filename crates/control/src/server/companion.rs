//! Methods of [`Control`] that serve the ACME companion: the answers of pending challenges go to the
//! workers, and certificates are shared with the other nodes of the cluster.
//!
//! Without a cluster, or with `acme.share = false`, this node has rank 0 for every certificate, and
//! a set of challenges is served as soon as the workers answer it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use becket_cluster::sharing::{SharingInput, SharingOutput};
use becket_config::acme::{Acme, AcmeCertificate};
use becket_process::companion_link::{
    AcmeChallenge, BundleText, CompanionLink, FromCompanion, HeldBundles, ToCompanion,
};
use becket_proto::acme::Challenge;

use super::Control;
use super::companion_state::{CompanionEvent, OTHERS, OWN};
use crate::cluster;

impl Control {
    pub(super) fn connect_companion(&mut self, fds: Vec<OwnedFd>) {
        self.disconnect_companion();
        let linked = fds.into_iter().next().map(CompanionLink::new).transpose();
        match linked {
            Ok(link) => {
                let acme = &self.state.config().file.acme;
                self.companion.has_on_demand =
                    acme.as_ref().is_some_and(|it| it.on_demand.is_some());
                self.companion.link = link;
            }
            Err(error) => {
                tracing::error!(name: "acme-link-failed", %error, "cannot use the socket of the ACME companion");
            }
        }
    }

    fn disconnect_companion(&mut self) {
        if self.companion.link.take().is_some() {
            self.companion.challenges[OWN].clear();
            self.answer_challenges();
            self.share(SharingInput::Disconnected);
        }
    }

    pub(super) fn handle_companion(&mut self, event: CompanionEvent) {
        match event {
            CompanionEvent::Message(None) => self.disconnect_companion(),
            CompanionEvent::Message(Some(message)) => self.companion_message(message),
            CompanionEvent::Sharing(output) => self.sharing_output(output),
            CompanionEvent::Ask => {
                let shared = self.state.shared();
                let names = shared.challenges.wanted_names.take(shared.clock.now().mono);
                if !names.is_empty() {
                    self.companion.send(&ToCompanion::Wanted(names));
                }
            }
        }
    }

    fn companion_message(&mut self, message: FromCompanion) {
        match message {
            FromCompanion::Held(held) => {
                self.companion.held = self.listed(held);
                if !self.share(self.held()) {
                    self.companion.order_alone();
                }
            }
            FromCompanion::Challenges(number, challenges) => {
                self.companion.number = number;
                let config = self.state.config();
                let certificates = config.file.acme.as_ref().map(|acme| &*acme.certificate);
                let names = (
                    certificates.unwrap_or_default(),
                    &*self.companion.held.on_demand,
                );
                let now = self.state.shared().clock.now().mono;
                self.companion.challenges[OWN] = named(challenges, names, now);
                self.answer_challenges();
                if !self.share(self.companion.pending()) {
                    self.companion.send(&ToCompanion::ChallengesServed(number));
                }
            }
            FromCompanion::Bundle(index, text) => {
                self.share(SharingInput::Bundle(index as usize, text.into_bytes()));
            }
        }
    }

    fn sharing_output(&mut self, output: SharingOutput) {
        let companion = &mut self.companion;
        match output {
            SharingOutput::Challenges(mut challenges) => {
                let config = self.state.config();
                let acme = config.file.acme.as_ref();
                if let Some(names) = acme.and_then(Acme::on_demand_names) {
                    challenges.retain(|(it, _)| names.answers_for(&it.name));
                }
                companion.challenges[OTHERS] = challenges;
                self.answer_challenges();
                self.share(SharingInput::Answered);
            }
            SharingOutput::Served(number) => {
                companion.send(&ToCompanion::ChallengesServed(number));
            }
            SharingOutput::Ranks(ranks) => companion.send(&ToCompanion::Ranks(ranks)),
            SharingOutput::Send(index) => companion.send(&ToCompanion::Send(index as u32)),
            SharingOutput::Received(index, bytes) => {
                if let Some(text) = BundleText::new(bytes) {
                    companion.send(&ToCompanion::Bundle(index as u32, text));
                }
            }
        }
    }

    /// Passes an input to the cluster. Returns `false` if certificates are not shared.
    fn share(&self, input: SharingInput) -> bool {
        let config = self.state.config();
        let shares = config.file.acme.as_ref().is_some_and(|acme| acme.share);
        shares && self.cluster.share(input)
    }

    /// Passes the state of the companion to another membership or store.
    pub(super) fn share_again(&mut self) {
        self.companion.challenges[OTHERS].clear();
        self.answer_challenges();
        if self.companion.link.is_none() {
            return;
        }
        if self.share(self.held()) {
            self.share(self.companion.pending());
        } else {
            self.companion.order_alone();
        }
    }

    /// Returns the certificates of the companion. Withdraws the names of on-demand certificates that
    /// the configuration does not allow.
    fn listed(&self, mut held: HeldBundles) -> HeldBundles {
        let config = self.state.config();
        let acme = config.file.acme.as_ref();
        let most = acme.and_then(|acme| Some(acme.on_demand.as_ref()?.most));
        held.on_demand.truncate(most.unwrap_or_default());
        if let Some(names) = acme.and_then(Acme::on_demand_names) {
            for name in &mut held.on_demand {
                name.take_if(|name| names.certificate(name).is_none());
            }
        }
        held
    }

    fn held(&self) -> SharingInput {
        let HeldBundles { on_demand, bundles } = self.companion.held.clone();
        let config = self.state.config();
        SharingInput::Held(cluster::on_demand(&config, on_demand), bundles)
    }

    /// Passes the answers of all pending challenges to the workers.
    fn answer_challenges(&mut self) {
        let shared = self.state.shared();
        let (now, mut fault) = (shared.clock.now().mono, None);
        let challenges = self.companion.challenges.iter().flatten();
        shared.challenges.replace(challenges, |challenge, error| {
            fault = Some((challenge.name.clone(), error));
        });
        let failed = &mut self.companion.failed;
        if let Some((server_name, error)) = fault
            && failed.is_none_or(|at| now >= at + LOG_INTERVAL)
        {
            *failed = Some(now);
            tracing::error!(name: "challenge-failed", server_name, error, "cannot answer the challenge of an ACME authority");
        }
    }
}

/// Resolves indices to names of the configuration and of on-demand certificates.
fn named(
    challenges: Vec<AcmeChallenge>,
    (certificates, on_demand): (&[AcmeCertificate], &[Option<String>]),
    now: Duration,
) -> Vec<(Challenge, Duration)> {
    let named = challenges.into_iter().take(MOST_CHALLENGES);
    let named = named.filter_map(|it| {
        let index = it.certificate as usize;
        let name = match certificates.get(index) {
            Some(certificate) => certificate.names.get(it.name as usize)?.to_string(),
            None => on_demand.get(index - certificates.len())?.clone()?,
        };
        let answer = it.answer;
        let life = Duration::from_secs(it.lifetime.into()).min(LONGEST_LIFE);
        Some((Challenge { name, answer }, now + life))
    });
    named.collect()
}

/// Maximum number of pending challenges of the companion.
const MOST_CHALLENGES: usize = 256;
/// Maximum time for which a challenge is answered.
const LONGEST_LIFE: Duration = Duration::from_secs(3600);
/// Minimum time between two log lines about challenges that cannot be answered.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use becket_config::file::File;
    use becket_proto::acme::ChallengeAnswer;

    use super::*;

    #[test]
    fn challenges_are_bounded_in_number_and_time_and_have_known_names() {
        let file = File::parse("[acme]\n[[acme.certificate]]\nnames = ['a.test']").unwrap();
        let certificates = &file.acme.unwrap().certificate;
        let names: (&[_], &[_]) = (certificates, &[None, Some("b.test".to_owned())]);
        let challenge = |certificate, name, lifetime| AcmeChallenge {
            certificate,
            name,
            answer: ChallengeAnswer::TlsAlpn([0; 32]),
            lifetime,
        };
        let many = (0..=256).map(|_| challenge(0, 0, u32::MAX)).collect();
        let bounded = named(many, names, Duration::ZERO);
        assert_eq!(bounded.len(), 256);
        assert_eq!(bounded[255].1, LONGEST_LIFE);
        let some = vec![
            challenge(0, 1, 1),
            challenge(1, 0, 1),
            challenge(2, 7, 1),
            challenge(3, 0, 1),
            challenge(u32::MAX, u32::MAX, 1),
        ];
        let known = named(some, names, LONGEST_LIFE);
        assert_eq!(known.len(), 1);
        assert_eq!(known[0].0.name, "b.test");
        assert_eq!(known[0].1, LONGEST_LIFE + Duration::from_secs(1));
    }
}
