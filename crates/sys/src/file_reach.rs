//! Restricts the files that this process may open: Landlock.
//!
//! A rule is for a folder with everything below it, or for a file. Files without a rule cannot be opened,
//! created, removed or executed, and no other process can be signalled, traced, or reached through an
//! abstract Unix socket. Open files stay open. Walking a path, reading and changing metadata, and
//! connecting to the path of a Unix socket are not restricted. The restriction cannot be undone, and
//! later threads and programs inherit it. An older kernel restricts less.
//!
//! Source: landlock(7).

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};

/// Confines the calling thread, and threads that it starts later, to files at or below these paths:
/// `read` for reading, `write` for reading and writing. Ignores paths that do not exist. Returns the
/// version of Landlock in force, or `None` if the kernel has none.
///
/// Call [`forbid_new_privileges`](crate::privileges::forbid_new_privileges) first.
///
/// # Errors
/// Returns the system's error. Nothing is restricted then.
pub fn confine<P: AsRef<Path>>(
    read: impl IntoIterator<Item = P>,
    write: impl IntoIterator<Item = P>,
) -> io::Result<Option<u32>> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    let read = read
        .into_iter()
        .filter_map(|path| rule(path.as_ref(), READ));
    let write = write.into_iter();
    let write = write.filter_map(|path| rule(path.as_ref(), READ | WRITE));
    let rules = read.chain(write).map(Ok::<_, landlock::RulesetError>);
    let status = ruleset
        .add_rules(rules)
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(io::Error::other)?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => None,
        (_, LandlockStatus::Available { effective_abi, .. }) => {
            Some(effective_abi.min(NEWEST) as u32)
        }
        _ => None,
    })
}

/// Keeps the calling thread, and threads that it starts later, from executing programs, and from
/// signalling or tracing processes outside this confinement, as far as the kernel supports that. Access
/// to files does not change.
///
/// Call [`forbid_new_privileges`](crate::privileges::forbid_new_privileges) first.
///
/// # Errors
/// Returns the system's error. Nothing is restricted then.
pub fn forbid_programs() -> io::Result<()> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::Execute)
        .and_then(|ruleset| ruleset.scope(Scope::Signal))
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self)
        .map_err(io::Error::other)?;
    Ok(())
}

fn rule(path: &Path, access: BitFlags<AccessFs>) -> Option<PathBeneath<PathFd>> {
    let fd = PathFd::new(path).ok()?;
    let access = if path.is_dir() {
        access
    } else {
        access & AccessFs::from_file(NEWEST)
    };
    Some(PathBeneath::new(fd, access))
}

/// Newest version of Landlock that is requested, from Linux 6.12.
const NEWEST: ABI = ABI::V6;
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
/// Further rights for writing: create, write and remove files and sockets, but no folders, links or
/// devices.
const WRITE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | MakeSock | RemoveFile | IoctlDev});
