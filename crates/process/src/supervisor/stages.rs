//! The stages of a process: it starts, serves, and drains once it was replaced.

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
    /// Deadline, counted from the last sign of progress; `None` for a process that replaces no other.
    pub(super) late_at: Option<Duration>,
    pub(super) times: ProcessTimes,
    /// Reported reason of a failed start.
    pub(super) reason: Option<String>,
}

/// Progress of a process that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartStep {
    Loading,
    /// Loaded and ready to serve.
    Loaded,
    /// `Serve` was sent.
    MayServe,
}

#[derive(Clone, Debug)]
pub(super) struct Serving {
    pub(super) id: u32,
    pub(super) since: Duration,
    pub(super) times: ProcessTimes,
    pub(super) reload: Option<Reload>,
    pub(super) is_renewing: bool,
    /// `Yield` was sent.
    pub(super) yields: bool,
}

/// A reload on its way.
#[derive(Clone, Debug)]
pub(super) struct Reload {
    pub(super) times: ProcessTimes,
    /// Deadline after which a missing answer is logged; `None` once it was.
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

    /// Returns the time at which the supervisor must act.
    pub(super) fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Starting(starting) => starting.late_at,
            Self::Serving(serving) => serving.reload.as_ref()?.late_at,
        }
    }

    /// Returns `true` if `Serve` was the last command about accepting.
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

    /// Handles events that are common to processes that start. Returns other events.
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
/// Time after which a reload without an answer is reported. Files of a usual size take less than a second.
pub(super) const LATE: Duration = Duration::from_secs(20);
