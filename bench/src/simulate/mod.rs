//! Simulates a fleet of hosts behind ECMP: resumption of returning clients ([`returns`]), and the cost of sharing
//! sessions ([`fan_out`]).
//!
//! A simulation measures nothing. It depends only on its seed, so a test simulates the stored one again. [`pages`] writes
//! its report and the figures of `docs/scale.md`, [`lines`] draws its plots.

mod fan_out;
mod lines;
mod pages;
mod returns;
mod simulation;

use std::fs;
use std::path::PathBuf;

use crate::{Error, readme, store};
use simulation::Simulation;

#[derive(Debug, clap::Args)]
pub struct SimulateArgs {
    /// Equal seeds give equal results
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory for the result, whose files are replaced
    #[arg(long, value_name = "DIR", default_value = "becket-bench/simulation")]
    out: PathBuf,
    /// Also write the figures into this page, between its markers
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

impl SimulateArgs {
    /// Simulates, and stores the result with its report and plots.
    ///
    /// # Errors
    /// [`Error::Os`] if a file cannot be written, [`Error::Stored`] if the page has no markers.
    pub fn run(&self) -> Result<(), Error> {
        fs::create_dir_all(&self.out)
            .map_err(|e| Error::os(format!("cannot create {}", self.out.display()), e))?;
        let simulation = Simulation::new(self.seed, CLIENTS);
        store::write(&self.out.join("run.json"), &simulation.json()?)?;
        for (file, title, lines) in lines::plots(&simulation) {
            let svg = lines::svg(title, &lines);
            let svg = svg.map_err(|e| Error::Asked(format!("cannot draw {file}: {e}")))?;
            store::write(&self.out.join(file), &svg)?;
        }
        store::write(&self.out.join("report.md"), &pages::report(&simulation))?;
        let mut pages = self.page.iter();
        pages.try_for_each(|page| readme::replace(page, &pages::section(&simulation)))
    }
}

/// Enough for a standard error of 1 %, and a test simulates them within seconds.
const CLIENTS: u64 = 10_000;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_stored_simulation_and_the_page_follow_from_the_seed() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        let hint = format!("run `becket-bench simulate --out {STORED} --page docs/scale.md`");
        let simulation = Simulation::new(1, CLIENTS);
        let stored = read(&format!("{STORED}/run.json"));
        assert_eq!(simulation.json().unwrap(), stored, "{hint}");
        let report = read(&format!("{STORED}/report.md"));
        assert_eq!(pages::report(&simulation), report, "{hint}");
        let page = read("docs/scale.md");
        let (_, between, _) = readme::split(&page).unwrap();
        assert_eq!(pages::section(&simulation), between.trim_start(), "{hint}");
    }

    #[test]
    fn the_plots_of_a_simulation_are_drawn() {
        let plots = lines::plots(&Simulation::new(7, 20));
        for (_, title, lines) in plots {
            assert!(lines::svg(title, &lines).unwrap().contains("hosts"));
        }
    }

    const STORED: &str = "bench/results/2026-11-28-scale";
}
