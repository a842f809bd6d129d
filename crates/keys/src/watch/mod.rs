//! Watches files for changes.
//!
//! A [`Watch`] learns from inotify about changes on the ways to files ([`places`]) and waits until they settle. Its owner then acts: control renews
//! what it has of the files, a supervisor lists them again. It has no thread: it reads a bounded number of changes four times a second, which is one
//! system call each, however much is written.

mod places;

use std::time::Duration;

use becket_config::process::Process;
use tokio::time::{Instant, sleep_until};

pub use self::places::WatchedPlaces;

/// The default waits forever.
#[derive(Debug, Default)]
pub struct Watch {
    places: Option<WatchedPlaces>,
    /// Time of the next read of changes.
    reads_at: Option<Instant>,
    /// Time of the first and of the last change since the owner looked.
    changed: Option<(Instant, Instant)>,
    /// Time of a look without any change.
    polls_at: Option<Instant>,
    /// Why some files are not watched.
    fault: Option<String>,
}

impl Watch {
    /// Replaces the watched places. Changes that were noted stay. If the system does not report all changes, the owner looks every minute.
    /// Returns the number of watched folders.
    pub fn replace(&mut self, places: WatchedPlaces, keys: &Process) -> usize {
        let now = Instant::now();
        let fault = places.fault().map(str::to_owned);
        if let Some(error) = fault.as_ref().filter(|_| self.fault != fault) {
            tracing::warn!(error, "not watched: files are looked at every minute");
        }
        let fallback = fault.is_some().then_some(MINUTE);
        let interval = keys.watch_interval.into_iter().chain(fallback).min();
        self.polls_at = interval.map(|interval| now + interval);
        self.reads_at = Some(now + BETWEEN_READS);
        self.fault = fault;
        self.places.insert(places).folders()
    }

    /// Watches nothing any more.
    pub fn stop(&mut self) {
        *self = Self::default();
    }

    /// Notes a change.
    pub fn note(&mut self) {
        let now = Instant::now();
        let first = self.changed.map_or(now, |(first, _)| first);
        self.changed = Some((first, now));
    }

    /// Waits until a change has settled, or until the next poll. Cancel safe.
    pub async fn settled(&mut self) {
        loop {
            let settles_at = self.changed.map(settles_at);
            let looks_at = settles_at.into_iter().chain(self.polls_at).min();
            let next = looks_at.into_iter().chain(self.reads_at).min();
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
            if next == looks_at {
                // The owner replaces the places when it looks.
                (self.changed, self.polls_at) = (None, None);
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

/// Changes settle after a quiet second, or ten seconds after the first.
fn settles_at((first, last): (Instant, Instant)) -> Instant {
    (last + QUIET).min(first + LONGEST)
}

/// Time without a change. Programs that renew a certificate write its files within milliseconds.
const QUIET: Duration = Duration::from_secs(1);
/// Time from the first change: if something is written all the time, whole states are in between.
const LONGEST: Duration = Duration::from_secs(10);
const BETWEEN_READS: Duration = Duration::from_millis(250);
/// Time between two looks if the system does not report changes.
const MINUTE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_settle_after_a_quiet_second_and_ten_at_most() {
        let start = Instant::now();
        let seconds = |seconds| start + Duration::from_secs(seconds);
        for (first, last, settles) in [(5, 5, 6), (5, 6, 7), (5, 16, 15)] {
            let changed = (seconds(first), seconds(last));
            assert_eq!(settles_at(changed), seconds(settles));
        }
    }

    #[test]
    fn a_poll_needs_no_report_of_a_change() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        let keys = Process {
            watch_interval: Some(Duration::from_millis(1)),
            ..Process::default()
        };
        runtime.block_on(async {
            let mut watch = Watch::default();
            watch.replace(WatchedPlaces::of(&[]), &keys);
            watch.settled().await;
            watch.note();
            watch.settled().await;
        });
    }
}
