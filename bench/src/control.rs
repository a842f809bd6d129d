//! Measures the control: a plain TCP relay with its own backend, which does not depend on becket or its peers.
//!
//! The control runs in every round of every case under a constant load (closed loop, 50 connections, 1 KiB). Its
//! variation between rounds comes from the machine and limits the precision of all figures, so [`movement`] widens
//! every confidence interval.
//!
//! A measure in [`turns`] splits a round into short interleaved measurements. The control then runs in each turn, and
//! the variation between its odd and even turns is used instead.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use becket_load::plan::Load;
use becket_stats::ratio;

use crate::Error;
use crate::figures;
use crate::load::{self, Ask};
use crate::peer::Server;
use crate::result::{Run, Sample, values};
use crate::turns;

#[derive(Debug)]
pub struct Control {
    relay: Server,
    _backend: Server,
    client: Vec<usize>,
    /// One sample per completed round.
    pub samples: Vec<Sample>,
    /// One sample per turn of the current round.
    turns: Vec<Sample>,
}

impl Control {
    pub fn new(relay: Server, backend: Server, client: &[usize]) -> Self {
        Self {
            relay,
            _backend: backend,
            client: client.to_vec(),
            samples: Vec::new(),
            turns: Vec::new(),
        }
    }

    /// Measures a round without splitting it into turns.
    pub fn measure(&mut self, time: Duration, stop: &Arc<AtomicBool>) -> Result<(), Error> {
        self.turn(time, stop)?;
        self.end_round();
        Ok(())
    }

    pub fn turn(&mut self, time: Duration, stop: &Arc<AtomicBool>) -> Result<(), Error> {
        let url = format!("http://{}/bytes/{BODY}", self.relay.address);
        let step = Ask::plain(url)
            .on(&self.client)
            .with("-c", CONNECTIONS)
            .with("--expect-body", BODY)
            .with("--pid", self.relay.process.pid())
            .with("--warm-up", format!("{}ms", (time / 10).as_millis()))
            .one(Load::ClosedFor(time), stop)?;
        self.turns.push(load::sample(0, &step, BODY));
        Ok(())
    }

    /// Combines the turns measured since the last call into one sample.
    pub fn end_round(&mut self) {
        let turns = std::mem::take(&mut self.turns);
        let round = u32::try_from(self.samples.len()).unwrap_or(u32::MAX);
        let Some(mut sample) = turns::join(round, &turns) else {
            return;
        };
        let every_other = |first: usize| -> Vec<Sample> {
            turns.iter().skip(first).step_by(2).cloned().collect()
        };
        let [odd, even] = [0, 1].map(|first| turns::join(round, &every_other(first)));
        let cpu = |half: &Sample| half.get(figures::CPU);
        if let (Some(odd), Some(even)) = (odd.as_ref().and_then(cpu), even.as_ref().and_then(cpu)) {
            sample.put(figures::MOVED, odd / even);
        }
        self.samples.push(sample);
    }
}

/// Returns the relative spread of the control's CPU time between rounds, divided by the square root of `rounds`. The
/// result is the standard error of a mean over `rounds` rounds.
pub fn movement(samples: &[Sample], rounds: usize) -> f64 {
    let spread = ratio::spread(&values(samples, figures::CPU));
    spread / (rounds.max(1) as f64).sqrt()
}

/// Returns the standard error that corresponds to [`movement`], computed from the ratio of odd to even turns. The
/// divisor is the square root of 2 * `rounds`, because each half has only half of a round's turns.
pub fn movement_in_turns(samples: &[Sample], rounds: usize) -> f64 {
    let moved = values(samples, figures::MOVED);
    if moved.len() < 2 {
        return movement(samples, rounds);
    }
    ratio::spread(&moved) / (2.0 * rounds.max(1) as f64).sqrt()
}

pub fn describe(run: &Run) -> Option<String> {
    let cpu = values(&run.control, figures::CPU);
    let (low, high) = crate::spread::range(&cpu)?;
    let median = crate::spread::median(&cpu)?;
    let moved = values(&run.control, figures::MOVED);
    let in_turns = match moved.len() {
        0 | 1 => String::new(),
        _ => format!(
            ", {:.1} % from turn to turn within a round",
            ratio::spread(&moved) * 100.0
        ),
    };
    Some(format!(
        "{median:.1} us per transaction, {:.1} to {:.1} over {} rounds, spread {:.1} %{in_turns}",
        low,
        high,
        cpu.len(),
        ratio::spread(&cpu) * 100.0
    ))
}

const BODY: u64 = 1024;
const CONNECTIONS: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_rounds_reduce_the_movement() {
        let samples: Vec<Sample> = [98.0, 102.0, 98.0, 102.0]
            .iter()
            .map(|cpu| {
                let mut sample = Sample::default();
                sample.put(figures::CPU, *cpu);
                sample
            })
            .collect();
        let one = movement(&samples, 1);
        assert!((0.02..0.025).contains(&one), "{one}");
        assert!((movement(&samples, 4) - one / 2.0).abs() < 1e-12);
        assert!((movement(&[], 3) - 0.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_machine_that_is_slow_for_a_whole_round_moves_no_turn() {
        let round = |cpu: f64, moved: f64| {
            let mut sample = Sample::default();
            sample.put(figures::CPU, cpu);
            sample.put(figures::MOVED, moved);
            sample
        };
        let rounds = [(80.0, 1.01), (120.0, 0.99), (80.0, 1.01), (120.0, 0.99)];
        let rounds = rounds.map(|(cpu, moved)| round(cpu, moved));
        assert!(movement(&rounds, 4) > 0.1 && movement_in_turns(&rounds, 4) < 0.01);
        // Without turns, the spread from round to round counts.
        let whole = [round(80.0, f64::NAN), round(120.0, f64::NAN)];
        assert!((movement_in_turns(&whole, 2) - movement(&whole, 2)).abs() < f64::EPSILON);
    }
}
