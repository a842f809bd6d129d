//! What control does with a command of the supervisor, or of a signal.

use std::io;
use std::os::fd::OwnedFd;

use super::Control;
use crate::commands::NO_SUPERVISOR;
use becket_process::link::Delivered;
use becket_process::link::given::Given;
use becket_process::protocol::{Command, Event, Resources};

impl Control {
    /// Carries out a command that is not about the end.
    pub(super) fn obey(&mut self, (command, fds): Delivered, draining: bool) {
        match command {
            Command::Reopen => self.reopen(),
            Command::Token(index) => {
                let tokens = &self.state.config().tokens;
                let socket = fds.into_iter().next();
                socket.into_iter().for_each(|it| tokens.replace(index, it));
            }
            Command::Reload(None) => self.begin_reload(Given::default(), draining),
            Command::Reload(Some(listing)) => match self.given(listing, fds) {
                Ok(given) => self.begin_reload(given, draining),
                Err(error) => {
                    tracing::error!(%error, "cannot reload: too many open files");
                    self.commands.report(&Event::Refused);
                }
            },
            Command::Renew(listing) => match self.given(listing, fds) {
                Ok(given) => self.look(given.files),
                Err(error) => {
                    tracing::error!(%error, "cannot look at files: too many open files");
                    self.commands.report(&Event::Renewed);
                }
            },
            Command::Upgrade if self.commands.supervisor().is_none() => {
                tracing::error!("not upgraded: {NO_SUPERVISOR}");
            }
            Command::Upgrade => self.begin_upgrade(fds),
            Command::Yield(next, kept) => self.begin_yield(next, kept),
            Command::Resume(reason, held) => self.resume(&reason, held),
            Command::Serve(held) => self.told_to_serve(held),
            Command::Released(counts) => {
                self.handover.limits.released(&counts);
                self.settle_limits();
            }
            Command::Wanted(process, counts) => {
                self.handover.limits.wanted(process, counts);
                self.settle_limits();
            }
            Command::Granted(counts) => self.handover.limits.granted(&counts, self.state.shared()),
            // A start is over, opened files are taken elsewhere, and the loop knows the end.
            Command::Start(_)
            | Command::Opened(..)
            | Command::Leave
            | Command::Drain
            | Command::Stop => {}
        }
    }

    fn given(&self, listing: Resources, fds: Vec<OwnedFd>) -> io::Result<Given> {
        let link = self.commands.supervisor().ok_or(io::ErrorKind::NotFound)?;
        Given::new(listing, fds, &link.opener)
    }

    /// Takes and gives up what is shared with other processes.
    pub(super) fn settle_limits(&mut self) {
        let (shared, config) = (self.state.shared(), self.state.config());
        for event in self.handover.limits.settle(shared, config.connections) {
            self.commands.report(&event);
        }
    }
}
