//! Restricts the files that this process may open, with Landlock.
//!
//! A rule names a directory with all files below it, or one file. Files without a rule cannot be opened, created,
//! removed or executed. The process cannot signal or trace other processes, or connect to their abstract Unix sockets.
//! An older kernel restricts less. The restriction cannot be undone, and later threads and programs inherit it.
//!
//! These operations are not restricted: using open files, traversing a path, reading and changing metadata, and
//! connecting to a Unix socket by path.
//!
//! Source: landlock(7).

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};

/// Restricts the calling thread, and threads that it starts later, to files at or below these paths: `read` for
/// reading, `write` for reading and writing. Ignores paths that do not exist. Returns the version of Landlock in force,
/// or `None` if the kernel has none.
///
/// Call [`forbid_new_privileges`](crate::privileges::forbid_new_privileges) first.
///
/// # Errors
/// Returns the error of the failed Landlock call. No restriction is then in force.
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

/// Prevents the calling thread, and threads that it starts later, from executing programs, and from signalling or
/// tracing processes outside this restriction, as far as the kernel supports that. Access to files does not change.
///
/// Call [`forbid_new_privileges`](crate::privileges::forbid_new_privileges) first.
///
/// # Errors
/// Returns the error of the failed Landlock call. No restriction is then in force.
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

/// Newest version of Landlock that this code requests; available since Linux 6.12.
const NEWEST: ABI = ABI::V6;
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
/// Rights that writable paths get in addition to reading: write, create and remove files and
/// sockets. Directories, links and devices cannot be created.
const WRITE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | MakeSock | RemoveFile | IoctlDev});
