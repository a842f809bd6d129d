//! Dropping root privileges.
//!
//! The kernel keeps credentials per thread. The C library's set*id functions apply them to every thread of the process,
//! but its capability calls do not. So call [`drop_to`] and [`forbid_new_privileges`] before the first thread is
//! started: later threads inherit the result. An existing thread also changes its user, and loses its capabilities.
//!
//! Sources: credentials(7), capabilities(7), prctl(2).

use std::io;

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::identity::UnixIdentity;

#[must_use]
pub fn is_root() -> bool {
    geteuid().is_root()
}

#[must_use]
pub fn effective_user() -> u32 {
    geteuid().as_raw()
}

#[must_use]
pub fn effective_group() -> u32 {
    getegid().as_raw()
}

/// Switches to `identity` permanently, and drops all capabilities.
///
/// Call it as root before threads are started. The real, effective and saved IDs change, so this cannot be undone. The
/// kernel also makes the process non-dumpable.
///
/// # Errors
/// `InvalidInput` if the identity is root or has an invalid ID; `PermissionDenied` without `CAP_SETUID` and
/// `CAP_SETGID`. After an error, the process must exit, because some credentials may have changed.
pub fn drop_to(identity: &UnixIdentity) -> io::Result<()> {
    if identity.uid == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the user to run as must not be root",
        ));
    }
    refuse_unchanged(identity)?;
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    // Groups are set first, because only root can change them.
    let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
    setgroups(&groups)?;
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

/// Prevents programs that this process executes from gaining privileges through set-user-ID bits or
/// file capabilities.
///
/// Affects the calling thread and threads that it starts later: call it before threads are started.
///
/// # Errors
/// Returns the errors of prctl(2); none occurs on Linux 3.5 and later.
pub fn forbid_new_privileges() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Prevents core dumps of this process and access by debuggers of the same user, until it executes another program.
///
/// # Errors
/// Returns the error of prctl(2); none is documented.
pub fn forbid_tracing() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Rejects `u32::MAX`. The kernel interprets this ID as "unchanged", so the process would stay
/// root.
fn refuse_unchanged(identity: &UnixIdentity) -> io::Result<()> {
    if identity.uid == u32::MAX || identity.gid == u32::MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "4294967295 is not a valid user or group number",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tests that change credentials need a process of their own: `tests/process/`.
    #[test]
    fn root_and_reserved_ids_are_rejected_before_any_change() {
        let before = geteuid();
        for (uid, gid) in [(0, 0), (u32::MAX, 1), (1, u32::MAX)] {
            let groups = Vec::new();
            let refused = drop_to(&UnixIdentity { uid, gid, groups }).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(geteuid(), before);
    }
}
