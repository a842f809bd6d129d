//! Watches configured files and checks changed files. [`super::renewal`] starts each check and
//! commits its result.

use std::path::PathBuf;
use std::sync::Arc;

use becket_config::error::Problem;
use becket_keys::files::Files;
use becket_keys::watch::{Watch, WatchedPlaces};
use becket_prepare::changed::ChangedFiles;
use becket_prepare::renewal::Renewal;
use becket_tls::config::Config;
use tokio::task::JoinHandle;

#[derive(Debug, Default)]
pub struct Watching {
    pub(super) watch: Watch,
    /// Files and folders of a new configuration that this process opens itself. The next check
    /// reads them all, and watches them.
    pub(super) unwatched: Option<Vec<PathBuf>>,
    /// Changed files for the next check, and rejected files.
    pub(super) changed: ChangedFiles,
    pub(super) running: Option<JoinHandle<Look>>,
    /// Files of the check that follows the running one.
    pub(super) again: Option<Files>,
    pub(super) rejected: Vec<Problem>,
}

#[derive(Debug)]
pub(super) struct Look {
    pub(super) config: Arc<Config>,
    pub(super) files: Files,
    /// Files and folders to watch after this check; `None` if they stay the same.
    pub(super) places: Option<WatchedPlaces>,
    pub(super) changed: ChangedFiles,
    pub(super) renewal: Renewal,
    pub(super) fault: Option<Problem>,
}

pub(super) enum WatchResult {
    Changed,
    /// A check has ended; `None` if it failed.
    Look(Option<Box<Look>>),
}

impl Watching {
    /// Returns a watch for the files of a configuration that was just loaded, of which this process
    /// opens `own` itself.
    pub fn of(own: Vec<PathBuf>) -> Self {
        Self {
            unwatched: Some(own),
            ..Self::default()
        }
    }

    /// Forgets the files of the previous configuration.
    pub(super) fn replace(&mut self, own: Vec<PathBuf>) {
        self.unwatched = Some(own);
        self.changed = ChangedFiles::default();
    }

    /// Waits for the next event. Cancel safe.
    pub(super) async fn next(&mut self) -> WatchResult {
        let Self {
            watch,
            running,
            changed,
            ..
        } = self;
        tokio::select! {
            changes = watch.settled() => {
                changed.changes.add(changes);
                WatchResult::Changed
            }
            Some(looked) = async { Some(running.as_mut()?.await) } => {
                *running = None;
                let looked = looked.inspect_err(|error| tracing::error!(name: "file-check-failed", %error, "cannot check certificates and keys for changes; keeping the loaded ones"));
                WatchResult::Look(looked.ok().map(Box::new))
            }
        }
    }
}
