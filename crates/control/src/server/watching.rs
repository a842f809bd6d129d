//! Watches configured files and checks changed files. [`super::renewal`] starts each check and
//! commits its result.

use std::sync::Arc;

use becket_config::error::Problem;
use becket_keys::files::Files;
use becket_keys::watch::{Watch, WatchedPlaces};
use becket_prepare::renewal::Renewal;
use becket_tls::config::Config;
use tokio::task::JoinHandle;

#[derive(Debug, Default)]
pub struct Watching {
    pub(super) watch: Watch,
    pub(super) running: Option<JoinHandle<Look>>,
    /// Files to check as soon as the running check has ended.
    pub(super) again: Option<Files>,
    pub(super) rejected: Vec<Problem>,
}

#[derive(Debug)]
pub(super) struct Look {
    pub(super) config: Arc<Config>,
    pub(super) files: Files,
    /// Files and folders to watch after this check. `None` if the supervisor opens all files.
    pub(super) places: Option<WatchedPlaces>,
    pub(super) renewal: Renewal,
    pub(super) fault: Option<Problem>,
}

pub(super) enum WatchResult {
    Changed,
    /// A check has ended; `None` if it failed.
    Look(Option<Box<Look>>),
}

impl Watching {
    /// Waits for the next event. Cancel safe.
    pub(super) async fn next(&mut self) -> WatchResult {
        let Self { watch, running, .. } = self;
        tokio::select! {
            () = watch.settled() => WatchResult::Changed,
            Some(looked) = async { Some(running.as_mut()?.await) } => {
                *running = None;
                let looked = looked.inspect_err(|error| tracing::error!(name: "file-check-failed", %error, "cannot check certificates and keys for changes; keeping the loaded ones"));
                WatchResult::Look(looked.ok().map(Box::new))
            }
        }
    }
}
