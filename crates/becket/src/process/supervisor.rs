//! The supervisor's decisions, without a process, a socket or a clock: [`Supervisor::handle`] takes an [`Input`] and returns
//! [`Output`]s for [`run`](super::run) to carry out.
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
//! Invariants, which the tests hold it to: one process accepts at most; as long as a process serves and no upgrade is between Yield and
//! Serving, one does; each process that was started ends; each upgrade and reload has one outcome.
//!
//! A process is not trusted. One that reports what does not fit its stage is killed, and what it is owed is decided from the stage.

use std::time::Duration;

use becket_proto::limits::{Counts, Ledger};

use super::protocol::{Command, Event, Restarts, Times};

/// What has happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// A signal asks for this: `Reload`, `Upgrade`, `Reopen`, `Drain` or `Stop`.
    Asked(Command),
    /// A process reported this.
    Event(u32, Event),
    /// A process was started with a configuration of these times, or not.
    Started(u32, Result<Times, String>),
    /// A process was sent a configuration to load.
    Offered(u32, Times),
    /// A process has ended.
    Exited(u32, Ended),
    /// A process broke the protocol.
    Broken(u32, String),
    /// Files that the supervisor watches have changed.
    FilesChanged,
    /// This process could not become the new program.
    NotReplaced(String),
    /// Time has passed.
    Tick,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Exit code; absent where a signal ended the process.
    pub(crate) code: Option<u8>,
    /// As people read it.
    pub(crate) text: String,
}

/// What is to be done, in this order.
#[derive(Debug)]
pub(crate) enum Output {
    /// Start a process. `is_new`: the program as it is now, otherwise the one that this process is. Answered by [`Input::Started`].
    Start {
        process: u32,
        is_new: bool,
        /// The process that is to send its state.
        replaces: Option<u32>,
    },
    /// Have a process load the configuration as it is now. Answered by [`Input::Offered`].
    Reload(u32),
    /// Have a process look for changes in files.
    Renew(u32),
    /// Send a command.
    Send(u32, Command),
    /// Send [`Command::Yield`] for the sake of the second process.
    Yield(u32, u32),
    /// Files may have changed: look when they have settled.
    Watch,
    /// A process serves by the configuration that it was last offered: keep its sockets, drop the others.
    Commit(u32),
    /// A configuration is not used: drop what was opened for it.
    Discard(u32),
    /// The service ends: drop all sockets.
    Release,
    Kill(u32),
    Notify(Notice),
    /// Become the program of the serving process.
    Replace,
    /// End with this exit code.
    Exit(u8),
}

/// What the service manager is to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Ready,
    ReloadRefused,
    ReloadLate,
    UpgradeRefused,
    Reloading,
    Stopping,
    Alive,
}

/// One process.
#[derive(Clone, Debug)]
struct Process {
    id: u32,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Starting {
        step: Step,
        /// When it is given up, counted from the last sign of progress; absent for a process that replaces none.
        late_at: Option<Duration>,
        times: Option<Times>,
        /// What it reported as the reason that it does not start.
        reason: Option<String>,
    },
    Serving {
        since: Duration,
        times: Times,
        reload: Option<Reload>,
        is_renewing: bool,
        /// It was told to yield.
        yields: bool,
    },
    Draining {
        ends_by: Duration,
    },
}

/// How far a process is that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Loading,
    /// It could serve.
    Loaded,
    /// It was told to serve.
    Told,
}

/// A reload on its way.
#[derive(Clone, Debug)]
struct Reload {
    times: Option<Times>,
    /// When to report that there is no answer; absent once that was reported.
    late_at: Option<Duration>,
}

/// What was asked for and has to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) upgrade: bool,
    pub(crate) reload: bool,
    pub(crate) renew: bool,
}

/// The service is ending.
#[derive(Clone, Copy, Debug)]
struct Ending {
    /// When the serving process is killed.
    ends_by: Duration,
    code: u8,
}

/// Which processes there are, and what is to become of them.
#[derive(Debug, Default)]
pub(crate) struct Supervisor {
    serving: Option<Process>,
    next: Option<Process>,
    leaving: Vec<Process>,
    ledger: Ledger,
    pending: Pending,
    ending: Option<Ending>,
    restart_at: Option<Duration>,
    /// Processes that died early, in a row.
    failures: u32,
    has_served: bool,
    /// The serving process is of another program than this one.
    is_outdated: bool,
    last_id: u32,
    restarts: Restarts,
}

