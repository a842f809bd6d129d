//! How far a run is, and how long it may still take.

use std::io::{self, Write};
use std::time::Instant;

use becket_load::clock;

use crate::Error;
use crate::order::Order;
use crate::scenario::{Measure, Scenario};

/// Tells how far the run is. Remaining time is what is planned, corrected by how long it took so far.
#[derive(Debug)]
pub struct Progress {
    begin: Instant,
    planned: f64,
    done: f64,
    cases: usize,
    case: usize,
}

impl Progress {
    /// Begins, with nothing done.
    pub fn new(order: &Order) -> Result<Self, Error> {
        let mut progress = Self {
            begin: clock::now(),
            planned: 0.0,
            done: 0.0,
            cases: 0,
            case: 0,
        };
        for scenario in order.scenarios.iter().filter(|s| s.not_available.is_none()) {
            let cases = order.effort.cases(scenario)?.len();
            progress.cases += cases;
            progress.planned += cases as f64 * planned(scenario, order);
        }
        Ok(progress)
    }

    /// Says which case is next.
    pub fn begin(&mut self, scenario: &Scenario, label: &str) {
        self.case += 1;
        let gone = (clock::now() - self.begin).as_secs_f64();
        // At first there is nothing to correct by.
        let pace = if self.done > 0.0 {
            gone / self.done
        } else {
            1.2
        };
        let left = (self.planned - self.done) * pace;
        let label = if label.is_empty() {
            String::new()
        } else {
            format!(" · {label}")
        };
        let (case, cases, id) = (self.case, self.cases, &scenario.id);
        // Whoever reads this may have gone; the run goes on.
        drop(writeln!(
            io::stderr(),
            "[{case:>3}/{cases}] {id}{label} · about {} left",
            show(left)
        ));
    }

    /// Notes that a case is done.
    pub fn end(&mut self, scenario: &Scenario, order: &Order) {
        self.done += planned(scenario, order);
    }
}

/// Seconds that a case should take, with the least of rounds and a control in each.
fn planned(scenario: &Scenario, order: &Order) -> f64 {
    let effort = &order.effort;
    let (time, rounds) = (effort.time.as_secs_f64(), f64::from(effort.rounds));
    let peers = order.peers.len() as f64;
    let each = match scenario.measure {
        Measure::Transactions => rounds * (time * 1.2 + 0.1) * (peers + 3.0) / peers,
        Measure::Capacity => rounds * (time * 31.0 + 8.0),
        Measure::AddedLatency => rounds * (time * 10.0 + 2.0) + time * 13.0,
        Measure::Storm => rounds * (time * 6.0 + 3.0) + time * 13.0,
        Measure::Idle => 0.5 + effort.idle as f64 / 1500.0,
        Measure::Queued => 1.0 + time * 45.0 + effort.idle as f64 / 1000.0,
        Measure::Burst => rounds * 1.5,
        Measure::Generators => rounds * (time + 1.2) / peers,
        Measure::Failover => rounds * (2.0 + effort.idle as f64 / 500.0) / peers,
    };
    1.0 + rounds * time * 1.2 + peers * (each + 0.1)
}

fn show(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match seconds / 60 {
        0 => format!("{seconds} s"),
        minutes => format!("{minutes} min {:02} s", seconds % 60),
    }
}
