//! `becket reload`: asks a running becket to reload, and waits for the outcome.
//!
//! `/status` says which process to signal and how the reload went. Whoever answers there could name any process, so only one
//! that is a becket is signalled ([`tell`]). A reload that is under way when this one is asked for may have read older
//! files: it is waited for first.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use becket_sys::process::{Told, tell};
use serde_json::Value;

use crate::log::Escaped;
use crate::status::{NoStatus, Place};

/// Why nothing was reloaded, as far as is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReloaded {
    /// It cannot be asked.
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    /// It is about to end.
    #[error("becket drains, and reloads no more")]
    Drains,
    /// It cannot be signalled.
    #[error("process {pid}: {}", cause(error))]
    NotSignalled {
        /// Of the process.
        pid: u64,
        /// What the system said.
        error: io::Error,
    },
    /// The configuration has faults.
    #[error("reload refused, nothing changed:\n{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// It serves with the configuration as it is now, or does not serve.
    #[error("the serving process ended meanwhile; another one reads the configuration anew")]
    Restarted,
    /// It takes longer than anybody waits here.
    #[error("there is no outcome yet; the log and becket status will tell it")]
    Late,
}

fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "it belongs to another user; reload as that user or as root".to_owned()
        }
        io::ErrorKind::InvalidInput => {
            "it is no becket; reload where becket runs, in its container if it has one".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Has the becket at a place reload. Blocks until it has, or for about [`MOST_TRIES`] times [`STEP`].
///
/// # Errors
/// When it did not reload, or nobody knows.
pub fn reload(place: &Place) -> Result<(), NotReloaded> {
    let mut before = place.ask()?;
    if before["reloads"]["running"] == true {
        before = wait(place, |status| status["reloads"]["running"] == false)?;
    }
    if before["state"] == "draining" {
        return Err(NotReloaded::Drains);
    }
    let pid = before["pid"].as_u64().unwrap_or_default();
    tell(u32::try_from(pid).unwrap_or_default(), Told::Reload)
        .map_err(|error| NotReloaded::NotSignalled { pid, error })?;
    let count = |status: &Value, key: &str| status["reloads"][key].as_u64();
    let moved = |status: &Value, key| count(status, key) != count(&before, key);
    let after = wait(place, |status| {
        status["started"] != before["started"]
            || status["state"] == "draining"
            || moved(status, "done")
            || moved(status, "refused")
    })?;
    if after["started"] != before["started"] {
        return Err(NotReloaded::Restarted);
    }
    if moved(&after, "refused") {
        let errors = after["reload"]["errors"].as_array().into_iter().flatten();
        let errors = errors.filter_map(Value::as_str);
        let errors = errors.map(|error| Escaped::new(error).to_string());
        return Err(NotReloaded::Refused(errors.collect()));
    }
    if moved(&after, "done") {
        return Ok(());
    }
    Err(NotReloaded::Drains)
}

/// Asks until it is so. An answer that does not come is asked for again: all places may be taken for the moment.
fn wait(place: &Place, is_so: impl Fn(&Value) -> bool) -> Result<Value, NotReloaded> {
    for _ in 0..MOST_TRIES {
        if let Some(status) = place.ask().ok().filter(&is_so) {
            return Ok(status);
        }
        sleep(STEP);
    }
    Err(NotReloaded::Late)
}

const STEP: Duration = Duration::from_millis(50);
/// For a minute, where each answer comes at once.
const MOST_TRIES: usize = 1200;