/// What another program needs to continue.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Standing {
    pub(crate) serving: u32,
    pub(crate) times: Times,
    /// Process, and how long it may still take to end.
    pub(crate) leaving: Vec<(u32, Duration)>,
    pub(crate) held: Vec<(u32, Counts)>,
    pub(crate) reload: bool,
    pub(crate) renew: bool,
    pub(crate) last_id: u32,
    pub(crate) restarts: Restarts,
}

impl Supervisor {
    /// Starts the first process.
    pub(crate) fn begin(&mut self) -> Vec<Output> {
        let mut out = Vec::new();
        self.start_serving(&mut out);
        out
    }

    /// Continues where the program before this one was.
    pub(crate) fn resume(standing: Standing, now: Duration) -> (Self, Vec<Output>) {
        let draining = |(id, left): (u32, Duration)| Process {
            id,
            stage: Stage::Draining {
                ends_by: now + left,
            },
        };
        let mut ledger = Ledger::default();
        for (process, held) in standing.held {
            ledger.set(process, held);
        }
        let supervisor = Self {
            serving: Some(Process {
                id: standing.serving,
                stage: Stage::serving(now, standing.times),
            }),
            leaving: standing.leaving.into_iter().map(draining).collect(),
            ledger,
            pending: Pending {
                upgrade: false,
                reload: standing.reload,
                renew: standing.renew,
            },
            has_served: true,
            last_id: standing.last_id,
            restarts: standing.restarts,
            ..Self::default()
        };
        (
            supervisor,
            vec![Output::Watch, Output::Notify(Notice::Ready)],
        )
    }

    /// Starts again after nothing could be carried over: processes of the program before this one may still hold the addresses.
    pub(crate) fn recover(&mut self) -> Vec<Output> {
        self.has_served = true;
        self.begin()
    }

    /// What to carry over to another program. Absent while something is under way.
    pub(crate) fn standing(&self, now: Duration) -> Option<Standing> {
        let serving = self.serving.as_ref().filter(|_| self.is_idle())?;
        let Stage::Serving { times, .. } = serving.stage else {
            return None;
        };
        let left = |process: &Process| match process.stage {
            Stage::Draining { ends_by } => (process.id, ends_by.saturating_sub(now)),
            _ => (process.id, Duration::ZERO),
        };
        let rows = self.ledger.rows().iter();
        Some(Standing {
            serving: serving.id,
            times,
            leaving: self.leaving.iter().map(left).collect(),
            held: rows
                .map(|(process, held)| (*process, held.clone()))
                .collect(),
            reload: self.pending.reload,
            renew: self.pending.renew,
            last_id: self.last_id,
            restarts: self.restarts,
        })
    }

    pub(crate) fn restarts(&self) -> Restarts {
        self.restarts
    }

    /// The process that serves or starts to.
    pub(crate) fn serving(&self) -> Option<u32> {
        self.serving.as_ref().map(|process| process.id)
    }

