//! Reads the CPUs that this process may use, and pins threads to them.
//!
//! Two limits that containers set independently determine the number of workers: the affinity mask (cpusets, taskset)
//! and the CPU quota of the control group. More workers would only compete for the CPUs. A worker that exhausts the
//! quota stalls its connections until the next period.

use std::io;
use std::num::NonZeroUsize;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub use crate::cgroup::cpu_quota;

/// Lists the CPUs that the calling thread may run on, ascending.
///
/// # Errors
/// `InvalidInput` on a machine with more than 1024 CPUs.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect())
}

/// Pins the calling thread to one CPU, by its number in [`allowed_cpus`]. Threads that it starts
/// later inherit the restriction.
///
/// # Errors
/// `InvalidInput` for a CPU that does not exist or that the process may not use.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    Ok(sched_setaffinity(None, &only)?)
}

/// Returns the number of workers that this process can keep busy: the number of allowed CPUs or the CPU quota rounded
/// up, whichever is lower.
///
/// Returns 1 if neither can be read. Reads the quota once: the process keeps the number of workers of its start, so the limits
/// of a reload must refer to that number.
#[must_use]
pub fn worker_count() -> NonZeroUsize {
    let allowed = allowed_cpus().map_or(1, |cpus| cpus.len());
    static QUOTA: OnceLock<Option<f64>> = OnceLock::new();
    workers(allowed, *QUOTA.get_or_init(cpu_quota))
}

fn workers(allowed: usize, quota: Option<f64>) -> NonZeroUsize {
    // This cast saturates, so a very large quota has no effect.
    let paid_for = quota.map_or(usize::MAX, |cpus| cpus.ceil() as usize);
    NonZeroUsize::new(allowed.min(paid_for)).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_restricted_to_its_cpu() {
        let cpu = *allowed_cpus().unwrap().last().unwrap();
        let seen = std::thread::spawn(move || {
            pin_current_thread(cpu).unwrap();
            allowed_cpus().unwrap()
        });
        assert_eq!(seen.join().unwrap(), [cpu]);
    }

    #[test]
    fn the_worker_count_is_the_smaller_of_affinity_and_rounded_up_quota() {
        let count = |allowed, quota| workers(allowed, quota).get();
        assert_eq!(count(8, None), 8);
        assert_eq!(count(8, Some(2.0)), 2);
        assert_eq!(count(8, Some(2.01)), 3);
        assert_eq!(count(8, Some(0.1)), 1);
        assert_eq!(count(2, Some(64.0)), 2);
        assert_eq!(count(0, Some(0.0)), 1);
    }
}
