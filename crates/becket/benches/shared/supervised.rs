//! Runs becket for a bench, and reads the CPU time of its serving process.

use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

/// Supervisor of becket with its serving process. Both exit when the bench ends.
pub(crate) struct Supervised(Child);

impl Supervised {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("becket starts"))
    }

    /// Returns the CPU times of the threads of the serving process with these names, as the
    /// scheduler counts them.
    pub(crate) fn times_of(&self, names: &[&str]) -> Vec<Duration> {
        let serving = serving(self.0.id());
        let tasks = fs::read_dir(format!("/proc/{serving}/task")).expect("its threads");
        let times = tasks.flatten().filter_map(|task| {
            let read = |file: &str| fs::read_to_string(task.path().join(file)).ok();
            names.contains(&read("comm")?.trim_end()).then_some(())?;
            let nanos = read("schedstat")?.split(' ').next()?.parse().ok()?;
            Some(Duration::from_nanos(nanos))
        });
        times.collect()
    }
}

/// Returns the ID of the supervisor's serving process.
fn serving(supervisor: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
    let children = children.expect("a supervisor");
    let first = children
        .split_whitespace()
        .next()
        .expect("a serving process");
    first.parse().expect("a number")
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // Killing fails if the process has exited already.
        let _gone = self.0.kill();
        let _waited = self.0.wait();
    }
}