    /// When [`Input::Tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let stages = self.serving.iter().chain(&self.next).chain(&self.leaving);
        let stages = stages.filter_map(|process| match &process.stage {
            Stage::Starting { late_at, .. } => *late_at,
            Stage::Serving { reload, .. } => reload.as_ref()?.late_at,
            Stage::Draining { ends_by } => Some(*ends_by),
        });
        let ending = self.ending.filter(|_| self.serving.is_some());
        let ending = ending.map(|ending| ending.ends_by);
        stages.chain(ending).chain(self.restart_at).min()
    }

    /// Decides what to do.
    pub(crate) fn handle(&mut self, now: Duration, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Asked(command) => self.asked(now, command, NO_FAULT, &mut out),
            Input::Event(process, event) => self.event(now, process, event, &mut out),
            Input::Started(process, Ok(times)) => self.started(now, process, times),
            Input::Started(process, Err(text)) => {
                tracing::error!(error = text, "cannot start a process");
                self.exited(now, process, &Ended { code: None, text }, &mut out);
            }
            Input::Offered(process, times) => self.offered(process, times),
            Input::Exited(process, ended) => self.exited(now, process, &ended, &mut out),
            Input::Broken(process, fault) => self.broken(process, &fault, &mut out),
            Input::FilesChanged => {
                self.pending.renew = true;
                self.proceed(now, &mut out);
            }
            Input::NotReplaced(error) => {
                tracing::error!(
                    error,
                    "the supervisor remains the previous program; the new process serves"
                );
                self.is_outdated = false;
                out.push(Output::Notify(Notice::Ready));
                self.proceed(now, &mut out);
            }
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    fn asked(&mut self, now: Duration, command: Command, code: u8, out: &mut Vec<Output>) {
        match command {
            Command::Reopen => {
                let all = self.serving.iter().chain(&self.next).chain(&self.leaving);
                out.extend(all.map(|process| Output::Send(process.id, Command::Reopen)));
            }
            Command::Drain => self.drain(now, code, out),
            Command::Stop => {
                self.stop_leaving(out);
                self.end(now, Duration::ZERO, code, Command::Stop, out);
            }
            _ if self.ending.is_some() => {}
            Command::Upgrade => {
                self.pending.upgrade = true;
                self.proceed(now, out);
            }
            Command::Reload(_) => {
                if let Some(Stage::Serving {
                    reload: Some(reload),
                    ..
                }) = self.serving_stage()
                    && reload.late_at.is_none()
                {
                    tracing::warn!("reload postponed: the previous reload has not been answered");
                }
                self.pending.reload = true;
                self.proceed(now, out);
            }
            _ => {}
        }
    }

    /// The first request lets connections finish; the second one cuts them off.
    fn drain(&mut self, now: Duration, code: u8, out: &mut Vec<Output>) {
        let mut within = Duration::ZERO;
        if self.ending.is_some() {
            self.stop_leaving(out);
        } else if let Some(Stage::Serving { times, .. }) = self.serving_stage() {
            within = times.drain;
        }
        self.end(now, within, code, Command::Drain, out);
    }

    fn stop_leaving(&self, out: &mut Vec<Output>) {
        let leaving = self.leaving.iter();
        out.extend(leaving.map(|process| Output::Send(process.id, Command::Stop)));
    }

    fn end(
        &mut self,
        now: Duration,
        within: Duration,
        code: u8,
        command: Command,
        out: &mut Vec<Output>,
    ) {
        let ends_by = now + within + GRACE;
        let before = self.ending;
        // A signal's code counts more than that of a process.
        self.ending = Some(Ending {
            ends_by: before.map_or(ends_by, |before| before.ends_by.min(ends_by)),
            code: before.map_or(code, |before| before.code.min(code)),
        });
        self.pending = Pending::default();
        self.restart_at = None;
        out.extend([Output::Release, Output::Notify(Notice::Stopping)]);
        if let Some(next) = self.next.take() {
            out.extend([Output::Kill(next.id), Output::Discard(next.id)]);
            // Its end is awaited like that of a process that leaves.
            self.leaving.push(Process {
                id: next.id,
                stage: Stage::Draining {
                    ends_by: now + GRACE,
                },
            });
            self.resume_serving("becket is ending", out);
        }
        match &self.serving {
            Some(Process {
                id,
                stage: Stage::Starting { .. },
            }) => out.push(Output::Kill(*id)),
            Some(process) => out.push(Output::Send(process.id, command)),
            None => {}
        }
        self.finish(out);
    }

    /// Ends where no process is left.
    fn finish(&self, out: &mut Vec<Output>) {
        if let Some(ending) = self.ending
            && self.serving.is_none()
            && self.next.is_none()
            && self.leaving.is_empty()
        {
            out.push(Output::Exit(ending.code));
        }
    }

    fn started(&mut self, now: Duration, id: u32, started: Times) {
        let is_next = self.next.as_ref().is_some_and(|next| next.id == id);
        let process = self
            .serving
            .iter_mut()
            .chain(&mut self.next)
            .find(|it| it.id == id);
        if let Some(Process {
            stage: Stage::Starting { late_at, times, .. },
            ..
        }) = process
        {
            *late_at = is_next.then(|| now + started.upgrade);
            *times = Some(started);
        }
    }

    fn offered(&mut self, id: u32, offered: Times) {
        if let Some(Process {
            id: serving,
            stage:
                Stage::Serving {
                    reload: Some(reload),
                    ..
                },
        }) = &mut self.serving
            && *serving == id
        {
            reload.times = Some(offered);
        }
    }

    fn event(&mut self, now: Duration, id: u32, event: Event, out: &mut Vec<Output>) {
        if self
            .serving
            .as_ref()
            .is_some_and(|process| process.id == id)
        {
            self.serving_event(now, id, event, out);
        } else if self.next.as_ref().is_some_and(|process| process.id == id) {
            self.next_event(now, id, event, out);
        } else if self.leaving.iter().any(|process| process.id == id) {
            self.leaving_event(id, event, out);
        }
    }

    fn serving_event(&mut self, now: Duration, id: u32, event: Event, out: &mut Vec<Output>) {
        let held = self.ledger.held();
        let Some(Process { stage, .. }) = &mut self.serving else {
            return;
        };
        match (event, stage) {
            (Event::Loading | Event::Alive, Stage::Starting { .. }) => {}
            (Event::Loading, Stage::Serving { reload, .. }) => {
                if let Some(Reload {
                    late_at: Some(late_at),
                    ..
                }) = reload
                {
                    *late_at = now + LATE;
                }
            }
            (Event::Failed(text), Stage::Starting { reason, .. }) => *reason = Some(text),
            (
                Event::Ready,
                Stage::Starting {
                    step: step @ Step::Loading,
                    ..
                },
            ) => {
                *step = Step::Told;
                out.push(Output::Send(id, Command::Serve(held)));
            }
            (
                Event::Serving,
                Stage::Starting {
                    step: Step::Told,
                    times,
                    ..
                },
            ) => {
                let times = times.unwrap_or(NO_TIMES);
                self.serves(now, id, times, out);
                self.proceed(now, out);
            }
            (Event::Alive, Stage::Serving { .. }) => out.push(Output::Notify(Notice::Alive)),
            (
                event @ (Event::Reloaded | Event::Refused),
                Stage::Serving {
                    reload: reload @ Some(_),
                    times,
                    ..
                },
            ) => {
                let offered = reload.take().and_then(|reload| reload.times);
                if event == Event::Reloaded {
                    *times = offered.unwrap_or(*times);
                    out.extend([
                        Output::Commit(id),
                        Output::Watch,
                        Output::Notify(Notice::Ready),
                    ]);
                } else {
                    out.extend([Output::Discard(id), Output::Notify(Notice::ReloadRefused)]);
                }
                self.proceed(now, out);
            }
            (Event::Changed, Stage::Serving { .. }) => out.push(Output::Watch),
            (
                Event::Renewed,
                Stage::Serving {
                    is_renewing: is_renewing @ true,
                    ..
                },
            ) => {
                *is_renewing = false;
                self.proceed(now, out);
            }
            (Event::Yielded(next, held), Stage::Serving { yields: true, .. })
                if self.next.as_ref().is_some_and(|process| process.id == next) =>
            {
                if !self.ledger.rows().contains_key(&id) {
                    self.ledger.set(id, held);
                    self.serve_next(out);
                }
            }
            (Event::Granted(to, counts), Stage::Serving { .. }) => {
                if self.ledger.grant(to, &counts) {
                    out.push(Output::Send(to, Command::Granted(counts)));
                } else {
                    out.push(Output::Send(id, Command::Released(counts)));
                }
            }
            // A process that resumed may have sent these before.
            (Event::Released(_) | Event::Wanted(_) | Event::Yielded(..), Stage::Serving { .. }) => {
            }
            (Event::AskReload, Stage::Serving { .. }) => {
                self.asked(now, Command::Reload(None), NO_FAULT, out);
            }
            (Event::AskUpgrade, Stage::Serving { .. }) => {
                self.asked(now, Command::Upgrade, NO_FAULT, out);
            }
            // A second request would cut connections off.
            (Event::AskDrain, Stage::Serving { .. }) if self.ending.is_none() => {
                self.asked(now, Command::Drain, ASKED_BY_PROCESS, out);
            }
            (_, Stage::Serving { .. }) if self.ending.is_some() => {}
            (event, _) => self.broken(id, &format!("unexpected event {}", name(&event)), out),
        }
    }

    fn next_event(&mut self, now: Duration, id: u32, event: Event, out: &mut Vec<Output>) {
        let Some(Process {
            stage:
                Stage::Starting {
                    step,
                    late_at,
                    times,
                    reason,
                },
            ..
        }) = &mut self.next
        else {
            return;
        };
        let times = times.unwrap_or(NO_TIMES);
        match (event, *step) {
            (Event::Loading, Step::Loading) => *late_at = Some(now + times.upgrade),
            (Event::Loading | Event::Alive, _) => {}
            (Event::Failed(text), _) => *reason = Some(text),
            (Event::Ready, Step::Loading) => {
                *step = Step::Loaded;
                *late_at = Some(now + times.upgrade);
                match &mut self.serving {
                    Some(Process {
                        id: old,
                        stage: Stage::Serving { yields, .. },
                    }) => {
                        *yields = true;
                        out.push(Output::Yield(*old, id));
                    }
                    _ => self.serve_next(out),
                }
            }
            (Event::Serving, Step::Told) => self.succeed(now, id, times, out),
            (event, _) => self.broken(id, &format!("unexpected event {}", name(&event)), out),
        }
    }

    fn leaving_event(&mut self, id: u32, event: Event, out: &mut Vec<Output>) {
        let Some(serving) = self.accepting() else {
            if let Event::Released(counts) = event {
                self.ledger.release(id, &counts);
            }
            return;
        };
        match event {
            Event::Released(counts) => {
                let counts = self.ledger.release(id, &counts);
                out.push(Output::Send(serving, Command::Released(counts)));
            }
            Event::Wanted(counts) => out.push(Output::Send(serving, Command::Wanted(id, counts))),
            // It was on its way when the process was told to leave, or does not matter any more.
            _ => {}
        }
    }

    /// The process that was told to serve last: changes of the ledger go to it.
    fn accepting(&self) -> Option<u32> {
        let is_told = |process: &&Process| match process.stage {
            Stage::Starting { step, .. } => step == Step::Told,
            Stage::Serving { yields, .. } => !yields,
            Stage::Draining { .. } => false,
        };
        let next = self.next.as_ref().filter(is_told);
        next.or(self.serving.as_ref().filter(is_told))
            .map(|process| process.id)
    }

    fn serve_next(&mut self, out: &mut Vec<Output>) {
        if let Some(Process {
            id,
            stage:
                Stage::Starting {
                    step: step @ Step::Loaded,
                    ..
                },
        }) = &mut self.next
        {
            *step = Step::Told;
            tracing::info!(
                process = *id,
                "the old process does not accept; the new one may serve"
            );
            out.push(Output::Send(*id, Command::Serve(self.ledger.held())));
        }
    }

    /// A process serves now.
    fn serves(&mut self, now: Duration, id: u32, times: Times, out: &mut Vec<Output>) {
        self.serving = Some(Process {
            id,
            stage: Stage::serving(now, times),
        });
        self.has_served = true;
        out.extend([
            Output::Commit(id),
            Output::Watch,
            Output::Notify(Notice::Ready),
        ]);
    }

    /// The next process serves: the old one leaves.
    fn succeed(&mut self, now: Duration, id: u32, times: Times, out: &mut Vec<Output>) {
        self.next = None;
        (self.failures, self.restart_at) = (0, None);
        self.is_outdated = true;
        self.restarts.upgrades += 1;
        tracing::info!(process = id, "upgraded: the new process serves");
        if let Some(Process {
            id: old,
            stage: Stage::Serving { times, .. },
        }) = self.serving.take()
        {
            out.push(Output::Send(old, Command::Leave));
            let ends_by = now + times.drain + GRACE;
            self.leaving.push(Process {
                id: old,
                stage: Stage::Draining { ends_by },
            });
        }
        self.serves(now, id, times, out);
        self.proceed(now, out);
    }

    /// There is no next process: the serving one continues, or another is started.
    fn give_up(&mut self, now: Duration, reason: &str, out: &mut Vec<Output>) {
        let Some(next) = self.next.take() else {
            return;
        };
        out.push(Output::Discard(next.id));
        tracing::error!("upgrade failed, nothing changed: {reason}");
        if self.serving.is_none() {
            self.restart_at = Some(now);
            return;
        }
        self.resume_serving(reason, out);
        out.push(Output::Notify(Notice::UpgradeRefused));
        self.proceed(now, out);
    }

    fn resume_serving(&mut self, reason: &str, out: &mut Vec<Output>) {
        if let Some(Process {
            id,
            stage: Stage::Serving { yields, .. },
        }) = &mut self.serving
        {
            *yields = false;
            self.ledger.remove(*id);
            let resume = Command::Resume(reason.to_owned(), self.ledger.held());
            out.push(Output::Send(*id, resume));
        }
    }

    fn broken(&mut self, id: u32, fault: &str, out: &mut Vec<Output>) {
        tracing::error!(
            process = id,
            fault,
            "process violated the control protocol and is killed"
        );
        out.push(Output::Kill(id));
        if let Some(Process {
            id: next,
            stage: Stage::Starting { reason, .. },
        }) = &mut self.next
            && *next == id
        {
            reason.get_or_insert_with(|| {
                format!("the new process cannot replace a running one: {fault}")
            });
        }
    }

    fn exited(&mut self, now: Duration, id: u32, ended: &Ended, out: &mut Vec<Output>) {
        if let Some(next) = self.next.as_ref().filter(|next| next.id == id) {
            let mut text = format!("the new process ended before it served ({})", ended.text);
            if let Stage::Starting {
                reason: Some(reason),
                ..
            } = &next.stage
            {
                text = format!("{reason} ({})", ended.text);
            }
            return self.give_up(now, &text, out);
        }
        let row = self.ledger.remove(id);
        if self
            .serving
            .as_ref()
            .is_some_and(|process| process.id == id)
        {
            self.serving_exited(now, ended, out);
        } else {
            self.leaving.retain(|process| process.id != id);
            tracing::info!(
                process = id,
                how = ended.text,
                "a process that was replaced has ended"
            );
        }
        if let Some(accepting) = self.accepting() {
            out.push(Output::Send(accepting, Command::Released(row)));
            out.push(Output::Send(accepting, Command::Wanted(id, Counts::new())));
        }
        if self.serving.is_none() {
            self.serve_next(out);
        }
        self.finish(out);
    }

    fn serving_exited(&mut self, now: Duration, ended: &Ended, out: &mut Vec<Output>) {
        let Some(process) = self.serving.take() else {
            return;
        };
        out.push(Output::Discard(process.id));
        // A process that ends without being told to has failed, whatever its exit code.
        let failure = ended.code.filter(|code| *code != 0).unwrap_or(FAILED);
        if let Some(ending) = &mut self.ending {
            let was_serving = matches!(process.stage, Stage::Serving { .. });
            if was_serving && ending.code == NO_FAULT {
                ending.code = ended.code.unwrap_or(FAILED);
            }
            return;
        }
        let lived = match process.stage {
            Stage::Serving { since, .. } => now.saturating_sub(since),
            _ => Duration::ZERO,
        };
        self.failures = if lived < LONG { self.failures + 1 } else { 1 };
        if !self.has_served || self.failures > MOST_FAILURES {
            self.ending = Some(Ending {
                ends_by: now,
                code: failure,
            });
            out.push(Output::Release);
            return;
        }
        self.restarts.deaths += 1;
        tracing::error!(
            process = process.id,
            how = ended.text,
            restarts = self.restarts.deaths,
            "the serving process died"
        );
        if self.next.is_some() {
            return;
        }
        let pause = Duration::from_secs((1 << self.failures) - 2);
        self.restart_at = Some(now + pause);
        // At once where there is no pause, so that no client waits for a timer.
        self.tick(now, out);
    }

    fn start_serving(&mut self, out: &mut Vec<Output>) {
        let id = self.new_id();
        self.serving = Some(Process {
            id,
            stage: Stage::starting(),
        });
        self.pending.reload = false;
        out.push(Output::Start {
            process: id,
            is_new: false,
            replaces: None,
        });
    }

    fn new_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    /// Does what was asked for as soon as the serving process is free: an upgrade first, however often reloads are asked for.
    fn proceed(&mut self, now: Duration, out: &mut Vec<Output>) {
        let is_loading = !self.is_free();
        let Some(Process {
            id,
            stage:
                Stage::Serving {
                    reload,
                    is_renewing,
                    ..
                },
        }) = &mut self.serving
        else {
            return;
        };
        let id = *id;
        if is_loading || self.ending.is_some() {
            return;
        }
        if std::mem::take(&mut self.pending.upgrade) {
            out.push(Output::Notify(Notice::Reloading));
            let process = self.new_id();
            self.next = Some(Process {
                id: process,
                stage: Stage::starting(),
            });
            out.push(Output::Start {
                process,
                is_new: true,
                replaces: Some(id),
            });
        } else if self.is_outdated {
            // The program that this process becomes does the rest.
            if !*is_renewing {
                out.push(Output::Replace);
            }
        } else if std::mem::take(&mut self.pending.reload) {
            *reload = Some(Reload {
                times: None,
                late_at: Some(now + LATE),
            });
            out.extend([Output::Notify(Notice::Reloading), Output::Reload(id)]);
        } else if !*is_renewing && std::mem::take(&mut self.pending.renew) {
            *is_renewing = true;
            out.push(Output::Renew(id));
        }
    }

    /// Whether the serving process serves and has nothing to load.
    fn is_free(&self) -> bool {
        self.next.is_none()
            && matches!(
                self.serving_stage(),
                Some(Stage::Serving { reload: None, .. })
            )
    }

    /// Whether nothing is under way that another program could not continue.
    fn is_idle(&self) -> bool {
        let is_renewing = matches!(
            self.serving_stage(),
            Some(Stage::Serving {
                is_renewing: true,
                ..
            })
        );
        self.is_free() && self.ending.is_none() && !is_renewing && !self.pending.upgrade
    }

    fn serving_stage(&self) -> Option<&Stage> {
        self.serving.as_ref().map(|process| &process.stage)
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        if self.restart_at.is_some_and(|at| at <= now) {
            self.restart_at = None;
            self.start_serving(out);
        }
        if let Some(Process {
            id,
            stage:
                Stage::Serving {
                    reload: Some(reload),
                    ..
                },
        }) = &mut self.serving
            && reload.late_at.is_some_and(|at| at <= now)
        {
            reload.late_at = None;
            tracing::error!(
                process = *id,
                "reload not answered; the serving process continues with the previous configuration"
            );
            out.push(Output::Notify(Notice::ReloadLate));
        }
        if let Some(Process {
            id,
            stage:
                Stage::Starting {
                    late_at: late_at @ Some(_),
                    reason,
                    ..
                },
        }) = &mut self.next
            && late_at.is_some_and(|at| at <= now)
        {
            *late_at = None;
            reason.get_or_insert_with(|| {
                "the new process made no progress within timeouts.upgrade".to_owned()
            });
            out.push(Output::Kill(*id));
        }
        for process in &mut self.leaving {
            if let Stage::Draining { ends_by } = &mut process.stage
                && *ends_by <= now
            {
                tracing::error!(
                    process = process.id,
                    "a process that was replaced has not ended in time and is killed"
                );
                *ends_by = now + GRACE;
                out.push(Output::Kill(process.id));
            }
        }
        if let (Some(ending), Some(process)) = (&mut self.ending, &self.serving)
            && ending.ends_by <= now
        {
            tracing::error!(
                process = process.id,
                "the serving process has not ended in time and is killed"
            );
            ending.ends_by = now + GRACE;
            out.push(Output::Kill(process.id));
        }
    }
}

