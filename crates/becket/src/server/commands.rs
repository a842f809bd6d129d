//! Commands of the supervisor, or of signals, are carried out.

use std::io;
use std::os::fd::OwnedFd;

use super::Control;
use crate::control::commands::NO_SUPERVISOR;
use crate::link::Delivered;
use crate::link::given::Given;
use crate::protocol::{Command, Event, Resources};

impl Control {
    pub(super) async fn obey(&mut self, (command, fds): Delivered) {
        match command {
            Command::Leave => self.leave().await,
            Command::Drain if !self.state.is_draining() => self.drain(&[]).await,
            Command::Drain | Command::Stop => self.workers.stop(),
            Command::Reopen => self.reopen(),
            Command::Token(index) => {
                let tokens = &self.state.config().tokens;
                let socket = fds.into_iter().next();
                socket.into_iter().for_each(|it| tokens.replace(index, it));
            }
            Command::Reload(None) => self.begin_reload(Given::default()),
            Command::Reload(Some(listing)) => match self.given(listing, fds) {
                Ok(given) => self.begin_reload(given),
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
            // A start is over, and the opener takes opened files.
            Command::Start(_) | Command::Opened(..) => {}
        }
    }

    fn given(&self, listing: Resources, fds: Vec<OwnedFd>) -> io::Result<Given> {
        let link = self.commands.supervisor().ok_or(io::ErrorKind::NotFound)?;
        Given::new(listing, fds, &link.opener)
    }

    /// Moves places of limits between this process and others.
    pub(super) fn settle_limits(&mut self) {
        let (shared, config) = (self.state.shared(), self.state.config());
        for event in self.handover.limits.settle(shared, config.connections) {
            self.commands.report(&event);
        }
    }
}
