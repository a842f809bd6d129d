//! `becket reload` and `becket upgrade`: ask a running becket for it, and wait for the outcome.
//!
//! `/status` says which process to signal and how it went. Whoever answers there could name any process, so only one
//! that is a becket is signalled ([`signal_namesake`]). A reload or an upgrade that is under way may have read older
//! files: it is waited for first. After an upgrade another process answers, and says how many there were.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use becket_sys::process::signal_namesake;
use serde_json::Value;

use crate::status::{NoStatus, Place, ended};
use becket_log::Escaped;
use becket_process::protocol::OperatorRequest;
use becket_process::signals::signal_for;

/// Why it was not done, as far as is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReloaded {
    /// It cannot be asked.
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    /// It is about to end.
    #[error("becket drains, and does no more")]
    Drains,
    /// It cannot be signalled.
    #[error("process {pid}: {}", cause(error))]
    NotSignalled {
        /// Of the process.
        pid: u64,
        /// What the system said.
        error: io::Error,
    },
    /// The configuration has faults, or the program.
    #[error("{} refused, nothing changed:\n{}", name(*.0), .1.join("\n"))]
    Refused(OperatorRequest, Vec<String>),
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
            "it belongs to another user; ask as that user or as root".to_owned()
        }
        io::ErrorKind::InvalidInput => {
            "it is no becket; ask where becket runs, in its container if it has one".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Has the becket at a place reload, or become the program as it is now. Returns the temporary changes that this ended, a line
/// each. Blocks until it has, or for about [`MOST_TRIES`] times [`STEP`].
///
/// # Errors
/// When it did not, or nobody knows.
pub fn ask_for(what: OperatorRequest, place: &Place) -> Result<String, NotReloaded> {
    let mut before = place.ask()?;
    let is_busy = |status: &Value| {
        status["reloads"]["running"] == true || status["upgrades"]["running"] == true
    };
    if is_busy(&before) {
        before = wait(place, |status| !is_busy(status))?;
    }
    if before["state"] == "draining" {
        return Err(NotReloaded::Drains);
    }
    let pid = before["pid"].as_u64().unwrap_or_default();
    signal_namesake(u32::try_from(pid).unwrap_or_default(), signal_for(what))
        .map_err(|error| NotReloaded::NotSignalled { pid, error })?;
    let (counts, last) = match what {
        OperatorRequest::Upgrade => ("upgrades", "upgrade"),
        _ => ("reloads", "reload"),
    };
    let count = |status: &Value, key: &str| status[counts][key].as_u64();
    let moved = |status: &Value, key| count(status, key) != count(&before, key);
    let after = wait(place, |status| {
        status["started"] != before["started"]
            || status["state"] == "draining" && what == OperatorRequest::Reload
            || moved(status, "done")
            || moved(status, "refused")
    })?;
    if moved(&after, "done")
        && (what == OperatorRequest::Upgrade || after["started"] == before["started"])
    {
        return Ok(ended(&before["edits"]["temporary"]));
    }
    if after["started"] != before["started"] {
        return Err(NotReloaded::Restarted);
    }
    if moved(&after, "refused") {
        let errors = after[last]["errors"].as_array().into_iter().flatten();
        let errors = errors.filter_map(Value::as_str);
        let errors = errors.map(|error| Escaped::new(error).to_string());
        return Err(NotReloaded::Refused(what, errors.collect()));
    }
    Err(NotReloaded::Drains)
}

fn name(what: OperatorRequest) -> &'static str {
    match what {
        OperatorRequest::Upgrade => "upgrade",
        _ => "reload",
    }
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
