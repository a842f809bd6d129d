//! How far an upgrade is, as this process sees it; [`super::upgrade`] moves it on.

use std::net::SocketAddr;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;

use super::shared_limits::SharedLimits;
use crate::handover::receiver::Milestone;
use crate::handover::sender::Sender;

/// An event on the way to serving, or to leaving.
pub(super) enum UpgradeStep {
    /// All workers are parked.
    Parked,
    /// The old process has reached this, or its stream has ended.
    Reached(Option<Milestone>),
}

/// The processes before and after this one, as control sees them.
#[derive(Debug)]
pub struct Handover {
    pub(super) stage: UpgradeStage,
    /// Progress of the old process; absent once it has left the addresses of the cluster.
    pub(super) before: Option<UnboundedReceiver<Milestone>>,
    /// Workers that are being parked.
    pub(super) parking: Option<JoinHandle<()>>,
    /// The way to the next process.
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
    /// The next process has the secrets, or is about to have them.
    Yielding {
        /// Number of the next process.
        next: u32,
        /// Addresses whose sockets it has.
        kept: Vec<SocketAddr>,
    },
}

impl Handover {
    /// With an old process to replace, or none.
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

    /// Returns whether this process rotates ticket keys and writes states of secrets.
    pub(super) fn keeps_secrets(&self) -> bool {
        self.stage == UpgradeStage::Serving
    }

    /// Returns whether the next process serves, or is about to.
    pub(super) fn is_followed(&self) -> bool {
        matches!(self.stage, UpgradeStage::Yielding { .. })
    }

    /// Waits for the next step, forever where there is none.
    pub(super) async fn next(&mut self) -> UpgradeStep {
        let Self {
            before, parking, ..
        } = self;
        tokio::select! {
            Some(reached) = async { Some(before.as_mut()?.recv().await) } => UpgradeStep::Reached(reached),
            // Parking ends in any case: each worker answers, or has ended.
            Some(_) = async { Some(parking.as_mut()?.await) } => {
                *parking = None;
                UpgradeStep::Parked
            }
            else => std::future::pending().await,
        }
    }
}
