//! Reactions to the exit of a process, by stage.

use std::time::Duration;

use becket_proto::limits::Counts;

use super::stages::ProcessStage;
use super::{Action, Ending, FAILED, LONG, MOST_FAILURES, NO_FAULT, ProcessEnd, Supervisor};
use crate::protocol::Command;

impl Supervisor {
    pub(super) fn exited(
        &mut self,
        now: Duration,
        id: u32,
        ended: &ProcessEnd,
        out: &mut Vec<Action>,
    ) {
        if let Some(next) = self.next.as_ref().filter(|next| next.id == id) {
            let reason = match &next.reason {
                Some(reason) => format!("{reason} ({})", ended.text),
                None => format!("the new process exited before it served ({})", ended.text),
            };
            return self.give_up(now, &reason, out);
        }
        let row = self.ledger.remove(id);
        if self.serving() == Some(id) {
            self.serving_exited(now, ended, out);
        } else {
            self.leaving.retain(|process| process.id != id);
            tracing::info!(name: "process-replaced", process = id, reason = ended.text, "replaced process exited");
        }
        if let Some(accepting) = self.accepting() {
            out.push(Action::Send(accepting, Command::Released(row)));
            out.push(Action::Send(accepting, Command::Wanted(id, Counts::new())));
        }
        if self.serving.is_none() {
            self.serve_next(out);
        }
        self.finish(out);
    }

    fn serving_exited(&mut self, now: Duration, ended: &ProcessEnd, out: &mut Vec<Action>) {
        let Some(process) = self.serving.take() else {
            return;
        };
        let id = process.id();
        out.push(Action::Discard(id));
        let served = match process {
            ProcessStage::Serving(serving) => Some(now.saturating_sub(serving.since)),
            _ => None,
        };
        if let Some(ending) = &mut self.ending {
            if served.is_some() && ending.code == NO_FAULT {
                ending.code = ended.code.unwrap_or(FAILED);
            }
            return;
        }
        let is_early = served.is_none_or(|served| served < LONG);
        self.failures = if is_early { self.failures + 1 } else { 1 };
        let deaths = self.restarts.deaths + 1;
        tracing::error!(
            name: "process-died",
            process = id,
            reason = ended.text,
            restarts = deaths,
            "the serving process died"
        );
        if !self.has_served || self.failures > MOST_FAILURES && self.next.is_none() {
            // A process that exits without a command has failed, even with exit code 0.
            let code = ended
                .code
                .filter(|code| *code != NO_FAULT)
                .unwrap_or(FAILED);
            tracing::error!(name: "supervisor-exiting", exit_code = code, "exiting without starting another serving process");
            self.ending = Some(Ending { ends_by: now, code });
            out.push(Action::Release);
            return;
        }
        self.restarts.deaths = deaths;
        if self.next.is_some() {
            tracing::info!(name: "new-process-awaited", "waiting for the new process to serve");
        } else {
            let pause = Duration::from_secs((1 << self.failures) - 2);
            self.restart_at = Some(now + pause);
            // Restart at once if the pause is zero, so that no client waits for a timer.
            self.tick(now, out);
        }
    }
}