impl Stage {
    fn starting() -> Self {
        Self::Starting {
            step: Step::Loading,
            late_at: None,
            times: None,
            reason: None,
        }
    }

    fn serving(since: Duration, times: Times) -> Self {
        Self::Serving {
            since,
            times,
            reload: None,
            is_renewing: false,
            yields: false,
        }
    }
}

/// The name of an event, without what it carries.
fn name(event: &Event) -> String {
    let text = format!("{event:?}");
    text.chars().take_while(char::is_ascii_alphabetic).collect()
}

const NO_TIMES: Times = Times {
    drain: Duration::ZERO,
    upgrade: Duration::from_secs(20),
};
const NO_FAULT: u8 = 0;
const FAILED: u8 = 1;
/// A drain that no signal asked for: a service manager that restarts failed services starts this one again.
pub(crate) const ASKED_BY_PROCESS: u8 = 4;
/// A reload without an answer for so long is reported. Files of a usual size take less than a second.
const LATE: Duration = Duration::from_secs(20);
/// What a process that is to end may take for that, in addition to the time of its connections.
const GRACE: Duration = Duration::from_secs(10);
/// A process that has served for so long did not die of its configuration.
const LONG: Duration = Duration::from_secs(60);
/// Processes in a row that may die early: the first is replaced at once, later ones after 2, 6, 14 and 30 s.
const MOST_FAILURES: u32 = 5;

#[cfg(test)]
mod tests;
