//! Who gives the orders and is told how it goes: signals and the service manager, or the parent process.
//!
//! A process with a parent takes its orders from there alone, and ignores signals: a service manager may send them to all
//! processes of the service, and the parent passes them on.

use std::io;

use becket_sys::notify::{Notice, Notifier};
use becket_sys::process::Told;
use tokio::sync::mpsc::UnboundedReceiver;

use super::signals::{Signals, Wanted};
use crate::handover::link::{Link, Wish};
use crate::handover::{Handed, Reply};

/// Who gives the orders.
#[derive(Debug)]
pub struct Supervisor {
    /// Taken over also where a parent gives the orders.
    signals: Signals,
    parent: Option<(Link, UnboundedReceiver<Wish>)>,
    notifier: Option<Notifier>,
}

/// How it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It could serve, once the process that it replaces does not any more.
    Prepared,
    /// It serves.
    Ready,
    /// A reload has begun.
    Reloading,
    /// The reload was done.
    Loaded,
    /// The reload was refused.
    Refused,
    /// Files that only this process can read have changed.
    Changed,
    /// Files were looked at.
    Renewed,
    /// It drains.
    Stopping,
    /// It lives.
    Alive,
}

impl Supervisor {
    /// Begins to take orders.
    ///
    /// # Errors
    /// When there is no thread for those of a parent, or `NOTIFY_SOCKET` is not understood.
    pub(crate) fn new(signals: Signals, link: Option<Link>) -> io::Result<Self> {
        let restarts = link.as_ref().map(|link| link.past.restarts);
        if let Some(restarts) = restarts.filter(|it| *it > 0) {
            tracing::warn!(
                restarts,
                "started again: the process that served before died"
            );
        }
        let hear = |link: Link| link.listen().map(|wishes| (link, wishes));
        let parent = link.map(hear).transpose()?;
        let notifier = if parent.is_none() {
            Notifier::from_env()?
        } else {
            None
        };
        Ok(Self {
            signals,
            parent,
            notifier,
        })
    }

    /// Waits for the next order. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Wish {
        if let Some((_, wishes)) = &mut self.parent {
            match wishes.recv().await {
                Some(wish) => return wish,
                // The parent is gone, and that was said.
                None => std::future::pending().await,
            }
        }
        match self.signals.next().await {
            Wanted::Reload => Wish::Load(Handed::default()),
            Wanted::Reopen => Wish::Reopen,
            Wanted::Upgrade => Wish::NotUpgraded(NO_PARENT.to_owned()),
            Wanted::Drain => Wish::Drain,
            Wanted::Stop => Wish::Stop,
        }
    }

    /// Asks the parent for what a signal would have it do. Returns whether there is one.
    pub(crate) fn ask(&self, what: Told) -> bool {
        let Some((link, _)) = &self.parent else {
            return false;
        };
        link.say(match what {
            Told::Reload => Reply::AskReload,
            Told::Upgrade => Reply::AskUpgrade,
            Told::Drain => Reply::AskDrain,
        });
        true
    }

    /// Whether a parent process gives the orders.
    pub(crate) fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Says how it goes.
    pub(crate) fn tell(&self, progress: Progress) {
        if let Some((link, _)) = &self.parent {
            match progress {
                Progress::Prepared => link.say(Reply::Prepared),
                Progress::Ready => link.say(Reply::Ready),
                Progress::Loaded => link.say(Reply::Loaded),
                Progress::Refused => link.say(Reply::Refused),
                Progress::Changed => link.say(Reply::Changed),
                Progress::Renewed => link.say(Reply::Renewed),
                Progress::Alive => link.say(Reply::Alive),
                // It knows: both were its orders.
                Progress::Reloading | Progress::Stopping => {}
            }
        }
        if let Some(notifier) = &self.notifier {
            let notices: &[Notice<'_>] = match progress {
                Progress::Ready | Progress::Loaded => &[Notice::Ready, Notice::Status("serving")],
                Progress::Refused => &[Notice::Ready, Notice::Status(Notice::REFUSED)],
                Progress::Reloading => &[Notice::Reloading],
                Progress::Stopping => &[Notice::Stopping],
                Progress::Alive => &[Notice::Watchdog],
                // Only a child replaces another, and nobody else waits for it.
                Progress::Prepared | Progress::Changed | Progress::Renewed => &[],
            };
            if let Err(error) = notifier.send(notices) {
                tracing::debug!(%error, "service manager not told");
            }
        }
    }
}

/// Why a process without a parent is not replaced.
pub(crate) const NO_PARENT: &str =
    "there is no parent process that could start another; process.parent = true keeps one";
