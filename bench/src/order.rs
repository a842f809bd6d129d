//! The order of a run, parsed from the command line: scenarios, peers and effort.

use std::path::PathBuf;
use std::time::Duration;

use becket_load::fleet::coordinator;
use becket_load::plan::Load;

use crate::Error;
use crate::agents::Agents;
use crate::peer::{Kind, Peer};
use crate::scenario::{Measure, Scenario, Settings};

#[derive(Clone, Debug)]
pub struct Effort {
    /// `full`, `quick` or `smoke`.
    pub name: &'static str,
    /// Minimum rounds per case.
    pub rounds: u32,
    pub time: Duration,
    /// Maximum time per case for additional rounds. If zero, a case has exactly [`Effort::rounds`].
    pub patience: Duration,
    pub idle: usize,
    /// Time between the last request of idle connections and the measurement of their memory.
    pub rest: Duration,
    pub open_files: u64,
    /// `true` to use as few values per setting as a quick run.
    pub few: bool,
    /// Settings that a case must have, each with its accepted values (`--only`).
    pub only: Vec<(String, Vec<String>)>,
    /// Agents that generate the load; `None` if this host does.
    pub agents: Option<Agents>,
}

impl Effort {
    /// Returns the default effort, whose figures are reliable.
    pub fn full() -> Self {
        Self {
            name: "full",
            rounds: 3,
            time: Duration::from_secs(2),
            patience: Duration::from_secs(300),
            idle: 10_000,
            rest: Duration::from_secs(12),
            open_files: 0,
            few: false,
            only: Vec::new(),
            agents: None,
        }
    }

    /// Returns the effort of `--quick`, whose measurements are too short for reliable figures.
    pub fn quick() -> Self {
        Self {
            name: "quick",
            rounds: 2,
            time: Duration::from_millis(350),
            patience: Duration::ZERO,
            idle: 2_000,
            few: true,
            ..Self::full()
        }
    }

    /// Returns the effort of `--smoke`, which only tests the bench; the figures are meaningless.
    pub fn smoke() -> Self {
        Self {
            name: "smoke",
            rounds: 1,
            time: Duration::from_millis(60),
            patience: Duration::ZERO,
            idle: 50,
            rest: Duration::ZERO,
            few: true,
            ..Self::full()
        }
    }

    /// Returns the cases of a scenario for this effort. A smoke run has only the first and the last case.
    pub fn cases(&self, scenario: &Scenario) -> Result<Vec<(String, Settings)>, Error> {
        let mut cases = scenario.cases(self.few)?;
        for (setting, values) in &self.only {
            cases.retain(|(_, settings)| {
                let value = settings.text.get(setting);
                value.is_some_and(|value| values.contains(value))
            });
        }
        if self.name == "smoke" && cases.len() > 2 {
            cases.drain(1..cases.len() - 1);
        }
        Ok(cases)
    }

    /// Checks that agents, if there are any, can generate the load of these scenarios, and the files for them.
    ///
    /// # Errors
    /// [`Error::Asked`] with the first scenario whose measure opens connections itself, or whose clients use the CPUs of
    /// the server. [`Error::Load`] for files that are missing or invalid.
    pub fn check_agents(&self, scenarios: &[Scenario]) -> Result<(), Error> {
        let Some(agents) = &self.agents else {
            return Ok(());
        };
        let possible = [
            Measure::Transactions,
            Measure::Capacity,
            Measure::AddedLatency,
        ];
        for scenario in scenarios {
            let cases = self.cases(scenario)?;
            let is_local = cases.iter().any(|(_, settings)| {
                // With several servers, the backend has all loopback addresses and no other.
                let has_direct = scenario.measure == Measure::AddedLatency;
                settings.shares_cores || (has_direct && settings.servers != 1)
            });
            if is_local || !possible.contains(&scenario.measure) {
                return Err(Error::Asked(format!(
                    "--agents: the clients of the scenario `{}` must run on this host (accepted: other scenarios that measure \
                     transactions, capacity or added latency, such as implementations, overload and latency)",
                    scenario.id
                )));
            }
        }
        coordinator::configure(&agents.fleet)?;
        Ok(())
    }

    /// Returns the maximum number of times that the verdicts of a case are checked.
    pub fn looks(&self) -> u32 {
        if self.patience.is_zero() { 1 } else { LOOKS }
    }

