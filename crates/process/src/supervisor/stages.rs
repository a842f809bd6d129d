//! The stages of a process: starting, serving, draining.

use std::time::Duration;

use crate::protocol::{Event, ProcessTimes};

/// A process that serves, or that starts while no other process serves.
#[derive(Clone, Debug)]
pub(super) enum ProcessStage {
    Starting(Starting),
    Serving(Serving),
}

#[derive(Clone, Debug)]
pub(super) struct Starting {
    pub(super) id: u32,
    pub(super) step: StartStep,
    /// Deadline of the current step, extended by progress; `None` if the process replaces no other
    /// process.
    pub(super) late_at: Option<Duration>,
    pub(super) times: ProcessTimes,
    pub(super) reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartStep {
    Loading,
    /// Ready to serve, waiting for `Serve`.
    Loaded,
    /// `Serve` was sent to the process.
    MayServe,
}

#[derive(Clone, Debug)]
pub(super) struct Serving {
    pub(super) id: u32,
    pub(super) since: Duration,
    pub(super) times: ProcessTimes,
    pub(super) reload: Option<Reload>,
    pub(super) is_renewing: bool,
    /// `true` after `Yield` was sent to the process.
    pub(super) yields: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Reload {
    pub(super) times: ProcessTimes,
    /// Deadline after which a missing answer is logged; `None` after that.
    pub(super) late_at: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(super) struct Draining {
    pub(super) id: u32,
    pub(super) ends_by: Duration,
}

impl ProcessStage {
    pub(super) fn serving(id: u32, since: Duration, times: ProcessTimes) -> Self {
        Self::Serving(Serving {
            id,
            since,
            times,
            reload: None,
            is_renewing: false,
            yields: false,
        })
    }

    pub(super) fn id(&self) -> u32 {
        match self {
            Self::Starting(Starting { id, .. }) | Self::Serving(Serving { id, .. }) => *id,
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Starting(starting) => starting.late_at,
            Self::Serving(serving) => serving.reload.as_ref()?.late_at,
        }
    }

    pub(super) fn may_accept(&self) -> bool {
        match self {
            Self::Starting(starting) => starting.step == StartStep::MayServe,
            Self::Serving(serving) => !serving.yields,
        }
    }
}

impl Starting {
    pub(super) fn new(id: u32) -> Self {
        Self {
            id,
            step: StartStep::Loading,
            late_at: None,
            times: NO_TIMES,
            reason: None,
        }
    }

    /// Consumes the events that any starting process may send. Returns all other events.
    pub(super) fn handle(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Loading | Event::Alive => None,
            Event::Failed(text) => {
                self.reason = Some(text);
                None
            }
            event => Some(event),
        }
    }
}

impl Serving {
    /// Extends the deadline of a reload that makes progress.
    pub(super) fn progress(&mut self, now: Duration) {
        if let Some(reload) = &mut self.reload
            && reload.late_at.is_some()
        {
            reload.late_at = Some(now + LATE);
        }
    }
}

const NO_TIMES: ProcessTimes = ProcessTimes {
    drain: Duration::ZERO,
    upgrade: Duration::from_secs(20),
};
/// Time after which an unanswered reload is reported. A usual reload takes less than a second.
pub(super) const LATE: Duration = Duration::from_secs(20);
