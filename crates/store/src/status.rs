//! Counters and state of the store, for the admin pages.

use serde::{Deserialize, Serialize};

/// A snapshot. Every lookup and every new session has one outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreStatus {
    /// Address as configured, without a password.
    pub address: String,
    /// `true` while the store is used; `false` while becket tries to connect.
    pub available: bool,
    /// Reason of the last failure; `None` while the store works.
    pub error: Option<String>,
    #[serde(flatten)]
    pub counts: StoreCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreCounts {
    /// Sessions written.
    pub written: u64,
    /// Sessions dropped because the store was not available or failed.
    pub dropped: u64,
    /// Sessions dropped because a worker's queue was full.
    pub overflowed: u64,
    /// Sessions that the store refused, for example because its memory is full.
    pub refused: u64,
    /// Sessions found and added to the table.
    pub found: u64,
    pub missing: u64,
    /// Values that are not genuine or have expired.
    pub rejected: u64,
    /// Lookups that failed or took too long.
    pub failed: u64,
    /// Lookups that were not made because the store was not available or too many were unanswered.
    pub skipped: u64,
    /// Times that the store became unavailable.
    pub outages: u64,
}
