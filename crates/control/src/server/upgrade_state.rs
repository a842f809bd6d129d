//! State of an upgrade in this process; [`super::upgrade`] advances it.

use std::net::SocketAddr;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use super::shared_limits::SharedLimits;
use crate::handover::receiver::Milestone;
use crate::handover::sender::Sender;

pub(super) enum UpgradeStep {
    /// All workers have stopped accepting.
    Parked,
    /// The old process reached a milestone of the upgrade. `None` if no milestone follows.
    Reached(Option<Milestone>),
}

#[derive(Debug)]
pub struct Handover {
    pub(super) stage: UpgradeStage,
    /// Receives milestones of the old process. `None` after the old process has released the
    /// cluster's addresses.
    pub(super) before: Option<UnboundedReceiver<Milestone>>,
    pub(super) parking: Option<JoinHandle<()>>,
    pub(super) after: Option<Sender>,
    pub(super) limits: SharedLimits,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum UpgradeStage {
    Loading {
        /// `true` after the supervisor's command to accept clients.
        is_commanded: bool,
        /// `true` while the old process may still accept clients.
        is_preceded: bool,
    },
    Serving,
    /// This process has stopped accepting or is about to stop, so that the next process can serve.
    Yielding {
        next: u32,
        /// Addresses whose listening sockets were passed to the next process.
        kept: Vec<SocketAddr>,
    },
}

impl Handover {
    pub fn new(before: Option<UnboundedReceiver<Milestone>>) -> Self {
        Self {
            stage: UpgradeStage::Loading {
                is_commanded: false,
                is_preceded: before.is_some(),
            },
            before,
            parking: None,
            after: None,
            limits: SharedLimits::default(),
        }
    }

    /// Returns `true` if this process rotates ticket keys.
    pub(super) fn keeps_secrets(&self) -> bool {
        self.stage == UpgradeStage::Serving
    }

    /// Returns `true` as soon as this process stops accepting in favor of the next process.
    pub(super) fn is_followed(&self) -> bool {
        matches!(self.stage, UpgradeStage::Yielding { .. })
    }

    /// Waits for the next step of an upgrade, forever if no upgrade is in progress.
    pub(super) async fn next(&mut self) -> UpgradeStep {
        let Self {
            before, parking, ..
        } = self;
        tokio::select! {
            Some(reached) = async { Some(before.as_mut()?.recv().await) } => UpgradeStep::Reached(reached),
            // The task always ends, because each worker either stops accepting or exits.
            Some(_) = async { Some(parking.as_mut()?.await) } => {
                *parking = None;
                UpgradeStep::Parked
            }
            else => std::future::pending().await,
        }
    }
}
