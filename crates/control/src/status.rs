//! The status of a running becket: one model behind `/status`, the page for browsers, `/metrics`
//! and the commands that show it.
//!
//! `/status` returns a [`Status`] as JSON, and the commands parse this JSON into the same type.
//! Fields missing from another version's JSON get default values. A [`Status`] contains no secrets,
//! and only the digest of a policy. [`Snapshot`](super::snapshot::Snapshot) contains a [`Status`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use becket_config::choices::{Balance, ClientCertificates, ServerMode};
use becket_keys::signing::batches::BatchCounts;
use becket_keys::signing::token::TokenStatus;
use becket_log::Timestamp;
use becket_proto::labelled;
use becket_proxy::memory::MemoryStatus;
pub use becket_store::StoreStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::certificates::CertificateStatus;
use super::history::{Minute, Moment, ServerCounts};
use super::totals::Totals;
use crate::sandbox::SandboxStatus;

/// Data of all pages and commands. In JSON, the fields of flattened structs appear at the top
/// level.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Problems that require action by an operator.
    pub problems: Vec<String>,
    #[serde(flatten)]
    pub process: ProcessStatus,
    #[serde(flatten)]
    pub changes: ChangeStatus,
    #[serde(flatten)]
    pub traffic: TrafficStatus,
    #[serde(flatten)]
    pub signing: SigningStatus,
    #[serde(flatten)]
    pub sessions: SessionStatus,
    #[serde(flatten)]
    pub dropped: DroppedLines,
    pub listeners: Vec<ListenerStatus>,
    pub backends: Vec<BackendStatus>,
    /// Certificates in use, sorted by listener and name; at most the 10 000 that expire first.
    pub certificates: Arc<[CertificateStatus]>,
    /// Number of certificates in use that are not listed.
    pub certificates_omitted: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    pub version: Cow<'static, str>,
    pub host: String,
    pub state: ServingState,
    pub now: Timestamp,
    /// ID of the process that receives signals: the supervisor, if there is one.
    pub pid: u32,
    /// Number of serving processes that crashed under this supervisor.
    pub restarts: u64,
    pub started: Timestamp,
    pub uptime_seconds: u64,
    pub workers: usize,
    pub crypto_threads: usize,
    /// `None` without a memory limit.
    pub memory: Option<MemoryStatus>,
    pub sandbox: SandboxStatus,
    /// Number of system calls rejected by the seccomp filter, by name.
    pub refused_calls: BTreeMap<String, u64>,
    /// Kernel TLS support; `None` if kernel TLS is not enabled.
    pub kernel_tls: Option<String>,
}

