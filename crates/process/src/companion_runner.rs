//! The part of the supervisor's process that starts, ends and serves the companion.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::time::Instant;

use super::child::{Child, spawn_companion};
use super::companion::{COMPANION, LONG, MOST_DOUBLINGS, PAUSE, companion_program, companion_user};
use super::run::Runner;
use super::supervisor::ProcessEnd;
use crate::protocol::{AcmeStart, Command};

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
        if let Some(serving) = self.supervisor.serving() {
            self.connect_companion(serving);
        }
        Ok(())
    }

    pub(super) fn companion_fault(&self, fault: &str) {
        tracing::error!(name: "acme-protocol-violated", fault, "the ACME companion violated the protocol; killing it");
        self.kill_companion();
    }

    /// Gives the ends of a new socket pair to the companion, if it runs, and to the serving process.
    pub(super) fn connect_companion(&mut self, serving: u32) {
        if self.children.iter().all(|child| child.id != COMPANION) {
            return;
        }
        match UnixStream::pair() {
            Ok((one, two)) => {
                self.send_with(serving, &Command::Companion, vec![one.into()]);
                self.send_with(COMPANION, &Command::Companion, vec![two.into()]);
            }
            Err(error) => {
                tracing::error!(name: "acme-connect-failed", %error, "cannot connect the ACME companion to the serving process");
            }
        }
    }

    pub(super) fn companion_exited(&mut self, ended: &ProcessEnd) {
        let is_wanted = self.companion.section == self.held.current.acme;
        self.companion.section = None;
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
