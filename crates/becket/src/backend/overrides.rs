//! What an operator changed of a running server, beside what the file says.

use serde::{Deserialize, Serialize};

use crate::config::ServerAddress;

/// What a server is there for, by an operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ServerMode {
    /// It gets clients.
    Ready,
    /// It gets only clients that stick to it, as with `weight = 0`.
    Drain,
    /// It gets nobody and is not checked, as with `disabled = true`.
    Maintenance,
}

/// What was changed; what is absent is as the file has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Overrides {
    pub(crate) mode: Option<ServerMode>,
    pub(crate) weight: Option<u32>,
    /// `Some(None)` is no limit.
    pub(crate) maxconn: Option<Option<u32>>,
    /// At least one.
    pub(crate) addresses: Option<Vec<ServerAddress>>,
    /// Whether a reload leaves them.
    pub(crate) keep: bool,
}

impl Overrides {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        *self
            == Self {
                keep: self.keep,
                ..Self::default()
            }
    }
}
