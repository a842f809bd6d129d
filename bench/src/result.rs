//! What a run found, as stored in `run.json`.
//!
//! A run has scenarios, a scenario has cases, a case has one column per peer, a column has one
//! [`Sample`] per round. A sample is a set of named [`crate::figures`]: which ones depends on the measure.
//! A case that cannot be measured has no samples: `not_available` says why, or `not_measured` says which machine it needs.
//!
//! The committed schema is `schema/becket-bench.schema.json`; a test holds it to these types, and
//! [`SCHEMA_VERSION`] grows when a field changes its meaning. What runs of an earlier bench lack has a default, and
//! [`Run::lacks`] says what that is.

use std::collections::BTreeMap;

use becket_stats::report::Negotiated;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::Measure;

/// The version of the JSON form.
pub const SCHEMA_VERSION: u32 = 2;

/// One run of `becket-bench`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema: u32,
    /// Name and version of the tool.
    pub tool: String,
    /// Whether all that was asked for is in it. A file in which it is false is a part.
    pub complete: bool,
    /// `full`, `quick` or `smoke`.
    pub effort: String,
    /// Rounds per case, at least.
    pub rounds: u32,
    /// How often a case was looked at to see whether more rounds are needed, at most; verdicts are that much
    /// stricter.
    #[serde(default)]
    pub looks: u32,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// The command line, for repeating the run.
    pub command: Vec<String>,
    /// Wall time of the whole run.
    pub took_s: f64,
    /// Where it ran.
    pub conditions: Conditions,
    /// Whether others were at work on the CPUs of the run: its figures are theirs, too.
    #[serde(default)]
    pub busy: bool,
    /// The control: the plain relay under one and the same load, once in every round of the run, in order.
    /// What it moved, the machine did.
    #[serde(default)]
    pub control: Vec<Sample>,
    /// Who was measured.
    pub peers: Vec<PeerFacts>,
    /// What was found.
    pub scenarios: Vec<Outcome>,
}

/// Where and when a run took place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Commit of the sources, with `+` when they were changed since; empty outside a checkout.
    pub commit: String,
    /// Start, seconds since 1970.
    pub started_unix_s: u64,
    /// CPU model as the kernel names it.
    pub cpu: String,
    /// CPU features that cryptography uses.
    pub cpu_features: Vec<String>,
    /// CPUs that the bench may use.
    pub cpus: Vec<usize>,
    /// These CPUs by core: those of one core are hyper-threads of it.
    #[serde(default)]
    pub cores: Vec<Core>,
    /// CPUs of the server under test.
    pub server_cpus: Vec<usize>,
    /// CPUs of clients and backend.
    pub client_cpus: Vec<usize>,
    /// Kernel release.
    pub kernel: String,
    /// Memory of the machine, bytes.
    pub memory_bytes: u64,
    /// Load averages (1, 5, 15 minutes) before the run: other work on the machine shows here.
    pub load_before: String,
    /// Load averages after the run.
    pub load_after: String,
    /// CPUs' worth of time that others used before the run, as a share of the CPUs of the run.
    #[serde(default)]
    pub others_before: Option<f64>,
    /// Hard limit of open files.
    pub open_files: u64,
    /// Settings of the kernel that matter here, by name.
    pub settings: BTreeMap<String, String>,
}

/// A core of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Core {
    /// The socket's number.
    pub socket: usize,
    /// Its number within the socket.
    pub core: usize,
    /// CPUs of it that the bench may use.
    pub cpus: Vec<usize>,
}

/// A program that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Peer")]
pub struct PeerFacts {
    /// The name of its columns.
    pub name: String,
    /// Its version, as it says itself.
    pub version: String,
    /// Its TLS library, as it says itself.
    pub library: String,
    /// Its configuration in the first case that was run, with places of files cut out.
    pub configuration: String,
}

/// A scenario's outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Its id in the suite.
    pub id: String,
    /// The measure that was used.
    pub measure: Measure,
    /// Why nothing was measured at all.
    pub not_available: Option<String>,
    /// Wall time.
    pub took_s: f64,
    /// The cases, in order.
    pub cases: Vec<Case>,
}

/// One case of a scenario: every setting fixed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What distinguishes it from the other cases of the scenario.
    pub label: String,
    /// All settings by name.
    pub settings: BTreeMap<String, String>,
    /// CPUs' worth of time that others used, as a share of the CPUs of the run, in the worst round.
    #[serde(default)]
    pub others: Option<f64>,
    /// One per peer, then the floors.
    pub columns: Vec<Column>,
}

