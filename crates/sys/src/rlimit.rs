//! Resource limits: enough descriptors, no core dumps, no swap.
//!
//! A connection takes two descriptors, so the soft limit of 1024 that most systems hand out is soon met. Core dumps would write
//! private keys and session secrets to disk. Source: setrlimit(2), prctl(2), core(5),
//! mlockall(2).

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::privileges::forbid_tracing;

/// How many descriptors [`raise_open_files`] can reach without further rights: the hard limit.
#[must_use]
pub fn most_open_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Raises the number of descriptors that the process may have open to `wanted`, and returns what it then is.
///
/// Never lowers it. The hard limit is raised too if that is needed and permitted (`CAP_SYS_RESOURCE`), up to `fs.nr_open`.
///
/// # Errors
/// `PermissionDenied`, with a message that names the number wanted and the hard limit; the limits are then unchanged.
pub fn raise_open_files(wanted: u64) -> io::Result<u64> {
    // No number stands for no limit.
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    if soft >= wanted {
        return Ok(soft);
    }
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum.map(|hard| hard.max(wanted)),
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => Ok(wanted),
        Err(error) => {
            let error = io::Error::from(error);
            Err(io::Error::new(
                error.kind(),
                format!(
                    "{wanted} open files are needed, but the hard limit (RLIMIT_NOFILE) is {hard}: {error}"
                ),
            ))
        }
    }
}

/// Keeps the memory of this process from being written to disk or read by a debugger of the same user.
///
/// Sets `RLIMIT_CORE` to 0, which children inherit, and clears the dumpable flag, as the limit does not bind a core pattern that
/// pipes. The files in `/proc/self` then belong to root; the process itself can still read them.
///
/// # Errors
/// What setrlimit(2) or prctl(2) return; neither refuses this.
pub fn forbid_core_dumps() -> io::Result<()> {
    setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )?;
    forbid_tracing()
}

/// Keeps the memory of this process, also what it has yet to allocate, from being swapped out. A page counts once it was touched.
///
/// # Errors
/// `PermissionDenied` where the limit of locked memory (`RLIMIT_MEMLOCK`) is a number that may not be raised: an allocation that met
/// it later would end the process. `CAP_IPC_LOCK` is above the limit.
pub fn lock_memory() -> io::Result<()> {
    let limit = getrlimit(Resource::Memlock);
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    let above_limits = capabilities(None)?
        .effective
        .contains(CapabilitySet::IPC_LOCK);
    if let Some(bytes) = limit.current
        && !above_limits
        && setrlimit(Resource::Memlock, none).is_err()
    {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "the limit of locked memory (RLIMIT_MEMLOCK) is {bytes} bytes, and must be unlimited"
            ),
        ));
    }
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    Ok(mlockall(all)?)
}