    /// Returns the closed loop for a measurement. A load with large bodies has a fixed number of transactions, because
    /// one transaction cut off at the end would distort the result.
    pub fn closed(&self, body: u64, time: Duration) -> Load {
        match body {
            0..LARGE => Load::ClosedFor(time),
            _ => {
                let count = (time.as_secs_f64() * BYTES_PER_S) as u64 / body;
                Load::ClosedCount(count.max(self.agent_count() as u64).max(1))
            }
        }
    }

    /// Returns the least number of connections and of transactions, because each agent needs one.
    pub fn agent_count(&self) -> usize {
        self.agents.as_ref().map_or(0, |it| it.fleet.agents.len())
    }

    pub fn most_idle(&self) -> usize {
        self.idle.min(self.most_clients())
    }

    /// Returns the number of connections of the `crowd` measure: that of the case, or few in a short run.
    pub fn crowd(&self, settings: &Settings) -> usize {
        let most = if self.few { self.idle } else { usize::MAX };
        settings.connections.min(most)
    }

    /// Returns the maximum number of client connections. A server needs two descriptors for each.
    pub fn most_clients(&self) -> usize {
        usize::try_from(self.open_files.saturating_sub(2_000) / 2).unwrap_or(usize::MAX)
    }
}

#[derive(Clone, Debug)]
pub struct Order {
    pub scenarios: Vec<Scenario>,
    pub peers: Vec<Peer>,
    pub effort: Effort,
    /// `true` to run even if other processes use the CPUs.
    pub busy_ok: bool,
    pub out: PathBuf,
    pub command: Vec<String>,
}

impl Order {
    /// Returns the peers to measure in a scenario. Adds a copy of becket for each column in the scenario's `beside`
    /// section, unless a peer has the name of that column.
    pub fn asked(&self, scenario: &Scenario) -> Vec<Peer> {
        let named = self.peers.iter().filter(|peer| {
            let named = || scenario.peers.iter().any(|name| name == peer.kind.name());
            scenario.peers.is_empty() || named()
        });
        let becket = self.peers.iter().find(|p| p.name == Kind::Becket.name());
        let beside = becket.into_iter().flat_map(|becket| {
            let columns = scenario.beside.keys();
            let columns = columns.filter(|name| self.peers.iter().all(|peer| peer.name != **name));
            columns.map(|name| becket.renamed(name.clone()))
        });
        named.cloned().chain(beside).collect()
    }
}

/// Minimum body size in bytes at which one connection keeps a core busy.
pub const LARGE: u64 = 64 * 1024 * 1024;
/// Number of bytes to transfer per second of a measurement with large bodies.
const BYTES_PER_S: f64 = 2.0 * 1024.0 * 1024.0 * 1024.0;

/// Maximum number of checks per case. With the default minimum, they take place after 3, 5, 8, 12 and 18 rounds.
const LOOKS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_are_measured_by_count_and_at_least_once() {
        const GIB: u64 = 1 << 30;
        let count = |effort: Effort, body| match effort.closed(body, effort.time) {
            Load::ClosedCount(count) => Some(count),
            _ => None,
        };
        assert_eq!(count(Effort::full(), GIB), Some(4));
        assert_eq!(count(Effort::full(), LARGE), Some(64));
        assert_eq!(count(Effort::full(), LARGE - 1), None);
        assert_eq!(count(Effort::smoke(), GIB), Some(1));
    }

    #[test]
    fn becket_is_compared_with_one_column_of_its_own_or_another_program() {
        let peer = |name: &str, program: &str| Peer {
            name: name.to_owned(),
            kind: Kind::Becket,
            program: PathBuf::from(program),
        };
        let asked = |peers: Vec<Peer>| {
            let order = Order {
                scenarios: crate::catalog::find(&["relay".to_owned()]).unwrap(),
                peers,
                effort: Effort::full(),
                busy_ok: false,
                out: PathBuf::new(),
                command: Vec::new(),
            };
            order.asked(&order.scenarios[0])
        };
        let (becket, copies) = (peer("becket", "/new"), peer("becket@copies", "/old"));
        let beside = peer("becket@copies", "/new");
        assert_eq!(asked(vec![becket.clone()]), [becket.clone(), beside]);
        assert_eq!(
            asked(vec![becket.clone(), copies.clone()]),
            [becket, copies.clone()]
        );
        assert_eq!(asked(vec![copies.clone()]), [copies]);
    }
}
