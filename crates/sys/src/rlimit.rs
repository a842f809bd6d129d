//! Sets resource limits: raises the descriptor limit, disables core dumps, and locks memory.
//!
//! A connection takes two descriptors, so the usual soft limit of 1024 is too low. Core dumps and swap would write
//! private keys and session secrets to disk. Sources: setrlimit(2), prctl(2), core(5), mlockall(2).

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::privileges::forbid_tracing;

/// Returns the hard limit of open descriptors, which [`raise_open_files`] can reach without privileges.
#[must_use]
pub fn most_open_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Returns the soft limit of open descriptors; `None` means no limit.
#[must_use]
pub fn open_files() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the maximum number of open descriptors to `wanted`, and returns the resulting maximum.
///
/// Never lowers it. Also raises the hard limit if needed and permitted (`CAP_SYS_RESOURCE`), up to
/// `fs.nr_open`.
///
/// # Errors
/// `PermissionDenied`, with a message that contains the wanted number and the hard limit; the limits are
/// then unchanged.
pub fn raise_open_files(wanted: u64) -> io::Result<u64> {
    // `None` means no limit.
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

/// Disables core dumps, and access to the memory of this process by debuggers of the same user.
///
/// Sets `RLIMIT_CORE` to 0, which children inherit. Also clears the dumpable flag, because the limit does not apply if
/// the core pattern is a pipe. The files in `/proc/self` then belong to root; the process itself can still read them.
///
/// # Errors
/// Returns the errors of setrlimit(2) and prctl(2); none is expected.
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

/// Prevents the memory of this process, including later allocations, from being swapped out. A page is locked when it
/// is touched.
///
/// # Errors
/// `PermissionDenied` if the limit of locked memory (`RLIMIT_MEMLOCK`) is finite and cannot be raised, because a later
/// allocation above the limit would fail. The limit does not apply with `CAP_IPC_LOCK`.
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
