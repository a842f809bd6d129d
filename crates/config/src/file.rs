//! The whole file: one field per table. A key is a field of its section, in kebab case, whose notation reads and checks
//! it, and whose `Default` is the documented default; a test holds `docs/config.md` against these types.

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::cluster::Cluster;
use crate::error::Problem;
use crate::listener::Listener;
use crate::policy::Policy;
use crate::process::{Admin, Admission, Limits, Log, Process, Sessions, Timeouts};

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    /// `[[listener]]`
    pub listener: Vec<Listener>,
    /// `[[policy]]`
    pub policy: Vec<Policy>,
    /// `[[backend]]`
    pub backend: Vec<Backend>,
    /// `[limits]`
    pub limits: Limits,
    /// `[timeouts]`
    pub timeouts: Timeouts,
    /// `[sessions]`
    pub sessions: Sessions,
    /// `[admission]`
    pub admission: Admission,
    /// `[cluster]`
    pub cluster: Option<Cluster>,
    /// `[log]`
    pub log: Log,
    /// `[admin]`
    pub admin: Admin,
    /// `[process]`
    pub process: Process,
}

impl File {
    /// Parses TOML.
    ///
    /// # Errors
    /// Every syntax error, or else every unknown key and every value that does not fit.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let reading = crate::read::read(text, &toml::Table::new());
        match reading.problems.is_empty() {
            true => Ok(reading.file.unwrap_or_default()),
            false => Err(reading.problems),
        }
    }
}
