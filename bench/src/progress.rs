//! How far a run is, and how long it may still take.

use std::io::{self, Write};
use std::time::Instant;

use becket_load::clock;

use crate::Error;
use crate::order::Order;
use crate::plan::{self, Planned};

/// Tells how far the run is. Remaining time is what is planned, corrected by how long it took so far.
#[derive(Debug)]
pub struct Progress {
    begin: Instant,
    plan: Vec<Planned>,
    /// Cases that have begun.
    begun: usize,
}

impl Progress {
    /// Begins, with nothing done.
    pub fn new(order: &Order) -> Result<Self, Error> {
        Ok(Self {
            begin: clock::now(),
            plan: plan::of(order)?,
            begun: 0,
        })
    }

    /// Says which case is next.
    pub fn begin(&mut self) {
        let seconds = |cases: &[Planned]| cases.iter().map(|case| case.least).sum::<f64>();
        let (done, left) = self.plan.split_at(self.begun.min(self.plan.len()));
        let gone = (clock::now() - self.begin).as_secs_f64();
        // At first there is nothing to correct by.
        let pace = if done.is_empty() {
            1.0
        } else {
            gone / seconds(done)
        };
        let Some(case) = left.first() else { return };
        let label = if case.label.is_empty() {
            String::new()
        } else {
            format!(" · {}", case.label)
        };
        // Whoever reads this may have gone; the run goes on.
        drop(writeln!(
            io::stderr(),
            "[{:>3}/{}] {}{label} · about {} left",
            self.begun + 1,
            self.plan.len(),
            case.scenario,
            plan::duration(seconds(left) * pace)
        ));
        self.begun += 1;
    }
}
