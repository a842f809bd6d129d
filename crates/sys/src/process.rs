//! Controls other processes, and replaces this process with another program.
//!
//! A program that replaces this one can recreate a [`ChildProcess`] from its PID. Sources:
//! execve(2), waitpid(2), pthread_sigmask(3).

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};

use nix::sys::signal::{self, SigSet};
use nix::unistd::execve;
pub use rustix::process::Signal;
use rustix::process::{
    Pid, PidfdFlags, WaitOptions, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
    setsid, waitpid,
};
use rustix::thread::{CapabilitySet, configure_capability_in_ambient_set};

/// Starts a new session and process group without a controlling terminal: setsid(2).
///
/// # Errors
/// Fails if the process already leads a process group.
pub fn begin_session() -> io::Result<()> {
    setsid()?;
    Ok(())
}

pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Exits immediately. Runs neither destructors nor functions registered with atexit(3), because these may belong to
/// foreign code.
pub fn exit_at_once(code: u8) -> ! {
    // SAFETY: takes a number only, and does not return.
    unsafe { libc::_exit(code.into()) }
}

/// Makes the kernel kill this process when the parent's thread that started it ends: prctl(2), PR_SET_PDEATHSIG.
///
/// # Errors
/// `NotFound` if that thread has already ended, so that this process has another parent than `parent`.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if std::os::unix::process::parent_id() == parent {
        Ok(())
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Lets this process continue when its parent ends: undoes [`die_with_parent`].
///
/// # Errors
/// Returns the error of prctl(2); none is documented.
pub fn outlive_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(None)?)
}

/// A child process that has not been waited for. Its descriptor (pidfd) becomes readable when the child ends.
#[derive(Debug)]
pub struct ChildProcess {
    pid: Pid,
    handle: OwnedFd,
}

impl AsFd for ChildProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl ChildProcess {
    /// Starts a command. The child does not inherit the capability to bind low ports, unless it
    /// runs as root.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let without_low_ports = || {
            Ok(configure_capability_in_ambient_set(
                CapabilitySet::NET_BIND_SERVICE,
                false,
            )?)
        };
        // SAFETY: between fork and execve, the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(without_low_ports) };
        Self::of(command.spawn()?.id())
    }

    /// Creates the handle of a child that this process started before it replaced its program with
    /// execve(2).
    ///
    /// # Errors
    /// `InvalidInput` if `pid` is not a valid PID; otherwise the error of pidfd_open(2).
    pub fn of(pid: u32) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().filter(|number| *number > 1);
        let pid = number.and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        // The PID is not reused before this process has waited for the child.
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid, handle })
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns the exit status, if the process has ended.
    ///
    /// # Errors
    /// Fails if it is not a child of this process.
    pub fn try_wait(&self) -> io::Result<Option<ExitStatus>> {
        self.wait_as(WaitOptions::NOHANG)
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    /// Fails if it is not a child of this process.
    pub fn wait(self) -> io::Result<ExitStatus> {
        let status = self.wait_as(WaitOptions::empty())?;
        status.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Kills the process unless it has ended.
    ///
    /// # Errors
    /// Returns the error of pidfd_send_signal(2).
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    fn wait_as(&self, options: WaitOptions) -> io::Result<Option<ExitStatus>> {
        let waited = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), options))?;
        Ok(waited.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
    }
}

/// Blocks signals in the calling thread until [`receive_signals`]. They stay blocked across
/// execve(2).
pub fn hold_signals() -> io::Result<()> {
    Ok(SigSet::all().thread_set_mask()?)
}

/// Unblocks all signals, so that pending ones are delivered.
///
/// # Errors
/// Returns the error of pthread_sigmask(3).
pub fn receive_signals() -> io::Result<()> {
    Ok(SigSet::empty().thread_set_mask()?)
}

/// Calls `start` with signals blocked, so that the threads that `start` creates never receive a
/// signal.
///
/// SIGSYS is not blocked: the thread that made the refused call must receive it, and the kernel
/// kills a process that blocks it.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let before = SigSet::thread_get_mask()?;
    let mut held = SigSet::all();
    held.remove(signal::Signal::SIGSYS);
    held.thread_set_mask()?;
    let started = start();
    before.thread_set_mask()?;
    Ok(started)
}

/// Replaces this process with another program. The program gets the arguments and environment of
/// this process, one additional variable, and `input` as standard input. Child processes,
/// descriptors without close-on-exec and the signal mask are kept; all other threads end.
///
/// Returns only on failure. Standard input is then `input`, and no other state has changed.
pub fn become_program(program: &Path, variable: (&str, &str), input: impl AsFd) -> io::Error {
    match prepare(program, variable, input) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn prepare(
    program: &Path,
    (name, value): (&str, &str),
    input: impl AsFd,
) -> io::Result<std::convert::Infallible> {
    let text = |text: &OsStr| CString::new(text.as_bytes());
    let path = text(program.as_os_str())?;
    let arguments = std::env::args_os().map(|word| text(&word));
    let arguments: Vec<CString> = arguments.collect::<Result<_, _>>()?;
    let others = std::env::vars_os().filter(|(key, _)| key != name);
    let variables = others.chain([(OsString::from(name), OsString::from(value))]);
    let variables = variables.map(|(key, value)| {
        let mut pair = key;
        pair.push("=");
        pair.push(value);
        text(&pair)
    });
    let variables: Vec<CString> = variables.collect::<Result<_, _>>()?;
    rustix::stdio::dup2_stdin(input)?;
    Ok(execve(&path, &arguments, &variables)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_child_can_be_opened_by_its_pid() {
        let child = ChildProcess::start(Command::new("sleep").arg("1000")).unwrap();
        let same = ChildProcess::of(child.pid()).unwrap();
        assert!(same.try_wait().unwrap().is_none());
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(same.try_wait().is_err(), "it was waited for");
        for pid in [0, 1, u32::MAX] {
            assert!(ChildProcess::of(pid).is_err());
        }
    }

    #[test]
    fn a_failed_exec_leaves_the_environment_unchanged() {
        let nowhere = Path::new("/nowhere/at/all");
        let null = fs::File::open("/dev/null").unwrap();
        let error = become_program(nowhere, ("A", "b"), &null);
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(std::env::var_os("A").is_none());
    }
}
