//! The report of one `becket-load` run, as stored in JSON.
//!
//! A run has one or more [`LoadStep`]s (a ramp has many). A step contains the number of attempted transactions, their
//! outcomes, the latency of each phase, the kinds of handshakes that really happened, and the CPU time of client and
//! server.
//!
//! The committed schema is `schema/becket-load.schema.json`; a test compares it with these types. The parser rejects
//! unknown fields. [`SCHEMA_VERSION`] increases if a field changes its meaning. Units are in the names: `_us`
//! microseconds, `_s` seconds, `_per_s` per second of wall time.

use std::collections::BTreeMap;

use becket_stats::units::show_count;
use derive_more::AddAssign;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of the JSON form. It increases whenever a field changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 2;

/// One run of `becket-load`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadReport {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema: u32,
    /// Name and version of the tool.
    pub tool: String,
    /// The target as given.
    pub target: String,
    /// Plan of the run.
    pub plan: PlanRecord,
    /// Machine and time of the run.
    pub conditions: Conditions,
    /// Parameters negotiated by TLS; absent for plain targets and if no handshake succeeded.
    pub negotiated: Option<Negotiated>,
    /// The measured steps, in order.
    pub steps: Vec<LoadStep>,
    /// The result in one sentence.
    pub verdict: String,
    /// `true` if a signal ended the run early.
    pub interrupted: bool,
    /// Machines that generated the load, if agents did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentRecord>,
}

/// A machine of a run with agents: its part of the load, and whether it was a bottleneck.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Agent")]
pub struct AgentRecord {
    /// The agent as given.
    pub agent: String,
    /// The agent began at most this much before or after the agreed time.
    pub start_within_us: f64,
    /// The agent's machine, and its own clock at the start.
    pub conditions: Conditions,
    /// Its part of each step.
    pub steps: Vec<LoadStep>,
}

/// Plan of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Plan")]
pub struct PlanRecord {
    /// `closed` (a fixed number of connections, each slot starts again when its last one ended) or `open`
    /// (starts follow a schedule, regardless of the server).
    pub load_loop: String,
    /// Closed loop: parallel connections. Open loop: maximum number of parallel connections.
    pub connections: usize,
    /// Client threads.
    pub threads: usize,
    /// Seconds of warm-up before the first step, whose results are discarded.
    pub warm_up_s: f64,
    /// `never`, `always` or `every=N`.
    pub resume: String,
    /// `any`, `id`, `ticket` or `psk`.
    pub resume_kind: String,
    /// Requests per connection.
    pub keepalive: u64,
    /// Timeout of a transaction in seconds.
    pub time_out_s: f64,
    /// The command line, for repeating the run.
    pub command: Vec<String>,
}

/// Machine and time of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// CPU model as the kernel names it.
    pub cpu: String,
    /// CPUs that this process may run on.
    pub cpus: usize,
    /// CPUs that client threads were pinned to, in order of thread; empty when not pinned.
    pub pinned_to: Vec<usize>,
    /// Kernel release.
    pub kernel: String,
    /// Start of the run, seconds since 1970.
    pub started_unix_s: u64,
}

/// Parameters of the last handshake of each thread; they do not differ in practice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Negotiated {
    /// `TLSv1.2` or `TLSv1.3`.
    pub version: String,
    /// Cipher suite.
    pub suite: String,
    /// Key exchange group of the last full handshake.
    pub group: Option<String>,
    /// Signature scheme of the last full handshake.
    pub signature: Option<String>,
    /// ALPN protocol, if one was chosen.
    pub alpn: Option<String>,
    /// TLS 1.3 tickets received per full handshake.
    pub tickets_per_full: Option<f64>,
    /// TLS 1.3 tickets received per resumed handshake.
    pub tickets_per_resumed: Option<f64>,
}

/// A measured interval under constant conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadStep {
    /// Planned transactions per second; absent in a closed loop.
    pub rate_asked_per_s: Option<f64>,
    /// Wall time of the step.
    pub seconds: f64,
    /// Transactions whose intended start lies in the step.
    pub attempted: u64,
    /// Transactions that received the complete and correct response.
    pub succeeded: u64,
    /// Failed transactions; `failures` has the kinds.
    pub failed: u64,
    /// Transactions in progress at the end of the run that had not timed out.
    /// `attempted = succeeded + failed + unfinished`.
    pub unfinished: u64,
    /// Transactions completed within the step per second, regardless of their start.
    pub rate_succeeded_per_s: f64,
    /// Transactions completed within the step, regardless of their start.
    pub completed: u64,
    /// Connections and bytes.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Handshakes by plan and by outcome.
    pub handshakes: Handshakes,
    /// Failures by kind.
    pub failures: BTreeMap<String, u64>,
    /// Latencies by phase.
    pub latency: Latencies,
    /// CPU time of the client.
    pub generator: Generator,
    /// CPU time of the server, if its process was given.
    pub server: Option<ServerCpu>,
    /// Known stalls detected in the latencies, one sentence each.
    pub findings: Vec<String>,
}

/// Connections and bytes of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, AddAssign)]
pub struct Traffic {
    /// TCP connections started.
    pub connections: u64,
    /// Connections that the server closed between two requests.
    pub closed_while_idle: u64,
    /// Bytes of TLS or TCP payload received.
    pub bytes_in: u64,
    /// Bytes of TLS or TCP payload sent.
    pub bytes_out: u64,
}

