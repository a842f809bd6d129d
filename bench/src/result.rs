//! The result of a run, as stored in `run.json`.
//!
//! A run has scenarios, a scenario has cases, a case has one column per peer, and a column has one [`Sample`] per round. A sample
//! is a map of named [`crate::figures`], which depend on the measure. A column that cannot be measured has no samples:
//! `not_available` gives the reason, or `not_measured` describes the required machine.
//!
//! The committed schema is `schema/becket-bench.schema.json`, and a test compares it with these types. [`SCHEMA_VERSION`] increases when
//! a field changes its meaning. Fields that earlier runs lack have defaults, and [`Run::lacks`] describes the consequences.

use std::collections::BTreeMap;

use becket_load::report::Negotiated;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::Measure;

/// Version of the JSON format.
pub const SCHEMA_VERSION: u32 = 2;

/// One run of `becket-bench`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// [`SCHEMA_VERSION`] of the program that wrote the file.
    pub schema: u32,
    /// Name and version of the program.
    pub tool: String,
    /// The run has finished. If false, the file contains only a part.
    pub complete: bool,
    /// `full`, `quick` or `smoke`.
    pub effort: String,
    /// Minimum rounds per case.
    pub rounds: u32,
    /// Maximum number of checks per case for more rounds. More checks make the verdicts stricter.
    #[serde(default)]
    pub looks: u32,
    /// Duration of each measurement in seconds.
    pub seconds: f64,
    /// Command line that repeats the run.
    pub command: Vec<String>,
    /// Wall time of the whole run in seconds.
    pub took_s: f64,
    /// Machine and conditions.
    pub conditions: Conditions,
    /// Agents that generated the load on other hosts; empty if this host generated it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// Other processes used the CPUs of the run, which distorts its figures.
    #[serde(default)]
    pub busy: bool,
    /// Samples of the control, one per round of the run in order: a plain relay under a constant load. Its variation comes from the machine.
    #[serde(default)]
    pub control: Vec<Sample>,
    /// Measured programs.
    pub peers: Vec<PeerFacts>,
    /// Results by scenario.
    pub scenarios: Vec<Outcome>,
}

/// Time, machine and settings of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Commit of the sources, followed by `+` if they had changes; empty outside of a checkout.
    pub commit: String,
    /// Start in seconds since 1970.
    pub started_unix_s: u64,
    /// CPU model as the kernel names it.
    pub cpu: String,
    /// CPU features used by cryptography.
    pub cpu_features: Vec<String>,
    /// CPUs that the bench may use.
    pub cpus: Vec<usize>,
    /// CPUs of the bench by core. CPUs of one core are its hyper-threads.
    #[serde(default)]
    pub cores: Vec<Core>,
    /// CPUs of the server under test.
    pub server_cpus: Vec<usize>,
    /// CPUs of clients and backend; with agents, of the backend.
    pub client_cpus: Vec<usize>,
    /// Kernel release.
    pub kernel: String,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Load averages (1, 5, 15 minutes) before the run, which show other work on the machine.
    pub load_before: String,
    /// Load averages after the run.
    pub load_after: String,
    /// CPU use of other processes before the run, as a share of the run's CPUs.
    #[serde(default)]
    pub others_before: Option<f64>,
    /// Hard limit on open files.
    pub open_files: u64,
    /// Kernel settings that affect the result, by name.
    pub settings: BTreeMap<String, String>,
}

/// Core of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// Number of the socket.
    pub socket: usize,
    /// Number of the core within the socket.
    pub core: usize,
    /// CPUs of the core that the bench may use.
    pub cpus: Vec<usize>,
}

/// Measured program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Peer")]
pub struct PeerFacts {
    /// Name of its columns.
    pub name: String,
    /// Version, as reported by the program.
    pub version: String,
    /// TLS library, as reported by the program.
    pub library: String,
    /// Configuration in the first case, without file paths.
    pub configuration: String,
}

/// Result of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// ID of the scenario in the suite.
    pub id: String,
    /// Measure of the scenario.
    pub measure: Measure,
    /// Reason why nothing was measured.
    pub not_available: Option<String>,
    /// Wall time in seconds.
    pub took_s: f64,
    /// Cases in order.
    pub cases: Vec<Case>,
}

/// Case of a scenario, with a value for every setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Settings that distinguish the case from others of the scenario.
    pub label: String,
    /// All settings by name.
    pub settings: BTreeMap<String, String>,
    /// Highest CPU use of other processes in a round, as a share of the run's CPUs.
    #[serde(default)]
    pub others: Option<f64>,
    /// One column per peer, followed by the floors.
    pub columns: Vec<Column>,
}

/// Result of one peer in one case. Files of earlier versions may also have a `histogram`, which is ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Column {
    /// Name of the peer in [`Run::peers`], or of a floor: `relay` (plain TCP), `round-trip` (relay with the round trips of TLS),
    /// `answer` (plain socket server), `library` (handshakes in memory).
    pub peer: String,
    /// Reason why there are no figures. There are no samples either.
    pub not_available: Option<String>,
    /// Required machine, if the case cannot be measured on this one.
    #[serde(default)]
    pub not_measured: Option<String>,
    /// One sample per round.
    pub samples: Vec<Sample>,
    /// Negotiated parameters of the handshakes.
    pub negotiated: Option<Negotiated>,
    /// Remarks for readers of the figures: findings, and differences that cannot be configured.
    pub notes: Vec<String>,
    /// Steps of a ramp in the last round.
    #[serde(default)]
    pub curve: Vec<Point>,
    /// Memory at numbers of idle connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub growth: Vec<Growth>,
}

