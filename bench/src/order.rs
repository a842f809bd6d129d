//! What a run is asked for: which scenarios and peers, and how much of them.

use std::path::PathBuf;
use std::time::Duration;

use crate::Error;
use crate::peer::Peer;
use crate::scenario::{Scenario, Settings};

/// How much of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// `full`, `quick` or `smoke`.
    pub name: &'static str,
    /// Rounds.
    pub rounds: u32,
    /// Length of a measurement.
    pub time: Duration,
    /// Connections of the idle measure, at most.
    pub idle: usize,
    /// Descriptors that a process may have.
    pub open_files: u64,
}

impl Effort {
    /// For figures that are to be kept.
    pub fn full() -> Self {
        Self {
            name: "full",
            rounds: 3,
            time: Duration::from_millis(650),
            idle: 10_000,
            open_files: 0,
        }
    }

    /// For a first look.
    pub fn quick() -> Self {
        Self {
            name: "quick",
            rounds: 2,
            time: Duration::from_millis(350),
            idle: 2_000,
            ..Self::full()
        }
    }

    /// To see that everything works; its figures mean nothing.
    pub fn smoke() -> Self {
        Self {
            name: "smoke",
            rounds: 1,
            time: Duration::from_millis(60),
            idle: 50,
            ..Self::full()
        }
    }

    /// Returns the cases of a scenario: all, the quick values', or the first and the last.
    ///
    /// # Errors
    /// As [`Scenario::cases`].
    pub fn cases(&self, scenario: &Scenario) -> Result<Vec<(String, Settings)>, Error> {
        let mut cases = scenario.cases(self.name != "full")?;
        if self.name == "smoke" && cases.len() > 2 {
            cases.drain(1..cases.len() - 1);
        }
        Ok(cases)
    }

    /// Returns how many idle connections a server can have: it needs two descriptors for each.
    pub fn most_idle(&self) -> usize {
        let room = usize::try_from(self.open_files.saturating_sub(2_000) / 2).unwrap_or(usize::MAX);
        self.idle.min(room)
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Order {
    /// The scenarios.
    pub scenarios: Vec<Scenario>,
    /// The peers.
    pub peers: Vec<Peer>,
    /// How much.
    pub effort: Effort,
    /// Where the result goes.
    pub out: PathBuf,
    /// The command line.
    pub command: Vec<String>,
}
