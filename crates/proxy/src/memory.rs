//! Memory pressure, as measured by the control thread for `limits.memory`.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use becket_proto::labelled;
use serde::{Deserialize, Serialize};

labelled! {
#[derive(Default, PartialOrd, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shortage {
    #[default]
    None = "none",
    /// Idle connections are closed.
    Closing = "closing",
    /// Idle connections are closed, and new clients are rejected.
    Refusing = "refusing",
}
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    pub used: u64,
    /// Memory limit in bytes; 0 if memory is not limited.
    pub watermark: u64,
    pub shortage: Shortage,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdleReclaim {
    /// Minimum idle time of a connection that may be closed.
    pub rest: Duration,
    /// Maximum fraction of each worker's connections that may be closed.
    pub share: f64,
}

/// The last measurement, shared by all threads. The control thread writes it.
#[derive(Debug, Default)]
pub struct MemoryState {
    status: Mutex<MemoryStatus>,
    refuses: AtomicBool,
}

impl MemoryState {
    pub fn set(&self, status: MemoryStatus) {
        let refuses = status.shortage == Shortage::Refusing;
        self.refuses.store(refuses, Relaxed);
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Returns `true` if new clients are rejected. Costs one atomic load.
    pub fn refuses(&self) -> bool {
        self.refuses.load(Relaxed)
    }

    /// Returns the last measurement; `None` if memory is not limited.
    pub fn status(&self) -> Option<MemoryStatus> {
        let status = *self.status.lock().unwrap_or_else(PoisonError::into_inner);
        (status.watermark > 0).then_some(status)
    }
}
