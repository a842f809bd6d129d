//! Measures how much CPU time of the run's CPUs other processes use.
//!
//! Two methods are used, and the larger value counts. The first method reads the kernel's counters of the CPUs
//! (`/proc/stat`: user, nice, system and steal) and subtracts the CPU time of the bench and its children. It includes
//! other containers and the hypervisor, but the kernel may attribute network work differently in the two sources. The
//! second method sums the CPU time of all other visible processes.
//!
//! A child of a server, such as a worker of hitch, may outlive the server for a moment. The bench adopts it
//! ([`adopt`]), because its whole CPU time would otherwise count as that of another process.

use std::io;
use std::time::{Duration, Instant};

use becket_load::{clock, cpu};
use rustix::process::{getpid, set_child_subreaper};

use crate::kernel::Kernel;

/// Makes this process the parent of its orphaned descendants (prctl(2), PR_SET_CHILD_SUBREAPER). They remain as
/// zombies, a few dozen per run, so that their CPU times stay readable.
///
/// # Errors
/// Fails if the kernel is older than 3.4.
pub fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    /// CPU time of all processes on the CPUs of the run.
    all: Duration,
    /// CPU time of the bench and its children.
    own: Duration,
    /// CPU time of all other visible processes.
    rest: Duration,
}

#[derive(Debug)]
pub struct Others {
    cpus: Vec<usize>,
    last: Reading,
    worst: f64,
}

impl Others {
    pub fn watch(cpus: &[usize]) -> Self {
        Self {
            cpus: cpus.to_vec(),
            last: read(cpus),
            worst: 0.0,
        }
    }

    /// Measures the CPU use since the last reading and updates the maximum. Does nothing if the reading is too recent
    /// for a precise value.
    pub fn note(&mut self) {
        if clock::now() - self.last.at >= SHORTEST {
            self.worst = self.share().max(self.worst);
        }
    }

    /// Returns the highest CPU use of other processes since the last call.
    pub fn worst(&mut self) -> f64 {
        self.note();
        std::mem::take(&mut self.worst)
    }

    /// Returns the CPU use of other processes since the last reading, as a share of all CPUs of the run.
    pub fn share(&mut self) -> f64 {
        let now = read(&self.cpus);
        let share = between(&self.last, &now, self.cpus.len());
        self.last = now;
        share
    }
}

fn read(cpus: &[usize]) -> Reading {
    let (own, rest) = cpu::of_own_family_and_others();
    Reading {
        at: clock::now(),
        all: Kernel::read().worked(cpus),
        own: own.total(),
        rest: rest.total(),
    }
}

fn between(before: &Reading, after: &Reading, cpus: usize) -> f64 {
    let wall = (after.at - before.at).as_secs_f64() * cpus.max(1) as f64;
    let hidden = after
        .all
        .saturating_sub(before.all)
        .saturating_sub(after.own.saturating_sub(before.own));
    let seen = after.rest.saturating_sub(before.rest);
    (hidden.max(seen).as_secs_f64() / wall.max(f64::MIN_POSITIVE)).min(1.0)
}

/// Minimum time between two readings. Shorter intervals have too few clock ticks for a precise value.
const SHORTEST: Duration = Duration::from_millis(250);
/// Maximum CPU use of other processes, as a share of all CPUs. A run above it counts as disturbed.
pub const LIMIT: f64 = 0.05;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn an_orphaned_process_is_adopted() {
        adopt().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 1000 >&- 2>&- & echo $!"]);
        let said = shell.output().unwrap().stdout;
        let orphan = String::from_utf8(said).unwrap();
        let orphan: u32 = orphan.trim().parse().unwrap();
        let status = fs::read_to_string(format!("/proc/{orphan}/status")).unwrap();
        let parent = format!("PPid:\t{}\n", std::process::id());
        kill_process(Pid::from_raw(orphan as i32).unwrap(), Signal::KILL).unwrap();
        assert!(status.contains(&parent), "{status}");
    }

    #[test]
    fn the_cpu_use_of_the_bench_is_excluded_and_the_larger_estimate_is_used() {
        let at = clock::now();
        let reading = |seconds: u64, all: u64, own: u64, rest: u64| Reading {
            at: at + Duration::from_secs(seconds),
            all: Duration::from_secs(all),
            own: Duration::from_secs(own),
            rest: Duration::from_secs(rest),
        };
        let begin = reading(0, 0, 0, 0);
        let share = |after: Reading| between(&begin, &after, 2);
        assert!((share(reading(10, 15, 15, 0)) - 0.0).abs() < 1e-9);
        assert!((share(reading(10, 20, 15, 1)) - 0.25).abs() < 1e-9);
        // The kernel's counters show nothing, but a process does.
        assert!((share(reading(10, 15, 16, 4)) - 0.2).abs() < 1e-9);
    }
}
