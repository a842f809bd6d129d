//! Stops all processes of the bench if the bench itself is killed.
//!
//! The guard is a child process that reads a pipe from the bench. The bench writes the directory of the run and the IDs
//! of its process groups into the pipe. The kernel closes the pipe when the bench exits for any reason, including
//! SIGKILL. The guard then kills the remaining process groups and removes the directory.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Error;

static PIPE: OnceLock<Mutex<ChildStdin>> = OnceLock::new();

/// Starts the guard, which removes `directory` after the bench has exited.
pub fn start(directory: &Path) -> Result<(), Error> {
    let failed = |e| Error::os("cannot start the guard process", e);
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(["part", "guard"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // The terminal sends signals to its foreground process group. The guard must survive them, so it has a separate
        // group.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    if let Some(pipe) = child.stdin.take() {
        drop(PIPE.set(Mutex::new(pipe)));
    }
    tell(&format!("d{}", directory.display()));
    Ok(())
}

/// Registers a process group with the guard.
pub fn watch(group: u32) {
    tell(&format!("+{group}"));
}

/// Removes a stopped process group from the guard's list.
pub fn forget(group: u32) {
    tell(&format!("-{group}"));
}

fn tell(line: &str) {
    let Some(pipe) = PIPE.get() else { return };
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    // Ignore errors: without a guard, the bench still stops all processes on a normal exit.
    drop(writeln!(pipe, "{line}"));
}

/// Reads standard input to its end, then kills the remaining process groups and removes the directory.
pub fn run() {
    let mut groups = BTreeSet::new();
    let mut directory: Option<PathBuf> = None;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let (mark, rest) = line.split_at_checked(1).unwrap_or(("", ""));
        match (mark, rest.parse::<u32>()) {
            ("+", Ok(group)) => drop(groups.insert(group)),
            ("-", Ok(group)) => drop(groups.remove(&group)),
            ("d", _) => directory = Some(PathBuf::from(rest)),
            _ => {}
        }
    }
    groups
        .into_iter()
        .for_each(|group| kill(group, Signal::KILL));
    if let Some(directory) = directory {
        // Ignore errors: the bench removes the directory when it exits normally.
        drop(std::fs::remove_dir_all(directory));
    }
}

pub fn kill(group: u32, signal: Signal) {
    let pid = i32::try_from(group).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process_group(pid, signal).unwrap_or(());
    }
}
