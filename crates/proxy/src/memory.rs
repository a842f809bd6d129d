//! How short memory is, as control measures it for `limits.memory`.

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
    /// Connections at rest end.
    Closing = "closing",
    /// Connections at rest end, and new clients are refused.
    Refusing = "refusing",
}
}

/// In bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    pub used: u64,
    /// 0 without a limit.
    pub watermark: u64,
    pub shortage: Shortage,
}

/// Connections at rest that are to end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdleReclaim {
    /// Those that have been at rest for at least this time.
    pub rest: Duration,
    /// Limit, as a share of all connections.
    pub share: f64,
}

/// The last measurement, for all threads. Control writes it.
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

    /// Returns whether new clients are refused. One load of what is rarely written.
    pub fn refuses(&self) -> bool {
        self.refuses.load(Relaxed)
    }

    /// Returns `None` if memory is not limited.
    pub fn status(&self) -> Option<MemoryStatus> {
        let status = *self.status.lock().unwrap_or_else(PoisonError::into_inner);
        (status.watermark > 0).then_some(status)
    }
}
