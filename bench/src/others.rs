//! Who else is at work on the CPUs of the run.
//!
//! Two views, and the larger counts, since each can only see too little. The kernel's counters of the CPUs
//! (`/proc/stat`, user, nice, system and steal), minus what the bench and its children used: it sees what is
//! hidden in other containers or in the hypervisor, but the kernel may charge a part of the network's work to
//! the bench that its counters have elsewhere. And the times of all other processes that can be seen.
//!
//! A server's child may outlive the server that started it, as a worker of hitch's does for a moment. It becomes the bench's
//! ([`adopt`]): else its time would go over to whoever takes it, all of it at once.

use std::io;
use std::time::{Duration, Instant};

use becket_load::{clock, cpu};
use rustix::process::{getpid, set_child_subreaper};

use crate::kernel::Kernel;

/// Makes this process the parent of all descendants whose own has ended (prctl(2), PR_SET_CHILD_SUBREAPER). They stay as zombies,
/// some dozens in a run, so that their times do.
///
/// # Errors
/// The kernel is older than 3.4.
pub fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// A reading of all clocks at one moment.
#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    /// CPU time of everybody.
    all: Duration,
    /// CPU time of the bench and its children.
    own: Duration,
    /// CPU time of the other processes.
    rest: Duration,
}

/// Watches from one reading to the next.
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

    /// Notes what others used since the last time, if it was long enough ago for the clocks' ticks.
    pub fn note(&mut self) {
        if clock::now() - self.last.at >= SHORTEST {
            self.worst = self.share().max(self.worst);
        }
    }

    /// Ends a stretch, such as a case; returns the worst that was noted in it.
    pub fn worst(&mut self) -> f64 {
        self.note();
        std::mem::take(&mut self.worst)
    }

    /// Returns the share of the CPUs' time that others used since it was last asked.
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

/// Two CPUs count some fifty ticks in this time.
const SHORTEST: Duration = Duration::from_millis(250);
/// From this share on, a machine is not the run's own: two CPUs of which a twentieth is somebody else's.
pub const LIMIT: f64 = 0.05;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn a_process_whose_parent_has_ended_is_ours() {
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
    fn what_the_bench_uses_is_nobody_elses_and_both_views_count() {
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
        // The counters hide it, but a process shows it.
        assert!((share(reading(10, 15, 16, 4)) - 0.2).abs() < 1e-9);
    }
}