/// Handshakes by plan and by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, AddAssign)]
#[serde(deny_unknown_fields)]
pub struct Handshakes {
    /// The plan asked for a full handshake.
    pub asked_full: u64,
    /// The plan asked for resumption.
    pub asked_resumed: u64,
    /// The plan asked for resumption, but the server had issued no session or ticket.
    pub nothing_to_offer: u64,
    /// Resumption was offered, but the server made a full handshake.
    pub declined: u64,
    /// Full handshakes.
    pub full: u64,
    /// Full handshakes with a HelloRetryRequest (also counted in `full`).
    pub full_with_retry: u64,
    /// Resumed by TLS 1.2 session ID.
    pub resumed_by_id: u64,
    /// Resumed by TLS 1.2 ticket.
    pub resumed_by_ticket: u64,
    /// Resumed by TLS 1.3 pre-shared key.
    pub resumed_by_psk: u64,
    /// Early data that the server accepted.
    pub early_data_accepted: u64,
    /// Early data that the server rejected; it was sent again.
    pub early_data_rejected: u64,
}

impl Handshakes {
    /// Returns the number of resumed handshakes of all kinds.
    pub fn resumed(&self) -> u64 {
        self.resumed_by_id + self.resumed_by_ticket + self.resumed_by_psk
    }
}

/// Latencies by phase. Each phase counts from the start of that phase, except `whole_corrected`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latencies {
    /// From the call of `connect` until the connection was established.
    pub connect: Summary,
    /// From the ClientHello until traffic keys, full handshakes.
    pub handshake_full: Summary,
    /// From the ClientHello until traffic keys, resumed handshakes.
    pub handshake_resumed: Summary,
    /// From the request until the first byte of the response.
    pub first_byte: Summary,
    /// From the real start until the first byte of the response.
    #[serde(default)]
    pub answered: Summary,
    /// From the acknowledgement of the first bytes by the server's kernel, which then has the connection in its
    /// accept queue, until the last byte of the response; only if requested.
    pub since_queued: Option<Summary>,
    /// From the real start until the last byte of the response: the uncorrected latency, which
    /// omits the delay of transactions that a stalled server kept from starting.
    pub whole: Summary,
    /// From the *intended* start until the last byte of the response; open loop only.
    pub whole_corrected: Option<Summary>,
}

impl LoadStep {
    /// Lists the failures by kind.
    pub fn failure_kinds(&self) -> String {
        let kinds = self.failures.iter();
        let kinds = kinds.map(|(kind, n)| format!("{kind}: {}", show_count(*n)));
        kinds.collect::<Vec<_>>().join(", ")
    }

    /// Returns the number of transactions that were to begin per second.
    pub fn rate_attempted_per_s(&self) -> f64 {
        self.attempted as f64 / self.seconds.max(1e-9)
    }
}

impl Latencies {
    /// Returns the latencies from the intended start if it is known, otherwise from the real start.
    pub fn from_intended(&self) -> &Summary {
        self.whole_corrected.as_ref().unwrap_or(&self.whole)
    }
}

/// Percentiles and shape of one phase, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Values recorded.
    pub count: u64,
    /// Minimum.
    pub min_us: f64,
    /// Arithmetic mean. It hides the tail; meant for comparison with older figures.
    #[serde(default)]
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Maximum.
    pub max_us: f64,
    /// Distribution: counts of values above the end of the previous bucket and up to this one's.
    pub buckets: Vec<HistogramBucket>,
}

/// A bucket of a histogram.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HistogramBucket {
    /// Upper end, inclusive.
    pub up_to_us: f64,
    /// Values in the bucket.
    pub count: u64,
}

/// CPU time of the client, and whether the client was the bottleneck.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Generator {
    /// CPU seconds of all client threads.
    pub cpu_s: f64,
    /// CPU microseconds per completed transaction.
    pub cpu_us_per_transaction: Option<f64>,
    /// Portion of the wall time in which the busiest thread ran or waited for a CPU, 0 to 1.
    pub busiest_thread: f64,
    /// 99 in 100 transactions began at most this late, because the client was busy; open loop only.
    pub late_start_p99_us: Option<f64>,
    /// `true` if the client was the bottleneck: the rates are then lower bounds.
    pub bound: bool,
}

/// CPU time of the given server processes, with their threads and children.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerCpu {
    /// The given processes.
    pub pids: Vec<u32>,
    /// User and system CPU seconds.
    pub cpu_s: f64,
    /// User CPU seconds, included in `cpu_s`.
    pub user_s: f64,
    /// CPUs' worth of time: `cpu_s / seconds`.
    pub cpus_used: f64,
    /// CPU microseconds per completed transaction.
    pub cpu_us_per_transaction: Option<f64>,
}

impl LoadReport {
    /// Returns the report as indented JSON with a final newline.
    ///
    /// # Errors
    /// Fails for a number that JSON cannot represent (not finite).
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|json| json + "\n")
    }

    /// Returns the JSON schema of the report as indented JSON with a final newline.
    ///
    /// # Errors
    /// None in practice: the schema consists of strings and maps.
    pub fn schema() -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(&schemars::schema_for!(Self)).map(|json| json + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_schema_is_the_one_of_the_types() {
        let committed = include_str!("../schema/becket-load.schema.json");
        let current = LoadReport::schema().unwrap();
        assert!(
            committed == current,
            "store this as schema/becket-load.schema.json:\n{current}"
        );
    }

    #[test]
    fn a_report_survives_its_json_and_unknown_fields_are_refused() {
        let report = LoadReport {
            schema: SCHEMA_VERSION,
            steps: vec![LoadStep::default()],
            ..LoadReport::default()
        };
        let json = report.to_json().unwrap();
        assert_eq!(serde_json::from_str::<LoadReport>(&json).unwrap(), report);
        let altered = json.replacen("\"schema\"", "\"surprise\": 1, \"schema\"", 1);
        assert!(
            serde_json::from_str::<LoadReport>(&altered)
                .unwrap_err()
                .to_string()
                .contains("surprise")
        );
    }
}
