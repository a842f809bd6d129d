//! The lifetime of an operator's addition.

use serde::{Deserialize, Serialize};

/// How long an operator's addition to the running configuration lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lasts {
    /// Until the next reload, upgrade or restart.
    Reload,
    /// Until the edit is removed from the file of kept edits.
    Removal,
}

impl Lasts {
    /// Returns [`Self::Removal`] for a kept edit, whose `keep` is true.
    pub fn of(keep: bool) -> Self {
        if keep { Self::Removal } else { Self::Reload }
    }
}
