//! The stages of a process.

use std::time::Duration;

use super::{Event, LATE, NO_TIMES, ProcessTimes};

/// A process in its stage.
#[derive(Clone, Debug)]
pub(super) enum Process {
    Starting(Starting),
    Serving(Serving),
    Draining(Draining),
}

#[derive(Clone, Debug)]
pub(super) struct Starting {
    pub(super) id: u32,
    pub(super) step: Step,
    /// Deadline, counted from the last sign of progress; `None` for a process that replaces no other.
    pub(super) late_at: Option<Duration>,
    pub(super) times: ProcessTimes,
    /// Reported reason of a failed start.
    pub(super) reason: Option<String>,
}

/// Progress of a process that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
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

impl Process {
    pub(super) fn starting(id: u32) -> Self {
        Self::Starting(Starting {
            id,
            step: Step::Loading,
            late_at: None,
            times: NO_TIMES,
            reason: None,
        })
    }

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
            Self::Starting(Starting { id, .. })
            | Self::Serving(Serving { id, .. })
            | Self::Draining(Draining { id, .. }) => *id,
        }
    }

    /// Returns the time at which the supervisor must act.
    pub(super) fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Starting(starting) => starting.late_at,
            Self::Serving(serving) => serving.reload.as_ref()?.late_at,
            Self::Draining(draining) => Some(draining.ends_by),
        }
    }

    /// Returns `true` if `Serve` was the last command about accepting.
    pub(super) fn is_told(&self) -> bool {
        match self {
            Self::Starting(starting) => starting.step == Step::MayServe,
            Self::Serving(serving) => !serving.yields,
            Self::Draining(_) => false,
        }
    }
}

impl Starting {
    /// Handles what any process reports that starts. Returns other events.
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
    /// A reload takes its time, and is not late for it.
    pub(super) fn progress(&mut self, now: Duration) {
        if let Some(reload) = &mut self.reload
            && reload.late_at.is_some()
        {
            reload.late_at = Some(now + LATE);
        }
    }
}