labelled! {
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServingState {
    #[default]
    Serving = "serving",
    Draining = "draining",
}
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeStatus {
    pub log: LogStatus,
    /// Changes by an operator that the next reload, upgrade or restart discards.
    pub temporary: Vec<String>,
    pub reload: Option<ReloadOutcome>,
    pub reloads: ReloadCounts,
    pub upgrade: Option<ReloadOutcome>,
    /// Counts successful upgrades under this supervisor, and failed upgrades of this serving
    /// process.
    pub upgrades: ReloadCounts,
    pub watch: WatchStatus,
    /// Handshakes since the last successful reload, or since the start.
    pub since_reload: HandshakeCounts,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogStatus {
    pub level: String,
    /// Configured log level; `None` if this level is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_file: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReloadOutcome {
    pub time: Timestamp,
    /// Reasons why nothing was changed; empty after a success.
    pub errors: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadCounts {
    pub done: u64,
    /// Number of rejected requests; these changed nothing.
    pub refused: u64,
    /// `true` while a reload or an upgrade is requested or in progress.
    pub running: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchStatus {
    pub time: Option<Timestamp>,
    pub renewals: u64,
    pub failures: u64,
    /// Errors in changed files; the previous files stay in use.
    pub rejected: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct HandshakeCounts {
    pub completed: u64,
    /// Failed handshakes whose server name (SNI) is configured.
    pub failed_by_name: u64,
}

impl HandshakeCounts {
    pub fn of(totals: &Totals) -> Self {
        Self {
            completed: totals.handshakes_full + totals.handshakes_resumed,
            failed_by_name: totals.handshakes_failed_by_name,
        }
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            completed: self.completed.saturating_sub(before.completed),
            failed_by_name: self.failed_by_name.saturating_sub(before.failed_by_name),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficStatus {
    pub totals: Totals,
    /// Measurements of the last complete interval of ten seconds.
    pub recent: Option<Moment>,
    pub minute: Minute,
    pub admission: AdmissionCounts,
    /// Handshakes by result, for each policy that has a trial.
    pub trials: BTreeMap<String, BTreeMap<Cow<'static, str>, u64>>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AdmissionCounts {
    /// Full handshakes in progress; 0 if their number is not limited.
    pub full_handshakes_in_flight: u32,
    pub sources: usize,
    /// Number of clients that are not counted by source, because the table was full.
    pub untracked: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SigningStatus {
    /// `None` if RSA signatures are not computed in batches.
    pub rsa_batches: Option<BatchCounts>,
    pub tokens: Vec<TokenStatus>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStatus {
    #[serde(rename = "sessions")]
    pub table: Occupancy,
    /// Number of stored TLS 1.3 sessions that allow early data.
    pub early_sessions: usize,
    pub tickets: TicketKeys,
    /// `None` if sessions are not replicated.
    pub cluster: Option<ClusterReport>,
    /// `None` if sessions are not in a store.
    pub store: Option<StoreStatus>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Occupancy {
    pub entries: usize,
    /// Maximum number of sessions; 0 disables the table.
    pub capacity: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TicketKeys {
    /// Number of the epoch whose key seals new tickets. A single host counts epochs from its start;
    /// all nodes of a cluster count them from 1970.
    pub epoch: u64,
    pub epoch_started: Timestamp,
    pub next_rotation_seconds: u64,
    /// Number of this node in the cluster; `None` without a cluster.
    pub node: Option<u16>,
    /// IDs of the ticket secrets in hexadecimal. The first secret seals tickets; the others only
    /// open tickets.
    pub secrets: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterReport {
    pub node: u16,
    pub listen: String,
    pub peers: Vec<PeerReport>,
    pub names: Vec<PeerNameReport>,
    pub faults: Vec<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerReport {
    pub address: String,
    pub state: String,
    pub node: u16,
    pub heard_seconds_ago: f64,
    pub sent: u64,
    pub received: u64,
    pub lost: u64,
    pub replayed: u64,
    pub dropped: u64,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerNameReport {
    pub name: String,
    pub problem: Option<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DroppedLines {
    #[serde(rename = "log_lines_dropped")]
    pub log: u64,
    #[serde(rename = "syslog_lines_dropped")]
    pub syslog: u64,
    #[serde(rename = "access_lines_dropped")]
    pub access: u64,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerStatus {
    pub name: String,
    pub bind: Vec<SocketAddr>,
    pub routes: Vec<RouteStatus>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteStatus {
    pub names: Vec<String>,
    pub alpn: Vec<String>,
    pub backend: Option<String>,
    /// `None` for a listener that passes TLS through.
    pub policy: Option<PolicyStatus>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyStatus {
    pub name: String,
    pub digest: String,
    pub versions: Vec<String>,
    pub suites: Vec<String>,
    pub groups: Vec<String>,
    pub client_auth: ClientCertificates,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendStatus {
    pub name: String,
    /// Folder of a static file backend; `None` for other backends.
    pub files: Option<PathBuf>,
    pub balance: Balance,
    /// Number of connections in the backend's queue.
    pub waiting: usize,
    pub queue_length: usize,
    pub hand_overs: u64,
    pub idle_reclaims: u64,
    pub stick_entries: usize,
    pub servers: Vec<ServerStatus>,
    /// Configured servers that an operator removed.
    pub removed: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    pub name: String,
    pub addresses: Vec<String>,
    pub backup: bool,
    pub mode: ServerMode,
    pub weight: u32,
    pub in_use: u32,
    pub maxconn: Option<u32>,
    pub connections: u64,
    pub failures: u64,
    /// Connection attempts in the last minute. Omitted when an admin request that changes the
    /// server returns its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minute: Option<ServerCounts>,
    pub node: Option<u16>,
    #[serde(flatten)]
    pub health: ServerHealth,
    /// Configured values of keys that an operator has overridden.
    pub in_file: Option<BTreeMap<String, Value>>,
    pub added: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerHealth {
    /// `passing`, `failing`, `unresolved` or `disabled`.
    pub state: Cow<'static, str>,
    pub condition: Cow<'static, str>,
    pub condition_since: Option<Timestamp>,
    pub condition_reason: Option<String>,
    pub checks: u64,
    pub check_failures: u64,
    /// Reason why the last check failed; `None` if it passed.
    pub check_error: Option<String>,
    pub outages: u64,
    /// `true` if the last DNS lookup failed, so that older addresses are in use.
    pub dns_stale: bool,
}

impl ServerHealth {
    pub fn is_out_of_service(&self) -> bool {
        self.condition == "out-of-service"
    }

    pub fn is_usable(&self) -> bool {
        self.state == "passing" && !self.is_out_of_service()
    }

    pub fn label(&self) -> &str {
        match &*self.condition {
            "" | "unchecked" => &self.state,
            condition => condition,
        }
    }
}
