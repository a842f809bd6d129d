//! `[backend.health]` as written.

use serde::{Deserialize, Serialize};

use super::Scalar;
use crate::choices::CheckKind;

/// `[backend.health]`: how the servers are looked after.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileHealth {
    /// How far a check goes.
    pub check: CheckKind,
    /// A duration.
    pub interval: Scalar,
    /// A duration.
    pub fast_interval: Scalar,
    /// A duration.
    pub timeout: Scalar,
    /// Good checks in a row that bring a server back.
    pub rise: u64,
    /// Bad checks in a row that take it out.
    pub fall: u64,
    /// What an HTTP check asks for.
    pub path: String,
    /// The host that it names; absent is the server's address.
    pub host: Option<String>,
    /// Statuses of a server that is well.
    pub expect: Vec<String>,
    /// A duration or `off`.
    pub slow_start: Scalar,
    /// Connects that fail in a row and take a server out; absent is off.
    pub passive_failures: Option<u64>,
    /// A duration.
    pub passive_pause: Scalar,
}

impl Default for FileHealth {
    fn default() -> Self {
        Self {
            check: CheckKind::default(),
            interval: "2s".into(),
            fast_interval: "1s".into(),
            timeout: "2s".into(),
            rise: 2,
            fall: 3,
            path: "/".to_owned(),
            host: None,
            expect: vec!["2xx".to_owned(), "3xx".to_owned()],
            slow_start: "off".into(),
            passive_failures: None,
            passive_pause: "10s".into(),
        }
    }
}
