//! The connection to the ACME companion, and its pending challenges.

use std::future::pending;
use std::time::Duration;

use becket_cluster::sharing::{SharingInput, SharingOutput};
use becket_process::companion_link::{CompanionLink, FromCompanion, ToCompanion};
use becket_proto::acme::{BundleFacts, Challenge};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The ACME companion, as seen by the serving process.
#[derive(Debug)]
pub struct CompanionState {
    pub(super) link: Option<CompanionLink>,
    pub(super) held: Vec<Option<BundleFacts>>,
    /// Number of the companion's set of challenges.
    pub(super) number: u32,
    /// Time of the last log line about a challenge that cannot be answered.
    pub(super) failed: Option<Duration>,
    /// Pending challenges of the companion and of other nodes, each with a deadline. The first one for
    /// a name counts.
    pub(super) challenges: [Vec<(Challenge, Duration)>; 2],
    /// Requests of certificate sharing. The cluster has a copy of the sender.
    sharing: (
        UnboundedSender<SharingOutput>,
        UnboundedReceiver<SharingOutput>,
    ),
}

/// A message of the companion (`None` at its exit), or a request of certificate sharing.
#[derive(Debug)]
pub enum CompanionEvent {
    Message(Option<FromCompanion>),
    Sharing(SharingOutput),
}

impl Default for CompanionState {
    fn default() -> Self {
        Self {
            link: None,
            held: Vec::new(),
            number: 0,
            failed: None,
            challenges: Default::default(),
            sharing: unbounded_channel(),
        }
    }
}

impl CompanionState {
    pub fn sharing(&self) -> UnboundedSender<SharingOutput> {
        self.sharing.0.clone()
    }

    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self) -> CompanionEvent {
        let message = async {
            match &mut self.link {
                Some(link) => link.next().await,
                None => pending().await,
            }
        };
        tokio::select! {
            message = message => CompanionEvent::Message(message),
            // Never closed, because this struct has a sender.
            Some(output) = self.sharing.1.recv() => CompanionEvent::Sharing(output),
        }
    }

    /// Returns the pending challenges of the companion.
    pub(super) fn pending(&self) -> SharingInput {
        let challenges = self.challenges[OWN].iter();
        let challenges = challenges.map(|(challenge, _)| challenge.clone());
        SharingInput::Challenges(self.number, challenges.collect())
    }

    /// Lets the companion order all certificates, because there are no other nodes.
    pub(super) fn order_alone(&mut self) {
        self.send(&ToCompanion::Ranks(vec![0; self.held.len()]));
    }

    pub(super) fn send(&mut self, message: &ToCompanion) {
        if let Some(link) = &mut self.link {
            link.send(message);
        }
    }
}

pub(super) const OTHERS: usize = 1;
pub(super) const OWN: usize = 0;
