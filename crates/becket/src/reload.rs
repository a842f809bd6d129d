//! `becket reload` and `becket upgrade`: ask a running becket for it, and wait for the outcome.
//!
//! `/status` names the process to signal and reports the outcome. A page that another program serves could name any process, so only a
//! becket is signalled ([`signal_namesake`]). A reload or an upgrade that is under way may have read older files: this command waits for
//! it first. After an upgrade another process answers, and reports how many upgrades there were.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use becket_sys::process::signal_namesake;
use serde_json::Value;

use crate::status::{NoStatus, Place, ended};
use becket_log::Escaped;
use becket_process::protocol::OperatorRequest;
use becket_process::signals::signal_for;

/// The reason why there was no reload or upgrade, as far as it is known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReloaded {
    /// Becket cannot be asked.
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    /// Becket is about to end.
    #[error("becket drains, and does no more")]
    Drains,
    /// The process cannot be signalled.
    #[error("process {pid}: {}", cause(error))]
    NotSignalled {
        /// Process ID.
        pid: u64,
        /// Error of the system.
        error: io::Error,
    },
    /// The configuration has faults, or the program.
    #[error("{} refused, nothing changed:\n{}", name(*.0), .1.join("\n"))]
    Refused(OperatorRequest, Vec<String>),
    /// A new process serves with the configuration as it is now, or cannot start.
    #[error("the serving process ended meanwhile; a new one reads the configuration")]
    Restarted,
    /// There is no outcome after [`MOST_TRIES`].
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

/// Has the becket at a place reload, or replace its program. Returns the temporary changes that this ended, a line each. Blocks until
/// there is an outcome, or for about [`MOST_TRIES`] times [`STEP`].
///
/// # Errors
/// The request was refused, or its outcome is not known.
pub fn ask_for(what: OperatorRequest, place: &Place) -> Result<String, NotReloaded> {
    let mut before = place.ask()?;
    let is_busy = |status: &Value| {
        status["reloads"]["running"] == true || status["upgrades"]["running"] == true
    };
    if is_busy(&before) {
        before = wait(place, |status| (!is_busy(status)).then(|| status.clone()))?;
    }
    if before["state"] == "draining" {
        return Err(NotReloaded::Drains);
    }
    let pid = before["pid"].as_u64().unwrap_or_default();
    signal_namesake(u32::try_from(pid).unwrap_or_default(), signal_for(what))
        .map_err(|error| NotReloaded::NotSignalled { pid, error })?;
    let is_upgrade = what == OperatorRequest::Upgrade;
    let counts = if is_upgrade { "upgrades" } else { "reloads" };
    wait(place, |status| {
        let moved = |key: &str| status[counts][key] != before[counts][key];
        let is_same_process = status["started"] == before["started"];
        if moved("done") && (is_upgrade || is_same_process) {
            Some(Ok(ended(&before["edits"]["temporary"])))
        } else if !is_same_process {
            Some(Err(NotReloaded::Restarted))
        } else if moved("refused") {
            let errors = status[name(what)]["errors"]
                .as_array()
                .into_iter()
                .flatten();
            let errors = errors.filter_map(Value::as_str);
            let errors = errors.map(|error| Escaped::new(error).to_string());
            Some(Err(NotReloaded::Refused(what, errors.collect())))
        } else if status["state"] == "draining" && !is_upgrade {
            Some(Err(NotReloaded::Drains))
        } else {
            None
        }
    })?
}

fn name(what: OperatorRequest) -> &'static str {
    match what {
        OperatorRequest::Upgrade => "upgrade",
        _ => "reload",
    }
}

/// Asks until there is an outcome. Asks again after an error, because all places of the admin pages may be taken for the moment.
fn wait<T>(place: &Place, outcome: impl Fn(&Value) -> Option<T>) -> Result<T, NotReloaded> {
    for _ in 0..MOST_TRIES {
        if let Some(outcome) = place.ask().ok().as_ref().and_then(&outcome) {
            return Ok(outcome);
        }
        sleep(STEP);
    }
    Err(NotReloaded::Late)
}

const STEP: Duration = Duration::from_millis(50);
/// One minute, if each answer comes at once.
const MOST_TRIES: usize = 1200;
