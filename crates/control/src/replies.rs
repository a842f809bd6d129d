//! JSON responses of the admin pages to requests for lists and changes, as described in
//! `docs/reference/admin.openapi.json`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionList<Row> {
    pub connections: Vec<Row>,
    /// `true` if the list contains all matching connections.
    pub complete: bool,
}

/// Numbers of connections and bytes by source, server name and server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TopConnections {
    pub counted: usize,
    /// `true` if all connections were counted.
    pub complete: bool,
    pub sources: Vec<TopRow>,
    pub names: Vec<TopRow>,
    pub servers: Vec<TopRow>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TopRow {
    pub of: String,
    pub connections: u64,
    pub bytes: u64,
}

/// Sources, server names and JA4 fingerprints that have an entry in admission control.
#[derive(Debug, Serialize, Deserialize)]
pub struct SourceList {
    pub tracked: u64,
    /// `true` if a limit per source, name or fingerprint is configured.
    pub limits: bool,
    pub sources: Vec<SourceRow>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SourceRow {
    /// Kind of the entry: `source`, `name`, `ja4`, or `queue` (clients of one server name in a
    /// backend's queue).
    pub kind: Cow<'static, str>,
    /// Network, name or fingerprint. An empty name stands for all names that are not configured.
    pub source: Option<String>,
    pub connections: u32,
    pub full_handshakes_in_flight: u32,
    /// Number of refusals since the source last had no open connection.
    pub refused: u32,
    /// Limits that the source has reached.
    pub limited: Vec<Cow<'static, str>>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct KilledConnections {
    pub killed: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RemovedServer {
    pub removed: String,
    /// Number of open connections to the removed server. They continue.
    pub open: u32,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RotatedTickets {
    pub epoch: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ForgottenSessions {
    pub sessions: usize,
    pub early_sessions: usize,
}

#[derive(Debug, Deserialize)]
pub struct EndedChanges {
    /// Temporary changes that the reload, drain or upgrade reverted.
    pub ended: Vec<String>,
}
