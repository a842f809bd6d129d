//! How far a run is, and how long it may still take.

use std::io::{self, Write};
use std::time::Instant;

use becket_load::clock;

use crate::Error;
use crate::order::Order;
use crate::plan::{self, Planned};

/// Tells how far the run is. The cases that are left are taken to last as long as those before them.
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
        let Some(case) = self.plan.get(self.begun) else {
            return;
        };
        let (done, all) = (self.begun, self.plan.len());
        self.begun += 1;
        let left = match done {
            0 => String::new(),
            _ => {
                let gone = (clock::now() - self.begin).as_secs_f64();
                let left = gone / done as f64 * (all - done) as f64;
                format!(" · about {:.0} min left", (left / 60.0).ceil())
            }
        };
        // Whoever reads this may have gone; the run goes on.
        drop(writeln!(
            io::stderr(),
            "[{:>3}/{all}] {} {}{left}",
            done + 1,
            case.scenario,
            case.label
        ));
    }
}