/// Growth of the memory at a number of idle connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// Open connections.
    pub connections: u64,
    /// Growth of the server's proportional set size in bytes.
    pub pss_bytes: u64,
    /// Growth of the kernel's memory in bytes for the server's sockets: half of that for all sockets of the connections.
    pub kernel_bytes: u64,
}

/// Step of a ramp.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Requested transactions per second.
    pub asked_per_s: f64,
    /// Started transactions per second.
    pub attempted_per_s: f64,
    /// Succeeded transactions per second.
    pub succeeded_per_s: f64,
    /// Failed transactions per second.
    pub failed_per_s: f64,
    /// Median latency from the intended start.
    pub p50_us: f64,
    /// 99th percentile of the latency from the intended start.
    pub p99_us: f64,
}

/// Figures of one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Number of the round, from 0.
    pub round: u32,
    /// Figures by name. Names are defined in [`crate::figures`]; a figure for a share of the capacity has the suffix `_at_N`.
    pub figures: BTreeMap<String, f64>,
}

impl Run {
    /// Returns the JSON schema, indented, with a final newline.
    ///
    /// # Errors
    /// Serialization of the schema does not fail in practice.
    pub fn schema() -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(&schemars::schema_for!(Self)).map(|json| json + "\n")
    }

    /// Describes the limitations of a run by an earlier version; `None` for the current one.
    pub fn lacks(&self) -> Option<&'static str> {
        self.control.is_empty().then_some(
            "This run was made by an earlier version of the bench: it had no control, did not measure other processes, used rounds of less \
             than 2 s, and measured the limit apart from the rounds. Its intervals do not include the variation of the machine.",
        )
    }

    /// Returns the result of a scenario.
    pub fn outcome(&self, id: &str) -> Option<&Outcome> {
        self.scenarios.iter().find(|outcome| outcome.id == id)
    }
}

impl Column {
    /// Returns an empty column.
    pub fn new(peer: impl Into<String>) -> Self {
        Self {
            peer: peer.into(),
            ..Self::default()
        }
    }

    /// Adds a remark unless it exists already.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Returns a column with the reason why it has no figures.
    pub fn without(peer: &str, reason: impl Into<String>) -> Self {
        Self {
            not_available: Some(reason.into()),
            ..Self::new(peer)
        }
    }

    /// Returns a column with a description of the required machine.
    pub fn not_measured(peer: &str, machine: impl Into<String>) -> Self {
        Self {
            not_measured: Some(machine.into()),
            ..Self::new(peer)
        }
    }

    /// Returns the text that replaces a missing figure.
    pub fn missing(&self) -> Option<&'static str> {
        let here = self.not_measured.as_ref().map(|_| "not measured here");
        here.or(self.not_available.as_ref().map(|_| "not available"))
    }

    /// Returns the value of a figure in every round that has it.
    pub fn values(&self, figure: &str) -> Vec<f64> {
        values(&self.samples, figure)
    }

    /// Returns the value of a figure in a round.
    pub fn at(&self, round: u32, figure: &str) -> Option<f64> {
        let mut samples = self.samples.iter();
        samples.find(|sample| sample.round == round)?.get(figure)
    }

    /// Returns the values of a figure in both columns, for each round that has both.
    pub fn pairs(&self, other: &Self, figure: &str) -> Vec<(f64, f64)> {
        let pairs = self.samples.iter().filter_map(|sample| {
            let theirs = other.at(sample.round, figure)?;
            Some((sample.get(figure)?, theirs))
        });
        pairs.collect()
    }

    /// Returns the median of a figure over the rounds.
    pub fn median(&self, figure: &str) -> Option<f64> {
        crate::spread::median(&self.values(figure))
    }
}

/// Returns the values of a figure, one per sample that has it.
pub fn values(samples: &[Sample], figure: &str) -> Vec<f64> {
    let values = samples.iter().filter_map(|sample| sample.get(figure));
    values.collect()
}

impl Sample {
    /// Returns an empty sample of a round.
    pub fn of(round: u32) -> Self {
        Self {
            round,
            ..Self::default()
        }
    }

    /// Returns the value of a figure.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// Sets a figure, rounded to four decimal places. Ignores values that are not finite.
    pub fn put(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.figures.insert(name.to_owned(), rounded(value));
        }
    }
}

impl Case {
    /// Returns the column of a peer.
    pub fn column(&self, peer: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.peer == peer)
    }
}

/// Rounds to four decimal places, which exceeds the precision of the clocks and keeps the stored file small.
pub fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Columns of CPU times with one value per round, for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::figures;

    pub(crate) fn column(peer: &str, cpu: &[f64]) -> Column {
        let samples = cpu.iter().zip(0..).map(|(cpu, round)| {
            let mut sample = Sample {
                round,
                ..Sample::default()
            };
            sample.put(figures::CPU, *cpu);
            sample
        });
        Column {
            peer: peer.to_owned(),
            samples: samples.collect(),
            ..Column::default()
        }
    }

    pub(crate) fn case(columns: Vec<Column>) -> Case {
        Case {
            columns,
            ..Case::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_schema_matches_the_types() {
        let committed = include_str!("../schema/becket-bench.schema.json");
        let current = Run::schema().unwrap();
        assert!(
            committed == current,
            "store this as bench/schema/becket-bench.schema.json:\n{current}"
        );
    }
}
