//! Answers of the admin pages to lists and changes, described in
//! `docs/reference/admin.openapi.json`.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionList<Row> {
    pub connections: Vec<Row>,
    /// `true` if the list contains all matching connections.
    pub complete: bool,
}

/// Connections and bytes by source, server name and server.
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

/// Sources, server names and JA4 fingerprints that admission control tracks.
#[derive(Debug, Serialize, Deserialize)]
pub struct SourceList {
    pub tracked: u64,
    /// `true` if a limit per source, name or fingerprint is configured.
    pub limits: bool,
    pub sources: Vec<SourceRow>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SourceRow {
    /// `source`, `name`, `ja4`, or `queue` (clients of one name in a backend's queue).
    pub kind: Cow<'static, str>,
    /// Network, name or fingerprint; an empty name stands for all names that are not configured.
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
    /// Open connections to the removed server, which continue.
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
    /// Temporary changes that the reload, drain or upgrade ended.
    pub ended: Vec<String>,
}
