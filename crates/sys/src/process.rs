//! Other processes.

use std::fs;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setsid};

/// Leaves the terminal and the process group from which this process was started: setsid(2).
///
/// # Errors
/// When it leads a group already.
pub fn begin_session() -> io::Result<()> {
    setsid()?;
    Ok(())
}

/// What a becket can be told by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// SIGHUP: to reload.
    Reload,
    /// SIGTERM: to drain.
    Drain,
    /// SIGUSR2: to become the program that is on the disk now.
    Upgrade,
}

/// Sends a signal to a process that has the name of this one. It ends most others, and whoever told the number may be wrong, or
/// in another PID namespace.
///
/// # Errors
/// `InvalidInput` for a process of another name; `NotFound` where there is none; `PermissionDenied` where only its user, or root,
/// may signal it.
pub fn tell(pid: u32, told: Told) -> io::Result<()> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = number.ok_or(io::ErrorKind::InvalidInput)?;
    // Before its name is read: from here on nobody else gets the number.
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Err(io::ErrorKind::NotFound.into()),
        opened => opened?,
    };
    if fs::read(format!("/proc/{pid}/comm"))? != fs::read("/proc/self/comm")? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let signal = match told {
        Told::Reload => Signal::HUP,
        Told::Drain => Signal::TERM,
        Told::Upgrade => Signal::USR2,
    };
    Ok(pidfd_send_signal(process, signal)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_is_left_alone() {
        let mut other = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let refused = tell(other.id(), Told::Reload).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        let pid = other.id();
        other.wait().unwrap();
        assert!(tell(pid, Told::Reload).is_err());
        for pid in [0, u32::MAX] {
            let refused = tell(pid, Told::Reload).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
