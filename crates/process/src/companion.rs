//! The ACME companion: a program that orders certificates, as a child of the supervisor.
//!
//! The companion (`becket-acme`) runs beside the serving process, as a user of its own, and has no
//! key that clients are served with until it has ordered one. It sends the complete set of pending
//! challenges, in which names are indices into the `[acme]` section. The supervisor forwards the
//! set to the serving process, and the answer back.
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

use super::child::{Child, spawn_companion};
use super::resources::check_program;
use super::run::Runner;
use super::supervisor::ProcessEnd;
use crate::protocol::{AcmeChallenge, AcmeStart, Command, Event, MOST_CHALLENGES};

/// State of the companion that outlives its process.
#[derive(Debug, Default)]
pub(super) struct Companion {
    /// Section that the running companion was started with.
    section: Option<Acme>,
    /// Pending challenges, and the number of this set.
    pending: (u32, Vec<AcmeChallenge>),
    /// Time before which no companion is started.
    pause_until: Option<Instant>,
    started: Option<Instant>,
    /// Number of consecutive early exits.
    failures: u32,
}

impl Companion {
    /// Returns the time at which the companion can be started again, if it waits for that.
    pub(super) fn restarts_at(&self) -> Option<Instant> {
        self.pause_until.filter(|_| self.section.is_none())
    }
}

impl Runner {
    /// Starts or ends the companion, as the configuration in use requires.
    pub(super) fn keep_companion(&mut self) {
        let wanted = self.held.current.acme.as_ref();
        if let Some(child) = self.children.iter().find(|child| child.id == COMPANION) {
            if wanted != self.companion.section.as_ref() {
                child.kill();
            }
            return;
        }
        let pauses = self.companion.pause_until;
        if wanted.is_none() || pauses.is_some_and(|until| until > Instant::now()) {
            return;
        }
        self.companion.started = Some(Instant::now());
        if let Err(error) = self.start_companion() {
            tracing::error!(name: "acme-start-failed", %error, "cannot start the ACME companion");
            self.pause_companion();
        }
    }

    fn start_companion(&mut self) -> io::Result<()> {
        let Some(section) = self.held.current.acme.clone() else {
            return Ok(());
        };
        let user = companion_user(&section, self.setup.identity.as_ref())?;
        let program = companion_program(&self.setup.program)?;
        let (process, stream) = spawn_companion(&program)?;
        let mut child = Child::of(COMPANION, process, stream, Vec::new())?;
        tracing::info!(name: "acme-started", pid = child.pid(), program = %program.display(), "ACME companion started");
        let start = AcmeStart {
            section: section.clone(),
            base: self.setup.source.folder(),
            user,
        };
        child.send(&Command::Acme(Box::new(start)), Vec::new());
        self.children.push(child);
        self.companion.section = Some(section);
        Ok(())
    }

    /// Handles an event of the companion. Kills a companion that violates the protocol.
    pub(super) fn companion_event(&mut self, event: Event) {
        match event {
            Event::Challenges(number, challenges) if challenges.len() <= MOST_CHALLENGES => {
                self.companion.pending = (number, challenges);
                self.send_challenges();
            }
            _ => self.companion_fault("unexpected event"),
        }
    }

    pub(super) fn companion_fault(&self, fault: &str) {
        tracing::error!(name: "acme-protocol-violated", fault, "the ACME companion violated the protocol; killing it");
        self.kill_companion();
    }

    /// Sends the pending challenges to the serving process.
    pub(super) fn send_challenges(&mut self) {
        if let Some(serving) = self.supervisor.serving() {
            let (number, challenges) = self.companion.pending.clone();
            self.send(serving, &Command::Challenges(number, challenges));
        }
    }

    /// Sends the pending challenges to a process that begins to serve.
    pub(super) fn pass_challenges(&mut self, process: u32) {
        let (number, challenges) = self.companion.pending.clone();
        if !challenges.is_empty() {
            self.send(process, &Command::Challenges(number, challenges));
        }
    }

    /// Forwards the answer of a process to the companion.
    pub(super) fn challenges_served(&mut self, process: u32, number: u32) {
        if self.supervisor.serving() == Some(process) && number == self.companion.pending.0 {
            self.send(COMPANION, &Command::ChallengesServed(number));
        }
    }

    pub(super) fn companion_exited(&mut self, ended: &ProcessEnd) {
        let is_wanted = self.companion.section == self.held.current.acme;
        self.companion.section = None;
        if !self.companion.pending.1.is_empty() {
            self.companion.pending.1.clear();
            self.send_challenges();
        }
        if is_wanted {
            tracing::warn!(name: "acme-exited", status = ended.text, "the ACME companion exited; starting it again");
            self.pause_companion();
        }
    }

    pub(super) fn kill_companion(&self) {
        let mut children = self.children.iter();
        if let Some(child) = children.find(|child| child.id == COMPANION) {
            child.kill();
        }
    }

    fn pause_companion(&mut self) {
        let companion = &mut self.companion;
        let ran = companion.started.map_or(Duration::ZERO, |at| at.elapsed());
        let failures = if ran > LONG { 0 } else { companion.failures };
        let pause = PAUSE * 2_u32.pow(failures.min(MOST_DOUBLINGS));
        companion.failures = failures + 1;
        companion.pause_until = Some(Instant::now() + pause);
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
fn companion_user(
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
fn companion_program(becket: &Path) -> io::Result<PathBuf> {
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
const PAUSE: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: u32 = 8;
/// Running time after which an exit is not counted as early.
const LONG: Duration = Duration::from_secs(600);
