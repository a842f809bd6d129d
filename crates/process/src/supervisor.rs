//! The supervisor's decisions, without processes, sockets or clock: [`Supervisor::handle`] takes an [`Input`] and
//! returns [`Action`]s, which [`run`](super::run) carries out.
//!
//! ```text
//!              start                     Ready ─► Serve, Serving
//!   (nothing) ───────► serving: Starting ──────────────────────► serving: Serving ──┐ reload, renew
//!        ▲                 │ died                                  │   ▲  └─────────┘
//!        │ after a back-off▼                                 died  │   │ failed: Resume
//!        └─────────────────◄───────────────────────────────────────┤   │
//!                                                          upgrade │   │
//!                                                                  ▼   │
//!   next: Starting ─ Ready ─► old: Yield ─ Yielded ─► next: Serve ─ Serving ─► next becomes serving,
//!                                                                            old: Leave, Draining
//! ```
//!
//! Invariants, checked by the tests: at most one process accepts clients. Exactly one accepts while a process serves,
//! except between Yield and Serving in an upgrade. Each started process ends. Each upgrade and reload has one outcome.
//!
//! Processes are not trusted. The supervisor kills a process that sends an event that is unexpected in its stage. The
//! cleanup after an exit depends on the stage.

mod actions;
mod events;
mod exits;
mod stages;

use std::time::Duration;

use becket_proto::limits::Ledger;

pub(crate) use self::actions::{Action, Input, ProcessEnd, ServiceNotice, SupervisorState};
use self::stages::{Draining, LATE, ProcessStage, Reload, Serving, StartStep, Starting};
use crate::protocol::{Command, OperatorRequest, ProcessTimes, Restarts};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingRequests {
    pub upgrade: bool,
    pub reload: bool,
    pub renew: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    /// Deadline after which the serving process is killed.
    ends_by: Duration,
    code: u8,
}

#[derive(Debug, Default)]
pub(crate) struct Supervisor {
    /// The process that serves, or that starts while no other process serves.
    serving: Option<ProcessStage>,
    /// The process that replaces `serving` in an upgrade.
    next: Option<Starting>,
    /// Replaced processes that finish their connections.
    leaving: Vec<Draining>,
    ledger: Ledger,
    pending: PendingRequests,
    ending: Option<Ending>,
    restart_at: Option<Duration>,
    /// Number of consecutive early deaths.
    failures: u32,
    has_served: bool,
    /// `true` if the serving process runs a newer program than the supervisor.
    is_outdated: bool,
    last_id: u32,
    restarts: Restarts,
}

impl Supervisor {
    pub(crate) fn begin(&mut self) -> Vec<Action> {
        let mut out = Vec::new();
        self.start_serving(&mut out);
        out
    }

    /// Starts the first process after an exec whose state was lost. A failed start is retried,
    /// because processes of the previous program may still use the addresses.
    pub(crate) fn recover(&mut self) -> Vec<Action> {
        self.has_served = true;
        self.begin()
    }

    pub(crate) fn resume(state: SupervisorState, now: Duration) -> (Self, Vec<Action>) {
        let draining = |(id, left): (u32, Duration)| Draining {
            id,
            ends_by: now + left,
        };
        let mut ledger = Ledger::default();
        for (process, held) in state.held {
            ledger.set(process, held);
        }
        let supervisor = Self {
            serving: Some(ProcessStage::serving(state.serving, now, state.times)),
            leaving: state.leaving.into_iter().map(draining).collect(),
            ledger,
            pending: PendingRequests {
                upgrade: false,
                reload: state.reload,
                renew: state.renew,
            },
            has_served: true,
            last_id: state.last_id,
            restarts: state.restarts,
            ..Self::default()
        };
        (
            supervisor,
            vec![Action::Watch, Action::Notify(ServiceNotice::Ready)],
        )
    }

