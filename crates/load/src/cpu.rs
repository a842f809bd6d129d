//! CPU time of the server's processes and of the client's own threads, from `/proc`.
//!
//! A server's CPU time includes its running descendants, so that worker threads and worker processes both count. The time of one process is
//! `utime + stime` (all threads, including finished ones) plus `cutime + cstime` (its reaped children). The kernel counts in
//! ticks of 10 ms. The time of a client thread comes from `schedstat`, in nanoseconds, with the time that it waited for a CPU.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use derive_more::{Add, Sum};

use crate::Error;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Add, Sum)]
pub struct Spent {
    pub user: Duration,
    pub system: Duration,
}

impl Spent {
    pub fn total(self) -> Duration {
        self.user + self.system
    }

    /// Returns the CPU time since an `earlier` reading; zero if the sum has decreased because a
    /// process exited.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }

    /// Returns zero if the factor, which an agent may have chosen, gives no valid time.
    pub fn scaled(self, factor: f64) -> Self {
        let scaled = |time: Duration| Duration::try_from_secs_f64(time.as_secs_f64() * factor);
        Self {
            user: scaled(self.user).unwrap_or_default(),
            system: scaled(self.system).unwrap_or_default(),
        }
    }
}

/// Returns the CPU time of these processes and their descendants.
///
/// # Errors
/// [`Error::Plan`] if one of the named processes does not exist.
pub fn of_processes(pids: &[u32]) -> Result<Spent, Error> {
    if pids.is_empty() {
        return Ok(Spent::default());
    }
    let all = processes();
    for pid in pids {
        if !all.iter().any(|process| process.pid == *pid) {
            return Err(Error::Plan(format!("--pid {pid}: no such process")));
        }
    }
    let family = family(&all, pids);
    Ok(sum(&all, |pid| family.contains(&pid)))
}

/// Returns the CPU time of this process with its descendants, and of all other processes except kernel threads.
pub fn of_own_family_and_others() -> (Spent, Spent) {
    let all = processes();
    let own = family(&all, &[std::process::id()]);
    let kernel = family(&all, &[KTHREADD]);
    let is_other = |pid| !own.contains(&pid) && !kernel.contains(&pid);
    (sum(&all, |pid| own.contains(&pid)), sum(&all, is_other))
}

fn sum(all: &[ProcessTimes], is_meant: impl Fn(u32) -> bool) -> Spent {
    let meant = all.iter().filter(|process| is_meant(process.pid));
    meant.map(|process| process.spent).sum()
}

fn family(all: &[ProcessTimes], pids: &[u32]) -> BTreeSet<u32> {
    let mut family: BTreeSet<u32> = pids.iter().copied().collect();
    loop {
        let before = family.len();
        let children = all
            .iter()
            .filter(|process| family.contains(&process.parent));
        let children: Vec<u32> = children.map(|process| process.pid).collect();
        family.extend(children);
        if family.len() == before {
            return family;
        }
    }
}

/// Returns two times of this thread: running, and waiting for a CPU.
pub fn of_own_thread() -> Option<(Duration, Duration)> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut numbers = text
        .split_ascii_whitespace()
        .map(|n| n.parse().ok().map(Duration::from_nanos));
    Some((numbers.next()??, numbers.next()??))
}

struct ProcessTimes {
    pid: u32,
    parent: u32,
    spent: Spent,
}

fn processes() -> Vec<ProcessTimes> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// Parses a line of `/proc/PID/stat` (proc(5)). The process name is in parentheses and may contain any character.
fn parse(pid: u32, line: &str) -> Option<ProcessTimes> {
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The first field after the name is field 3 of proc_pid_stat(5).
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks =
        |field: usize| number(field).map(|n| Duration::from_millis(n * 1_000 / TICKS_PER_SECOND));
    Some(ProcessTimes {
        pid,
        parent: u32::try_from(number(4)?).ok()?,
        spent: Spent {
            user: ticks(14)? + ticks(16)?,
            system: ticks(15)? + ticks(17)?,
        },
    })
}

/// Process ID of `kthreadd`, the parent of all kernel threads.
const KTHREADD: u32 = 2;
/// `USER_HZ`, which Linux reports as 100 to user space on every architecture.
const TICKS_PER_SECOND: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_is_parsed() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 2 3 4 150 50 25 25 20 0 1 0 1 1 1";
        let process = parse(7, line).unwrap();
        assert_eq!(process.parent, 3);
        assert_eq!(process.spent.user, Duration::from_millis(1_750));
        assert_eq!(process.spent.system, Duration::from_millis(750));
    }

    #[test]
    fn a_family_includes_grandchildren_and_no_other_processes() {
        let process = |pid, parent| ProcessTimes {
            pid,
            parent,
            spent: Spent::default(),
        };
        let all = [
            process(1, 0),
            process(9, 7),
            process(7, 5),
            process(5, 1),
            process(6, 1),
        ];
        assert_eq!(family(&all, &[5]), BTreeSet::from([5, 7, 9]));
    }

    #[test]
    fn this_process_is_found_and_a_missing_one_is_an_error() {
        assert!(of_processes(&[std::process::id()]).is_ok());
        assert!(
            of_processes(&[u32::MAX])
                .unwrap_err()
                .to_string()
                .contains("no such process")
        );
    }
}
