//! State of an upgrade in this process; [`super::upgrade`] advances it.

use std::net::SocketAddr;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use super::shared_limits::SharedLimits;
use crate::handover::receiver::Milestone;
use crate::handover::sender::Sender;

/// An event during an upgrade.
pub(super) enum UpgradeStep {
    /// All workers are parked.
    Parked,
    /// The old process has reached this milestone, or its stream has ended.
    Reached(Option<Milestone>),
}

/// Progress of an upgrade from the previous process, and to the next one.
#[derive(Debug)]
pub struct Handover {
    pub(super) stage: UpgradeStage,
    /// Progress of the old process; `None` after it has left the addresses of the cluster.
    pub(super) before: Option<UnboundedReceiver<Milestone>>,
    /// Task that waits for the workers to park.
    pub(super) parking: Option<JoinHandle<()>>,
    /// Sender of state to the next process.
    pub(super) after: Option<Sender>,
    pub(super) limits: SharedLimits,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum UpgradeStage {
    Loading {
        /// The supervisor has commanded this process to serve.
        is_commanded: bool,
        /// The old process may still accept.
        is_preceded: bool,
    },
    Serving,
    /// The next process has the secrets, or will have them soon.
    Yielding {
        /// Number of the next process.
        next: u32,
        /// Addresses whose sockets the next process has.
        kept: Vec<SocketAddr>,
    },
}

impl Handover {
    /// Creates the state, with or without an old process to replace.
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

    /// Returns `true` if the next process serves, or will serve soon.
    pub(super) fn is_followed(&self) -> bool {
        matches!(self.stage, UpgradeStage::Yielding { .. })
    }

    /// Waits for the next step, forever if there is none.
    pub(super) async fn next(&mut self) -> UpgradeStep {
        let Self {
            before, parking, ..
        } = self;
        tokio::select! {
            Some(reached) = async { Some(before.as_mut()?.recv().await) } => UpgradeStep::Reached(reached),
            // Parking always ends: each worker answers, or has exited.
            Some(_) = async { Some(parking.as_mut()?.await) } => {
                *parking = None;
                UpgradeStep::Parked
            }
            else => std::future::pending().await,
        }
    }
}
