//! Result of a simulation of fleets with 3 to 1000 hosts.

use serde::Serialize;

use super::fan_out::FanOut;
use super::returns::{Change, Fleet, Hash, Returns};
use crate::Error;

/// Result of a simulation, as stored in `run.json`.
#[derive(Debug, Serialize)]
pub(super) struct Simulation {
    pub(super) seed: u64,
    pub(super) clients: u64,
    pub(super) returns: Vec<Returns>,
    pub(super) fan_out: Vec<FanOut>,
}

impl Simulation {
    pub(super) fn new(seed: u64, clients: u64) -> Self {
        let fleets = HOSTS.into_iter().flat_map(Fleet::of);
        let returns: Vec<_> = fleets.map(|fleet| fleet.returns(seed, clients)).collect();
        let fan_out = HOSTS.iter().map(|hosts| {
            let same = returns.iter().filter(|it| it.fleet.hosts == *hosts);
            let most = same.map(|it| it.lookups_per_write).fold(0.0, f64::max);
            FanOut::new(*hosts, most)
        });
        Self {
            seed,
            clients,
            fan_out: fan_out.collect(),
            returns,
        }
    }

    /// Returns the fleets with modulo hashing that lose a host.
    pub(super) fn after_a_loss(&self) -> impl Iterator<Item = &Returns> {
        let lost = (Hash::Modulo, Change::Leaves);
        let fleets = self.returns.iter();
        fleets.filter(move |it| (it.fleet.hash, it.fleet.change) == lost)
    }

    /// Serializes the result with a line for each fleet.
    pub(super) fn json(&self) -> Result<String, Error> {
        let text = serde_json::to_string(self).map_err(|e| Error::Asked(e.to_string()))?;
        Ok(text.replace("{\"fleet\"", "\n{\"fleet\"") + "\n")
    }
}

const HOSTS: [u64; 5] = [3, 10, 64, 100, 1000];
