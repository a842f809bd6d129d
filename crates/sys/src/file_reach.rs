//! Which files this process may open from now on: Landlock.
//!
//! A rule is for a folder with everything below it, or for a file; whatever no rule names cannot be opened, made, removed or executed,
//! and no other process can be signalled, traced, or reached by an abstract unix socket. Open files stay open. Walking a path, reading and
//! changing metadata, and connecting to the path of a unix socket are not restricted. There is no way back, and later threads and programs
//! inherit it. A kernel that knows less restricts less.
//!
//! Source: landlock(7).

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, make_bitflags,
};

/// Confines the calling thread, and those that it starts later, to files at or below these paths: to read, and to write as well. Paths
/// that are not there are left out. Returns the version of Landlock that is in force; nothing where the kernel has none.
///
/// Forbid new privileges first.
///
/// # Errors
/// What the system says. Nothing is restricted then.
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

/// Has the calling thread, and those that it starts later, execute no program, and neither signal nor trace a process that is not confined with
/// them. Files are as they were. As far as the kernel can.
///
/// Forbid new privileges first.
///
/// # Errors
/// What the system says. Nothing is restricted then.
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

/// What is asked for: since Linux 6.12.
const NEWEST: ABI = ABI::V6;
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
/// Beside reading: to make, write and remove files and sockets. No folders, links or devices.
const WRITE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | MakeSock | RemoveFile | IoctlDev});
