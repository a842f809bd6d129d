//! The connection to the ACME companion, and its pending challenges.

use std::future::pending;
use std::time::Duration;

use becket_cluster::sharing::{SharingInput, SharingOutput};
use becket_process::companion_link::{CompanionLink, FromCompanion, HeldBundles, ToCompanion};
use becket_proto::acme::Challenge;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

/// The ACME companion, as seen by the serving process.
#[derive(Debug)]
pub struct CompanionState {
    pub(super) link: Option<CompanionLink>,
    pub(super) held: HeldBundles,
    pub(super) has_on_demand: bool,
    /// Time from which names that clients asked for are passed on.
    ask_at: Instant,
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

/// A message of the companion (`None` at its exit), a request of certificate sharing, or the time
/// to pass on names that clients asked for.
#[derive(Debug)]
pub enum CompanionEvent {
    Message(Option<FromCompanion>),
    Sharing(SharingOutput),
    Ask,
}

impl Default for CompanionState {
    fn default() -> Self {
        Self {
            link: None,
            held: HeldBundles::default(),
            has_on_demand: false,
            ask_at: Instant::now(),
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
        let asks = self.link.is_some() && self.has_on_demand;
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
            () = sleep_until(self.ask_at), if asks => {
                self.ask_at = Instant::now() + ASK_INTERVAL;
                CompanionEvent::Ask
            }
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
        self.send(&ToCompanion::Ranks(vec![0; self.held.bundles.len()]));
    }

    pub(super) fn send(&mut self, message: &ToCompanion) {
        if let Some(link) = &mut self.link {
            link.send(message);
        }
    }
}

/// Interval at which names that clients asked for are passed on.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
pub(super) const OTHERS: usize = 1;
pub(super) const OWN: usize = 0;
