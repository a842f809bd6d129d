//! Methods of [`Control`] that carry out commands of the supervisor, signals, and requests of
//! operators.

use std::io;
use std::os::fd::OwnedFd;

use becket_proto::limits::Counts;
use serde_json::json;

use super::Control;
use super::outcomes::too_late;
use crate::api::ChangeOutcome;
use becket_process::link::Delivered;
use becket_process::link::resources::ProcessResources;
use becket_process::protocol::{Command, Event, OperatorRequest, Resources};

impl Control {
    pub(super) async fn obey(&mut self, (command, fds): Delivered) {
        match command {
            Command::Leave => self.leave().await,
            Command::Drain => self.carry_out(OperatorRequest::Drain).await,
            Command::Stop => self.workers.stop(),
            Command::Reopen => self.reopen(),
            Command::Token(index) => {
                let tokens = &self.state.config().tokens;
                let socket = fds.into_iter().next();
                socket.into_iter().for_each(|it| tokens.replace(index, it));
            }
            Command::Reload(listing) => {
                if let Some(given) = self.given(listing, fds, &Event::Refused) {
                    self.begin_reload(given);
                }
            }
            Command::Renew(listing) => {
                if let Some(given) = self.given(listing, fds, &Event::Renewed(true)) {
                    self.look_at(given);
                }
            }
            Command::Upgrade => self.begin_upgrade(fds),
            Command::Yield(next, kept) => self.begin_yield(next, kept),
            Command::Resume(reason, held) => self.resume(&reason, held),
            Command::Serve(held) => self.serve_on_command(held),
            Command::Released(counts) => {
                self.handover.limits.released(&counts);
                self.settle_limits();
            }
            Command::Wanted(process, counts) => {
                self.handover.limits.wanted(process, counts);
                self.settle_limits();
            }
            Command::Granted(counts) => self.handover.limits.granted(&counts, self.state.shared()),
            Command::Companion => self.connect_companion(fds),
            // Ignores these commands here: the start of this process handles `Start`, the opener
            // handles `Opened`, and the last is for the ACME companion.
            Command::Start(_) | Command::Opened(..) | Command::Acme(_) => {}
        }
    }

    /// Combines the supervisor's list of files and sockets with the descriptors received for it. On
    /// failure, reports the event `ended`, because the supervisor waits for it.
    fn given(
        &self,
        listing: Resources,
        fds: Vec<OwnedFd>,
        ended: &Event,
    ) -> Option<ProcessResources> {
        let link = self.supervision.link.as_ref()?;
        let given = ProcessResources::new(listing, fds, &link.opener);
        let failed = |error: &io::Error| {
            tracing::error!(name: "too-many-open-files", %error, "cannot receive all descriptors from the supervisor: too many open files");
            link.report(ended);
        };
        given.inspect_err(failed).ok()
    }

    /// Handles the request of an admin client like the corresponding signal. Sends the outcome to
    /// the client when the work is complete.
    pub(super) async fn asked(&mut self, request: OperatorRequest, outcome: ChangeOutcome) {
        if self.state.is_draining() {
            return outcome.tell(match request {
                OperatorRequest::Drain => Ok(json!({"draining": true, "ended": []})),
                _ => Err(too_late()),
            });
        }
        let is_first = self.config.waiting.add(request, outcome);
        match &self.supervision.link {
            // Does not forward a repeated drain request: the supervisor would treat it as a second
            // signal and close the open connections.
            Some(_) if request == OperatorRequest::Drain && !is_first => {}
            Some(link) => link.report(&Event::Asked(request)),
            None => self.carry_out(request).await,
        }
    }

    pub(super) async fn carry_out(&mut self, request: OperatorRequest) {
        match request {
            OperatorRequest::Reload => self.begin_reload(ProcessResources {
                asked: self.config.waiting.reloads,
                ..ProcessResources::default()
            }),
            OperatorRequest::Upgrade => self.resume(NO_SUPERVISOR, Counts::new()),
            OperatorRequest::Reopen => self.reopen(),
            OperatorRequest::Drain if !self.state.is_draining() => self.drain(&[]).await,
            OperatorRequest::Drain | OperatorRequest::Stop => self.workers.stop(),
        }
    }

    pub(super) fn report(&self, event: &Event) {
        if let Some(link) = &self.supervision.link {
            link.report(event);
        }
    }

    /// Grants, releases and requests connections under the limits that processes share during an
    /// upgrade.
    pub(super) fn settle_limits(&mut self) {
        let (shared, config) = (self.state.shared(), self.state.config());
        for event in self.handover.limits.settle(shared, config.connections) {
            self.report(&event);
        }
    }
}

const NO_SUPERVISOR: &str =
    "this becket has no supervisor to start the new program; use becket run";
