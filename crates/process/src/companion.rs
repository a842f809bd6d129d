//! The ACME companion: a program that orders certificates, as a child of the supervisor.
//!
//! The companion (`becket-acme`) runs next to the serving process, as a user of its own, and has no
//! key that clients are served with until it has ordered one. The supervisor connects it to the
//! serving process ([`crate::companion_link`]), and sees none of their messages.
//!
//! A companion that exits or violates the protocol is started again after a pause. A new
//! configuration or program ends it; it continues its order after the next start.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_config::acme::Acme;
use becket_sys::identity::UnixIdentity;
use becket_sys::{privileges, root_only};
use tokio::time::Instant;

use super::resources::check_program;

/// State of the companion that outlives its process.
#[derive(Debug, Default)]
pub(super) struct Companion {
    /// Section that the running companion was started with.
    pub(super) section: Option<Acme>,
    /// Time before which no companion is started.
    pub(super) pause_until: Option<Instant>,
    pub(super) started: Option<Instant>,
    /// Number of consecutive early exits.
    pub(super) failures: u32,
}

impl Companion {
    /// Returns the time at which the companion can be started again, if it waits for that.
    pub(super) fn restarts_at(&self) -> Option<Instant> {
        self.pause_until.filter(|_| self.section.is_none())
    }
}

/// Creates the companion's folder, if it does not exist. As root, only below a folder of root.
///
/// # Errors
/// Returns the error of the failed system call; `PermissionDenied` if a user other than root can
/// change the path.
pub(super) fn create_folder(
    section: &Acme,
    base: &Path,
    serving: Option<&UnixIdentity>,
) -> io::Result<()> {
    let folder = section.folder(base);
    match companion_user(section, serving)? {
        Some(user) => root_only::give_folder(&folder, &user),
        None if folder.is_dir() => Ok(()),
        None => std::fs::create_dir(&folder),
    }
}

/// Returns the user of the companion, with the group of the serving process, so that this process
/// can read the certificates. Returns `None` without privileges, or if no user is configured.
pub(super) fn companion_user(
    section: &Acme,
    serving: Option<&UnixIdentity>,
) -> io::Result<Option<UnixIdentity>> {
    let Some(name) = section.user.as_ref().filter(|_| privileges::is_root()) else {
        return Ok(serving.cloned());
    };
    let found = UnixIdentity::find(name, None)?;
    if found.uid == 0 {
        let text = "acme.user: root is not allowed";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(Some(UnixIdentity {
        uid: found.uid,
        gid: serving.map_or(found.gid, |serving| serving.gid),
        groups: Vec::new(),
    }))
}

/// Returns the companion's program, which is in the folder of the program `becket`.
pub(super) fn companion_program(becket: &Path) -> io::Result<PathBuf> {
    let becket = std::fs::canonicalize(becket)?;
    let program = becket.with_file_name(NAME);
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", program.display()));
    if privileges::is_root() && !root_only::is_program(&program).map_err(named)? {
        let text = "a user other than root can change this program or its path";
        return Err(named(io::Error::new(io::ErrorKind::PermissionDenied, text)));
    }
    check_program(&program).map_err(named)?;
    Ok(program)
}

/// Number of the companion among the processes of the supervisor, whose numbers start at 1.
pub(super) const COMPANION: u32 = 0;
const NAME: &str = "becket-acme";
/// Pause before the companion is started again, doubled after each early exit.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
pub(super) const MOST_DOUBLINGS: u32 = 8;
/// Running time after which an exit is not counted as early.
pub(super) const LONG: Duration = Duration::from_secs(600);