/// What one peer did in one case. Stored ones may also have a `histogram`, which nothing reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Column {
    /// Its name in [`Run::peers`], or one of the floors: `relay` (plain TCP), `round-trip` (a relay that also
    /// answers a hello, as TLS must), `library` (the handshake in memory).
    pub peer: String,
    /// Why there is no figure. Then there are no samples either.
    pub not_available: Option<String>,
    /// The machine that it needs: it was not measured on this one.
    #[serde(default)]
    pub not_measured: Option<String>,
    /// One per round.
    pub samples: Vec<Sample>,
    /// What the handshakes agreed on.
    pub negotiated: Option<Negotiated>,
    /// What must be known to read the figures: differences that cannot be configured away, findings.
    pub notes: Vec<String>,
    /// Rates of a ramp and what became of them, of the last round.
    #[serde(default)]
    pub curve: Vec<Point>,
}

/// One step of a ramp.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Transactions per second that were asked for.
    pub asked_per_s: f64,
    /// Transactions per second that began.
    pub attempted_per_s: f64,
    /// Transactions per second that succeeded.
    pub succeeded_per_s: f64,
    /// Transactions per second that failed.
    pub failed_per_s: f64,
    /// Median latency from the intended start.
    pub p50_us: f64,
    /// 99th percentile of the latency from the intended start.
    pub p99_us: f64,
}

/// One round's figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The round, from 0.
    pub round: u32,
    /// Figures by name; the names are those of [`crate::figures`], for latencies at a share of the capacity
    /// with the suffix `_at_N`.
    pub figures: BTreeMap<String, f64>,
}

impl Run {
    /// Returns the JSON schema, indented, with a final newline.
    ///
    /// # Errors
    /// None in practice: the schema is made of strings and maps.
    pub fn schema() -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(&schemars::schema_for!(Self)).map(|json| json + "\n")
    }

    /// Says what a run of an older bench lacks; nothing for one of today.
    pub fn lacks(&self) -> Option<&'static str> {
        self.control.is_empty().then_some(
            "It was made by an earlier bench: no control, no look at who else was at work, rounds of less than \
             2 s, and a limit that was measured apart from the rounds. Verdicts are without what the machine moved.",
        )
    }

    /// Returns the outcome of a scenario.
    pub fn outcome(&self, id: &str) -> Option<&Outcome> {
        self.scenarios.iter().find(|outcome| outcome.id == id)
    }
}

impl Column {
    /// Returns a column to fill.
    pub fn new(peer: impl Into<String>) -> Self {
        Self {
            peer: peer.into(),
            ..Self::default()
        }
    }

    /// Adds a remark, once.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Returns a column that says why it has no figure.
    pub fn without(peer: &str, reason: impl Into<String>) -> Self {
        Self {
            not_available: Some(reason.into()),
            ..Self::new(peer)
        }
    }

    /// Returns a column that needs another machine.
    pub fn not_measured(peer: &str, machine: impl Into<String>) -> Self {
        Self {
            not_measured: Some(machine.into()),
            ..Self::new(peer)
        }
    }

    /// Returns the words in place of a figure.
    pub fn missing(&self) -> Option<&'static str> {
        let here = self.not_measured.as_ref().map(|_| "not measured here");
        here.or(self.not_available.as_ref().map(|_| "not available"))
    }

    /// Returns a figure's value in every round that has it.
    pub fn values(&self, figure: &str) -> Vec<f64> {
        let values = self.samples.iter().filter_map(|s| s.get(figure));
        values.collect()
    }

    /// Returns a figure of a round.
    pub fn at(&self, round: u32, figure: &str) -> Option<f64> {
        let mut samples = self.samples.iter();
        samples.find(|sample| sample.round == round)?.get(figure)
    }

    /// Returns a figure of both columns, round by round, where both have it.
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

impl Sample {
    /// Returns the figures of a round, of which there are none yet.
    pub fn of(round: u32) -> Self {
        Self {
            round,
            ..Self::default()
        }
    }

    /// Returns a figure.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// Writes a figure down, with four digits after the point: the stored file stays small.
    pub fn put(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.figures.insert(name.to_owned(), rounded(value));
        }
    }
}

impl Case {
    /// Returns a peer's column.
    pub fn column(&self, peer: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.peer == peer)
    }
}

/// Four digits after the point are more than any clock here has; the stored file stays small.
pub fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// Columns of CPU times, a round each, for the tests of what reads them.
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
    fn the_committed_schema_is_the_one_of_the_types() {
        let committed = include_str!("../schema/becket-bench.schema.json");
        let current = Run::schema().unwrap();
        assert!(
            committed == current,
            "store this as bench/schema/becket-bench.schema.json:\n{current}"
        );
    }
}
