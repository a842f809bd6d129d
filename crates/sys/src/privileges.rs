//! Giving up root, and finding out before what the run user will be able to read.
//!
//! The kernel keeps credentials per thread; the C library's set*id functions apply them to every thread of the process, its
//! capability calls do not. So [`drop_to`] and [`forbid_new_privileges`] belong before the first thread is started: later
//! threads inherit the result. A thread that exists already changes its user too, but keeps no capability.
//!
//! Sources: credentials(7), capabilities(7), prctl(2).

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::process::{DumpableBehavior, dumpable_behavior, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, set_capabilities, set_keep_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::identity::Identity;

/// Tells whether the effective user is root.
#[must_use]
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Returns the number of the effective user.
#[must_use]
pub fn effective_user() -> u32 {
    geteuid().as_raw()
}

/// Becomes `identity` for good, keeping of all capabilities only `CAP_NET_BIND_SERVICE`, so that a reload can bind low ports.
///
/// Call it as root before threads are started. Real, effective and saved numbers change, so there is no way back. Returns
/// whether the capability was there to be kept. The process is not dumpable afterwards: the kernel sees to that.
///
/// # Errors
/// `InvalidInput` if the identity is root or has no valid number; `PermissionDenied` without `CAP_SETUID` and `CAP_SETGID`. After an error some of the
/// credentials may have changed: give up.
pub fn drop_to(identity: &Identity) -> io::Result<bool> {
    if identity.uid == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the user to run as is root itself",
        ));
    }
    refuse_unchanged(identity)?;
    let kept = capabilities(None)?.permitted & CapabilitySet::NET_BIND_SERVICE;
    set_keep_capabilities(true)?;
    // SAFETY: the pointer and length describe an array that is only read.
    succeeded(unsafe { libc::setgroups(identity.groups.len(), identity.groups.as_ptr()) })?;
    // SAFETY: takes numbers only. Groups go first, as the right to change them goes with the user.
    succeeded(unsafe { libc::setresgid(identity.gid, identity.gid, identity.gid) })?;
    // SAFETY: takes numbers only.
    succeeded(unsafe { libc::setresuid(identity.uid, identity.uid, identity.uid) })?;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)?;
    set_keep_capabilities(false)?;
    Ok(!kept.is_empty())
}

/// Makes sure that no program started from here gains privileges by set-user-ID bits or file capabilities.
///
/// Concerns the calling thread and those it starts later: call it before threads are started.
///
/// # Errors
/// What prctl(2) returns; on Linux 3.5 and later, nothing.
pub fn forbid_new_privileges() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Tells whether `identity` could open `path` (a file or a directory) for reading.
///
/// The kernel itself answers: a thread made for this one question takes on the identity, supplementary groups included, without
/// any capability, and opens the path. So ACLs, security modules and network file systems have their say, which adding
/// up mode bits would miss; and setfsuid(2) would leave the caller's other identities in place. Asking for the identity that the
/// process has needs no rights; another one needs root. Starts and joins a thread: for start-up. The answer holds for now.
///
/// # Errors
/// `NotFound` and whatever else open(2) returns but a refusal, which is the `Ok(false)`; `PermissionDenied` if the process may not
/// take on the identity.
pub fn readable_by(path: &Path, identity: &Identity) -> io::Result<bool> {
    refuse_unchanged(identity)?;
    let opened = if !is_root() && geteuid().as_raw() == identity.uid {
        open(path)
    } else {
        acting_as(identity, || open(path))?
    };
    match opened {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

/// Does something in a thread with other credentials and no capability; what it opens is the caller's. Needs root.
///
/// # Errors
/// About the thread; what `act` returns is within.
pub(crate) fn acting_as<T: Send>(
    identity: &Identity,
    act: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    refuse_unchanged(identity)?;
    // A thread that changes its user makes the whole process undumpable.
    let dumpable = dumpable_behavior()?;
    let outcome = std::thread::scope(|scope| {
        let acting = std::thread::Builder::new()
            .name("acting-as".into())
            .spawn_scoped(scope, || {
                take_on(identity)?;
                Ok(act())
            })?;
        acting.join().unwrap_or_else(|_| {
            Err(io::Error::other(
                "the thread that acts as the run user panicked",
            ))
        })
    });
    if dumpable == DumpableBehavior::Dumpable {
        set_dumpable_behavior(dumpable)?;
    }
    outcome
}

/// Gives the calling thread, and it alone, the credentials of `identity`.
fn take_on(identity: &Identity) -> io::Result<()> {
    let groups: Vec<Gid> = identity
        .groups
        .iter()
        .map(|&group| Gid::from_raw_unchecked(group))
        .collect();
    let (user, group) = (
        Uid::from_raw_unchecked(identity.uid),
        Gid::from_raw_unchecked(identity.gid),
    );
    set_thread_groups(&groups)?;
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// To the kernel the greatest number means "leave as it is": who asked to become that user would stay root.
fn refuse_unchanged(identity: &Identity) -> io::Result<()> {
    if identity.uid == u32::MAX || identity.gid == u32::MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "4294967295 is no user or group number",
        ));
    }
    Ok(())
}

fn open(path: &Path) -> io::Result<()> {
    // A FIFO must not keep us waiting, nor a terminal become ours.
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map(drop)
}

fn succeeded(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // What changes credentials is tested where a process runs alone: `tests/process.rs`.
    #[test]
    fn dropping_to_root_is_refused_before_anything_changes() {
        let before = geteuid();
        let root = Identity {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
        };
        assert_eq!(
            drop_to(&root).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(geteuid(), before);
    }

    #[test]
    fn the_number_that_means_unchanged_is_refused() {
        for (uid, gid) in [(u32::MAX, 1), (1, u32::MAX)] {
            let nobody = Identity {
                uid,
                gid,
                groups: Vec::new(),
            };
            assert_eq!(
                drop_to(&nobody).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
            assert_eq!(
                readable_by(Path::new("/"), &nobody).unwrap_err().kind(),
                io::ErrorKind::InvalidInput
            );
        }
    }
}
