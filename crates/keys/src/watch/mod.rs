//! Files that change are looked at by themselves: when, and by whom.
//!
//! A [`Watch`] is told by inotify of changes on the ways to files ([`places`]), waits until they settle ([`settling`]), and says
//! so. What to do then is its owner's business: control renews what it has of the files, a supervisor lists them
//! again. It has no thread: it asks what has changed four times a second, and reads a bounded number of changes
//! at a time. That is a system call each, in addition to the ten turns a second that either owner has anyway, and somebody who writes all day
//! costs no more.

mod places;
mod settling;

use std::io;
use std::time::Duration;

use becket_config::process::Process;
use tokio::time::{Instant, sleep_until};

pub use self::places::Places;
use self::settling::Settling;

/// Waits for changes. The default waits for ever.
#[derive(Debug, Default)]
pub struct Watch {
    places: Option<Places>,
    /// When changes are read, where there are places.
    reads_at: Option<Instant>,
    settling: Settling,
    /// When to look although nothing was told.
    polls_at: Option<Instant>,
    /// What times count from.
    origin: Option<Instant>,
    /// Why some files are not watched, where that is so.
    lacking: Option<String>,
}

impl Watch {
    /// Watches these from now on, in place of what it watched; changes that were noted are not forgotten. Where the system
    /// does not tell of changes, the files are looked at every minute. Returns how many folders are watched.
    pub fn over(&mut self, places: io::Result<Places>, keys: &Process) -> usize {
        let lacking = match &places {
            Ok(places) => places
                .error()
                .map(|(folder, error)| format!("{}: {error}", folder.display())),
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = lacking
            .as_ref()
            .filter(|it| self.lacking.as_ref() != Some(it))
        {
            tracing::warn!(error, "not watched: files are looked at every minute");
        }
        let now = Instant::now();
        let fallback = lacking.is_some().then_some(MINUTE);
        let interval = keys.watch_interval.into_iter().chain(fallback).min();
        self.polls_at = interval.map(|interval| now + interval);
        self.lacking = lacking;
        self.places = places.ok();
        self.reads_at = self.places.as_ref().map(|_| now + BETWEEN_READS);
        self.places.as_ref().map_or(0, Places::folders)
    }

    /// Watches nothing any more.
    pub fn stop(&mut self) {
        *self = Self::default();
    }

    /// Something has changed, or may have.
    pub fn note(&mut self) {
        let now = Instant::now();
        let origin = *self.origin.get_or_insert(now);
        self.settling.note(now.duration_since(origin));
    }

    /// Waits until something has changed and settled, or the time has come to look anyway. Nothing is lost when the future is
    /// dropped.
    pub async fn settled(&mut self) {
        loop {
            let due = self.settling.due_at();
            let due_at = due.and_then(|due| Some(self.origin? + due));
            let looks_at = due_at.into_iter().chain(self.polls_at).min();
            let next = looks_at.into_iter().chain(self.reads_at).min();
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
            if next == looks_at {
                self.settling.clear();
                // The owner watches anew when it has looked.
                self.polls_at = None;
                return;
            }
            self.read();
        }
    }

    fn read(&mut self) {
        let Some(places) = &self.places else {
            return;
        };
        self.reads_at = Some(Instant::now() + BETWEEN_READS);
        match places.changed() {
            Ok(true) => self.note(),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "files are not watched any more");
                (self.places, self.reads_at) = (None, None);
                self.note();
            }
        }
    }
}

/// Between two reads of changes.
const BETWEEN_READS: Duration = Duration::from_millis(250);
/// Where the system does not tell of changes.
const MINUTE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_needs_nobody_who_tells_of_changes() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        let keys = Process {
            watch_interval: Some(Duration::from_millis(1)),
            ..Process::default()
        };
        runtime.block_on(async {
            let mut watch = Watch::default();
            for places in [Places::of(&[]), Err(io::ErrorKind::Other.into())] {
                watch.over(places, &keys);
                watch.settled().await;
            }
            watch.note();
            watch.settled().await;
        });
    }
}
