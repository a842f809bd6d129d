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
    /// The old process has reached a milestone; `None` if its stream has ended.
    Reached(Option<Milestone>),
}

/// State of the upgrade that started this process, and of the next upgrade.
#[derive(Debug)]
pub struct Handover {
    pub(super) stage: UpgradeStage,
    /// Milestones of the old process; `None` after it has released the addresses of the cluster.
    pub(super) before: Option<UnboundedReceiver<Milestone>>,
    /// Task that waits until all workers have stopped accepting.
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
    /// This process has stopped accepting, or is about to, so that the next process can serve.
    Yielding {
        next: u32,
        /// Addresses whose listening sockets the next process has.
        kept: Vec<SocketAddr>,
    },
}

impl Handover {
    /// Creates the state. `before` is `None` if there is no old process.
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

    /// Returns `true` if the next process accepts clients, or will soon.
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
            // The task always ends, because each worker stops accepting or has exited.
            Some(_) = async { Some(parking.as_mut()?.await) } => {
                *parking = None;
                UpgradeStep::Parked
            }
            else => std::future::pending().await,
        }
    }
}
