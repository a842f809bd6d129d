//! What a run is asked for: which scenarios and peers, and how much of them.

use std::path::PathBuf;
use std::time::Duration;

use becket_load::plan::Load;

use crate::Error;
use crate::peer::{Kind, Peer};
use crate::scenario::{Scenario, Settings};

/// How much of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// `full`, `quick` or `smoke`.
    pub name: &'static str,
    /// Rounds of a case, at least.
    pub rounds: u32,
    /// Length of a measurement.
    pub time: Duration,
    /// How long a case may go on for rounds to tell the peers apart; zero is exactly [`Effort::rounds`].
    pub patience: Duration,
    /// Connections of the idle measure, at most.
    pub idle: usize,
    /// Descriptors that a process may have.
    pub open_files: u64,
    /// Limits axes to the values of a quick run.
    pub few: bool,
    /// Settings with the values to which cases are limited.
    pub only: Vec<(String, Vec<String>)>,
}

impl Effort {
    /// For figures that are to be kept.
    pub fn full() -> Self {
        Self {
            name: "full",
            rounds: 3,
            time: Duration::from_secs(2),
            patience: Duration::from_secs(300),
            idle: 10_000,
            open_files: 0,
            few: false,
            only: Vec::new(),
        }
    }

    /// For a first look.
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

    /// To see that everything works; its figures mean nothing.
    pub fn smoke() -> Self {
        Self {
            name: "smoke",
            rounds: 1,
            time: Duration::from_millis(60),
            patience: Duration::ZERO,
            idle: 50,
            few: true,
            ..Self::full()
        }
    }

    /// Returns the requested cases of a scenario: all, those with the values of a quick run, or the first and the last.
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

    /// Returns how often a case is looked at, at most.
    pub fn looks(&self) -> u32 {
        if self.patience.is_zero() { 1 } else { LOOKS }
    }

    /// Returns a closed loop. Of large bodies there are so few that one which is cut in the middle would count for a fifth: a number of
    /// them is measured from beginning to end.
    pub fn closed(&self, body: u64, time: Duration) -> Load {
        match body {
            0..LARGE => Load::ClosedFor(time),
            _ => Load::ClosedCount(((time.as_secs_f64() * BYTES_PER_S) as u64 / body).max(1)),
        }
    }

    /// Returns how many idle connections a server can have: it needs two descriptors for each.
    pub fn most_idle(&self) -> usize {
        self.idle.min(self.most_clients())
    }

    /// Returns how many connections a server can have.
    pub fn most_clients(&self) -> usize {
        usize::try_from(self.open_files.saturating_sub(2_000) / 2).unwrap_or(usize::MAX)
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Order {
    pub scenarios: Vec<Scenario>,
    pub peers: Vec<Peer>,
    pub effort: Effort,
    /// Whether a machine on which others are at work will do.
    pub busy_ok: bool,
    /// Where the result goes.
    pub out: PathBuf,
    pub command: Vec<String>,
}

impl Order {
    /// Returns the peers that a scenario is about, and becket once more for each column beside it that is no other build.
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

/// A body from which one at a time keeps a core busy.
pub const LARGE: u64 = 64 * 1024 * 1024;
/// Of large bodies a measurement has as many as are this, by the second of its length.
const BYTES_PER_S: f64 = 2.0 * 1024.0 * 1024.0 * 1024.0;

/// Looks at a case that stay undecided, each after half as many rounds again: 3, 5, 8, 12 and 18 rounds.
const LOOKS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_large_bodies_a_whole_number_is_measured_and_never_none() {
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
    fn becket_stands_beside_itself_once_with_its_own_program_or_another() {
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