    /// Returns the state for the next program; `None` while a request is in progress.
    pub(crate) fn state(&self, now: Duration) -> Option<SupervisorState> {
        let serving = self.free()?;
        if serving.is_renewing || self.ending.is_some() || self.pending.upgrade {
            return None;
        }
        let left = |process: &Draining| (process.id, process.ends_by.saturating_sub(now));
        let rows = self.ledger.rows().iter();
        Some(SupervisorState {
            serving: serving.id,
            times: serving.times,
            leaving: self.leaving.iter().map(left).collect(),
            held: rows.map(|(id, held)| (*id, held.clone())).collect(),
            reload: self.pending.reload,
            renew: self.pending.renew,
            last_id: self.last_id,
            restarts: self.restarts,
        })
    }

    pub(crate) fn restarts(&self) -> Restarts {
        self.restarts
    }

    /// Returns the process that serves or starts to serve.
    pub(crate) fn serving(&self) -> Option<u32> {
        self.serving.as_ref().map(ProcessStage::id)
    }

    fn ids(&self) -> impl Iterator<Item = u32> {
        let next = self.next.iter().map(|next| next.id);
        let leaving = self.leaving.iter().map(|process| process.id);
        self.serving().into_iter().chain(next).chain(leaving)
    }

    /// Returns the serving process if it has started to serve.
    fn serves(&self) -> Option<&Serving> {
        match &self.serving {
            Some(ProcessStage::Serving(serving)) => Some(serving),
            _ => None,
        }
    }

    fn serves_mut(&mut self) -> Option<&mut Serving> {
        match &mut self.serving {
            Some(ProcessStage::Serving(serving)) => Some(serving),
            _ => None,
        }
    }

    /// Returns the serving process if no upgrade or reload is in progress.
    fn free(&self) -> Option<&Serving> {
        let serving = self.serves()?;
        (self.next.is_none() && serving.reload.is_none()).then_some(serving)
    }

    /// Returns the serving process if an upgrade may start: no upgrade is in progress, and no
    /// reload that is still within its deadline.
    fn replaceable(&self) -> Option<&Serving> {
        let serving = self.serves()?;
        let reload = serving.reload.as_ref();
        let is_free = reload.is_none_or(|reload| reload.late_at.is_none());
        (self.next.is_none() && is_free).then_some(serving)
    }

    /// Returns the process that may accept clients. It also receives changes of the shared limits.
    fn accepting(&self) -> Option<u32> {
        let next = self.next.as_ref();
        let next = next.filter(|next| next.step == StartStep::MayServe);
        let serving = self.serving.as_ref().filter(|it| it.may_accept());
        next.map(|next| next.id)
            .or_else(|| serving.map(ProcessStage::id))
    }

