//! Giving up root.
//!
//! The kernel keeps credentials per thread; the C library's set*id functions apply them to every thread of the process, its
//! capability calls do not. So [`drop_to`] and [`forbid_new_privileges`] belong before the first thread is started: later
//! threads inherit the result. A thread that exists already changes its user too, but keeps no capability.
//!
//! Sources: credentials(7), capabilities(7), prctl(2), chroot(2).

use std::io;
use std::path::Path;

use nix::unistd::{Gid, Uid, getgroups, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, geteuid, getgid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::identity::UnixIdentity;

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

/// Becomes `identity` for good, without any capability.
///
/// Call it as root before threads are started. Real, effective and saved numbers change, so there is no way back. The process is
/// not dumpable afterwards: the kernel sees to that.
///
/// # Errors
/// `InvalidInput` if the identity is root or has no valid number; `PermissionDenied` without `CAP_SETUID` and `CAP_SETGID`. After an
/// error some of the credentials may have changed: give up.
pub fn drop_to(identity: &UnixIdentity) -> io::Result<()> {
    if identity.uid == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the user to run as is root itself",
        ));
    }
    refuse_unchanged(identity)?;
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    // Groups go first, as the right to change them goes with the user.
    setgroups(&group_ids(identity))?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    Ok(set_capabilities(None, sets)?)
}

/// Does something with the rights of `identity`, and is root again, who has all rights that it had. Call it as root before threads are
/// started.
///
/// # Errors
/// As of [`drop_to`]. After an error some of the credentials may have changed: give up.
pub fn with_rights_of<T>(identity: &UnixIdentity, act: impl FnOnce() -> T) -> io::Result<T> {
    refuse_unchanged(identity)?;
    let groups = getgroups()?;
    become_effective(identity.uid, identity.gid, &group_ids(identity))?;
    let done = act();
    // The user first: it has the right to change the others back.
    setresuid(UNCHANGED_USER, Uid::from_raw(0), UNCHANGED_USER)?;
    become_effective(0, getgid().as_raw(), &groups)?;
    Ok(done)
}

/// Changes the numbers by which files are opened, and no others.
fn become_effective(uid: u32, gid: u32, groups: &[Gid]) -> io::Result<()> {
    let unchanged = Gid::from_raw(u32::MAX);
    setgroups(groups)?;
    setresgid(unchanged, Gid::from_raw(gid), unchanged)?;
    setresuid(UNCHANGED_USER, Uid::from_raw(uid), UNCHANGED_USER)?;
    Ok(())
}

fn group_ids(identity: &UnixIdentity) -> Vec<Gid> {
    identity.groups.iter().copied().map(Gid::from_raw).collect()
}

/// Makes a folder the whole file system of this process, which is in it from then on. Root alone may, and leaves it at will: give up
/// root next.
///
/// # Errors
/// What chroot(2) and chdir(2) return.
pub fn enter_root(folder: &Path) -> io::Result<()> {
    rustix::process::chroot(folder)?;
    Ok(rustix::process::chdir("/")?)
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

/// Closes this process to debuggers of the same user, and to core dumps, until it becomes another program.
///
/// # Errors
/// None that prctl(2) lists.
pub fn forbid_tracing() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// To the kernel the greatest number means "leave as it is": who asked to become that user would stay root.
fn refuse_unchanged(identity: &UnixIdentity) -> io::Result<()> {
    if identity.uid == u32::MAX || identity.gid == u32::MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "4294967295 is no user or group number",
        ));
    }
    Ok(())
}

const UNCHANGED_USER: Uid = Uid::from_raw(u32::MAX);

#[cfg(test)]
mod tests {
    use super::*;

    // What changes credentials is tested where a process runs alone: `tests/process/`.
    #[test]
    fn root_and_the_number_that_means_unchanged_are_refused_before_anything_changes() {
        let before = geteuid();
        for (uid, gid) in [(0, 0), (u32::MAX, 1), (1, u32::MAX)] {
            let groups = Vec::new();
            let refused = drop_to(&UnixIdentity { uid, gid, groups }).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(geteuid(), before);
    }
}
