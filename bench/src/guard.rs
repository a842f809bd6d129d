//! Stops what the bench has started, whatever happens to the bench.
//!
//! A child of our own reads a pipe whose other end the bench holds: lines say which process groups
//! and which directory are the run's. When the bench ends, be it by an error, a panic or SIGKILL, the
//! kernel closes the pipe, and the child kills the groups that are left and removes the directory.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::Error;

static PIPE: OnceLock<Mutex<ChildStdin>> = OnceLock::new();

/// Starts the guard of this process, which will remove `directory`.
pub fn start(directory: &Path) -> Result<(), Error> {
    let failed = |e| Error::os("starting the guard", e);
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(["part", "guard"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // Signals of the terminal go to its foreground group; the guard must outlive them.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    if let Some(pipe) = child.stdin.take() {
        drop(PIPE.set(Mutex::new(pipe)));
    }
    tell(&format!("d{}", directory.display()));
    Ok(())
}

/// Puts a process group under guard.
pub fn watch(group: u32) {
    tell(&format!("+{group}"));
}

/// Says that a group has been stopped.
pub fn forget(group: u32) {
    tell(&format!("-{group}"));
}

fn tell(line: &str) {
    let Some(pipe) = PIPE.get() else { return };
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    // A guard that is gone cannot be told; ordinary ends do not need it.
    drop(writeln!(pipe, "{line}"));
}

/// Is the guard: reads to the end of standard input, then stops what is left.
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
        // It is gone after an ordinary end.
        drop(std::fs::remove_dir_all(directory));
    }
}

/// Sends a signal to a process group; nothing happens when it is gone.
pub fn kill(group: u32, signal: Signal) {
    let pid = i32::try_from(group).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process_group(pid, signal).unwrap_or(());
    }
}