    /// Returns the time of the next [`Input::Tick`].
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let ending = self.ending.filter(|_| self.serving.is_some());
        let ending = ending.map(|ending| ending.ends_by);
        let serving = self.serving.as_ref().and_then(ProcessStage::deadline);
        let next = self.next.as_ref().and_then(|next| next.late_at);
        let leaving = self.leaving.iter().map(|process| process.ends_by);
        let others = [serving, next, ending, self.restart_at];
        leaving.chain(others.into_iter().flatten()).min()
    }

    pub(crate) fn handle(&mut self, now: Duration, input: Input) -> Vec<Action> {
        let mut out = Vec::new();
        match input {
            Input::Requested(request) => self.request(now, request, NO_FAULT, &mut out),
            Input::Event(id, event) => self.event(now, id, event, &mut out),
            Input::Started(id, Ok(times)) => self.started(now, id, times),
            Input::Started(id, Err(error)) => {
                tracing::error!(name: "process-start-failed", %error, "cannot start a serving process");
                self.exited(now, id, &error.into(), &mut out);
            }
            Input::Offered(id, times) => {
                if let Some(serving) = self.serves_mut().filter(|serving| serving.id == id)
                    && let Some(reload) = &mut serving.reload
                {
                    reload.times = times;
                }
            }
            Input::Exited(id, ended) => self.exited(now, id, &ended, &mut out),
            Input::Broken(id, fault) => self.broken(id, &fault, &mut out),
            Input::FilesChanged => {
                self.pending.renew = true;
                self.proceed(now, &mut out);
            }
            Input::NotReplaced(error) => {
                tracing::error!(
                    name: "supervisor-outdated",
                    error,
                    "the supervisor cannot execute the new program and keeps running the old one; the new process serves clients"
                );
                self.is_outdated = false;
                out.push(Action::Notify(ServiceNotice::Ready));
                self.proceed(now, &mut out);
            }
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    /// Starts, queues or ignores an operator's request. `code` is the exit code if the request ends
    /// the service.
    fn request(
        &mut self,
        now: Duration,
        request: OperatorRequest,
        code: u8,
        out: &mut Vec<Action>,
    ) {
        match request {
            OperatorRequest::Reopen => {
                out.extend(self.ids().map(|id| Action::Send(id, Command::Reopen)));
            }
            OperatorRequest::Drain => self.drain(now, code, out),
            OperatorRequest::Stop => {
                self.stop_leaving(out);
                self.end(now, Duration::ZERO, code, Command::Stop, out);
            }
            OperatorRequest::Upgrade if self.ending.is_none() => {
                self.pending.upgrade = true;
                self.proceed(now, out);
            }
            OperatorRequest::Reload if self.ending.is_none() => {
                let reload = self.serves().and_then(|serving| serving.reload.as_ref());
                let is_late = reload.is_some_and(|reload| reload.late_at.is_none());
                if is_late && !self.pending.reload {
                    tracing::warn!(name: "reload-postponed", "reload postponed: the previous reload is still running");
                }
                self.pending.reload = true;
                self.proceed(now, out);
            }
            OperatorRequest::Upgrade | OperatorRequest::Reload => {}
        }
    }

    /// Drains connections on the first request, and closes them on the second.
    fn drain(&mut self, now: Duration, code: u8, out: &mut Vec<Action>) {
        if let Some(ending) = &mut self.ending
            && ending.code == ASKED_BY_PROCESS
            && code == NO_FAULT
        {
            // After a drain that the admin pages requested, the first signal changes only the exit
            // code.
            ending.code = code;
            return;
        }
        let mut within = Duration::ZERO;
        if self.ending.is_some() {
            self.stop_leaving(out);
        } else if let Some(serving) = self.serves() {
            within = serving.times.drain;
        }
        self.end(now, within, code, Command::Drain, out);
    }

    fn stop_leaving(&self, out: &mut Vec<Action>) {
        let leaving = self.leaving.iter();
        out.extend(leaving.map(|process| Action::Send(process.id, Command::Stop)));
    }

    fn end(
        &mut self,
        now: Duration,
        within: Duration,
        code: u8,
        command: Command,
        out: &mut Vec<Action>,
    ) {
        let ends_by = now + within + GRACE;
        let before = self.ending;
        self.ending = Some(Ending {
            ends_by: before.map_or(ends_by, |before| before.ends_by.min(ends_by)),
            // Exit code 0, which signals use, takes precedence over the exit code of a process's
            // request.
            code: before.map_or(code, |before| before.code.min(code)),
        });
        self.pending = PendingRequests::default();
        self.restart_at = None;
        out.extend([Action::Release, Action::Notify(ServiceNotice::Stopping)]);
        if let Some(Starting { id, .. }) = self.next.take() {
            out.extend([Action::Kill(id), Action::Discard(id)]);
            // The killed process counts as draining, so that `finish` waits for its exit.
            let ends_by = now + GRACE;
            self.leaving.push(Draining { id, ends_by });
            self.resume_serving("becket is shutting down", out);
        }
        match &self.serving {
            Some(ProcessStage::Starting(starting)) => out.push(Action::Kill(starting.id)),
            Some(process) => out.push(Action::Send(process.id(), command)),
            None => {}
        }
        self.finish(out);
    }

    /// Exits if no process is left.
    fn finish(&self, out: &mut Vec<Action>) {
        if let Some(ending) = self.ending
            && self.ids().next().is_none()
        {
            out.push(Action::Exit(ending.code));
        }
    }

    fn started(&mut self, now: Duration, id: u32, times: ProcessTimes) {
        if let Some(next) = self.next.as_mut().filter(|next| next.id == id) {
            next.late_at = Some(now + times.upgrade);
            next.times = times;
        } else if let Some(ProcessStage::Starting(starting)) = &mut self.serving
            && starting.id == id
        {
            starting.times = times;
        }
    }

    /// Sends `Serve` to the next process if it is loaded.
    fn serve_next(&mut self, out: &mut Vec<Action>) {
        if let Some(next) = &mut self.next
            && next.step == StartStep::Loaded
        {
            next.step = StartStep::MayServe;
            let id = next.id;
            out.push(Action::Send(id, Command::Serve(self.ledger.held())));
        }
    }

    fn begin_serving(
        &mut self,
        now: Duration,
        id: u32,
        times: ProcessTimes,
        out: &mut Vec<Action>,
    ) {
        self.serving = Some(ProcessStage::serving(id, now, times));
        self.has_served = true;
        out.extend([
            Action::Commit(id),
            Action::Watch,
            Action::Notify(ServiceNotice::Ready),
        ]);
        self.proceed(now, out);
    }

    /// Makes `next` the serving process. The old process drains.
    fn succeed(&mut self, now: Duration, id: u32, times: ProcessTimes, out: &mut Vec<Action>) {
        self.next = None;
        (self.failures, self.restart_at) = (0, None);
        self.is_outdated = true;
        self.restarts.upgrades += 1;
        tracing::info!(name: "upgraded", process = id, "upgrade complete: the new process serves clients");
        if let Some(ProcessStage::Serving(Serving { id, times, .. })) = self.serving.take() {
            out.push(Action::Send(id, Command::Leave));
            let ends_by = now + times.drain + GRACE;
            self.leaving.push(Draining { id, ends_by });
        }
        self.begin_serving(now, id, times, out);
    }

    /// Ends a failed upgrade: the serving process continues, or is started again if it has died.
    fn give_up(&mut self, now: Duration, error: &str, out: &mut Vec<Action>) {
        let Some(next) = self.next.take() else {
            return;
        };
        out.push(Action::Discard(next.id));
        self.resume_serving(error, out);
        if self.serving.is_none() {
            self.restart_at = Some(now);
            return;
        }
        out.push(Action::Notify(ServiceNotice::UpgradeRefused));
        self.proceed(now, out);
    }

    /// Logs the failure of an upgrade, and sends `Resume`, after which the serving process accepts
    /// clients again.
    fn resume_serving(&mut self, reason: &str, out: &mut Vec<Action>) {
        for error in reason.lines() {
            tracing::error!(name: "upgrade-failed", "upgrade failed, nothing changed: {error}");
        }
        let Some(serving) = self.serves_mut() else {
            return;
        };
        serving.yields = false;
        let id = serving.id;
        self.ledger.remove(id);
        let resume = Command::Resume(reason.to_owned(), self.ledger.held());
        out.push(Action::Send(id, resume));
    }

    fn broken(&mut self, id: u32, fault: &str, out: &mut Vec<Action>) {
        tracing::error!(
            name: "protocol-violation",
            process = id,
            error = fault,
            "process violated the control protocol; killing it"
        );
        out.push(Action::Kill(id));
        if let Some(next) = self.next.as_mut().filter(|next| next.id == id) {
            let reason = || format!("the new process cannot replace a running one: {fault}");
            next.reason.get_or_insert_with(reason);
        }
    }

    fn start_serving(&mut self, out: &mut Vec<Action>) {
        let process = self.new_id();
        self.serving = Some(ProcessStage::Starting(Starting::new(process)));
        self.pending.reload = false;
        out.push(Action::Start {
            process,
            is_new: false,
            replaces: None,
        });
    }

    fn new_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    /// Carries out queued requests if the serving process has no request in progress. Upgrades come
    /// first, so frequent reloads cannot delay them.
    fn proceed(&mut self, now: Duration, out: &mut Vec<Action>) {
        if self.ending.is_some() {
            return;
        }
        if let Some(id) = self.replaceable().map(|serving| serving.id)
            && std::mem::take(&mut self.pending.upgrade)
        {
            let process = self.new_id();
            self.next = Some(Starting::new(process));
            let start = Action::Start {
                process,
                is_new: true,
                replaces: Some(id),
            };
            out.extend([Action::Notify(ServiceNotice::Reloading), start]);
            return;
        }
        let Some(serving) = self.free() else {
            return;
        };
        let (id, is_renewing, times) = (serving.id, serving.is_renewing, serving.times);
        if self.is_outdated {
            // Execute the newer program before any reload. The new supervisor then carries out the
            // pending requests.
            if !is_renewing {
                out.push(Action::Replace);
            }
        } else if std::mem::take(&mut self.pending.reload) {
            let late_at = Some(now + LATE);
            if let Some(serving) = self.serves_mut() {
                serving.reload = Some(Reload { times, late_at });
            }
            out.extend([Action::Notify(ServiceNotice::Reloading), Action::Reload(id)]);
        } else if !is_renewing && std::mem::take(&mut self.pending.renew) {
            if let Some(serving) = self.serves_mut() {
                serving.is_renewing = true;
            }
            out.push(Action::Renew(id));
        }
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Action>) {
        if self.restart_at.is_some_and(|at| at <= now) {
            self.restart_at = None;
            self.start_serving(out);
        }
        let is_over = |at: &mut Option<Duration>| at.take_if(|at| *at <= now).is_some();
        if let Some(ProcessStage::Serving(serving)) = &mut self.serving
            && let Some(reload) = &mut serving.reload
            && is_over(&mut reload.late_at)
        {
            let process = serving.id;
            tracing::error!(
                name: "reload-timeout",
                process,
                "no answer to the reload request; the serving process continues with the previous configuration"
            );
            out.push(Action::Notify(ServiceNotice::ReloadLate));
        }
        if let Some(starting) = &mut self.next
            && is_over(&mut starting.late_at)
        {
            let reason = match starting.step {
                StartStep::Loading => "the new process made no progress within timeouts.upgrade",
                StartStep::Loaded => {
                    "the old process did not stop accepting within timeouts.upgrade"
                }
                StartStep::MayServe => {
                    "the new process did not begin to serve within timeouts.upgrade"
                }
            };
            starting.reason.get_or_insert_with(|| reason.to_owned());
            out.push(Action::Kill(starting.id));
        }
        let kill = |process: u32, ends_by: &mut Duration, out: &mut Vec<Action>| {
            if *ends_by <= now {
                tracing::error!(name: "process-exit-timeout", process, "process did not exit in time; killing it");
                *ends_by = now + GRACE;
                out.push(Action::Kill(process));
            }
        };
        for process in &mut self.leaving {
            kill(process.id, &mut process.ends_by, out);
        }
        if let (Some(ending), Some(process)) = (&mut self.ending, &self.serving) {
            kill(process.id(), &mut ending.ends_by, out);
        }
    }
}

const NO_FAULT: u8 = 0;
const FAILED: u8 = 1;
/// Exit code after a drain that the admin pages requested. A service manager that restarts failed
/// services starts becket again, because the code is not 0.
pub(crate) const ASKED_BY_PROCESS: u8 = 4;
/// Time limit for the exit of a process, added to the drain time.
const GRACE: Duration = Duration::from_secs(10);
/// Serving time after which the death of a process does not count as early.
const LONG: Duration = Duration::from_secs(60);
/// Maximum number of consecutive early deaths. The restart after the first death is immediate,
/// later restarts follow after 2, 6, 14 and 30 s.
const MOST_FAILURES: u32 = 5;

#[cfg(test)]
mod tests;
