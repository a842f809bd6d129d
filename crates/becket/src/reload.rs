//! Implements `becket reload` and `becket upgrade`: requests a reload or an upgrade from a running
//! becket, and waits for the outcome.
//!
//! The status page `/status` contains the ID of the process to signal and, later, the outcome.
//! Another program could serve such a page with any process ID, so the command signals only a
//! process with the name of this program ([`signal_namesake`]). A becket with another name receives
//! the request over its admin socket.
//!
//! A reload or an upgrade in progress may have read older files, so the command waits for its end
//! first. After an upgrade, the new process answers and reports the number of upgrades.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use becket_control::status::{ReloadCounts, ReloadOutcome, ServingState, Status};
use becket_sys::process::signal_namesake;

use crate::admin::{AdminAddress, NoStatus};
use crate::ctl::tasks::CtlTask;
use crate::ctl::{self, NotDone};
use crate::status::{ended, escaped};
use becket_process::protocol::OperatorRequest;
use becket_process::signals::signal_for;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotReloaded {
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    #[error("becket is draining and accepts no further change")]
    Drains,
    #[error("process {pid}: {}", cause(error))]
    NotSignalled { pid: u32, error: io::Error },
    /// The request over the socket failed.
    #[error(transparent)]
    NotDone(#[from] NotDone),
    /// becket rejected the new configuration or the new program.
    #[error("{}, nothing changed:\n{}", failure(*.0), .1.join("\n"))]
    Refused(OperatorRequest, Vec<String>),
    /// The serving process exited, and a new one starts with the current configuration.
    #[error("the serving process exited; a new one starts with the current configuration")]
    Restarted,
    /// The outcome is still unknown after [`MOST_TRIES`] polls.
    #[error("no outcome yet; see the log and becket status")]
    Late,
}

fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "permission denied; run this command as the user of that process or as root".to_owned()
        }
        io::ErrorKind::InvalidInput => {
            "not a program of this name; name the admin socket with --socket or --config".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Requests a reload or an upgrade from the becket at `place`, and blocks until the outcome is
/// known, or for about [`MOST_TRIES`] times [`STEP`]. Returns the temporary changes that no longer
/// apply, one per line.
///
/// # Errors
/// becket rejected the request, or its outcome is unknown.
pub fn ask_for(what: OperatorRequest, place: &AdminAddress) -> Result<String, NotReloaded> {
    let mut before = place.status()?;
    let is_busy = |it: &Status| it.changes.reloads.running || it.changes.upgrades.running;
    if is_busy(&before) {
        before = wait(place, |status| (!is_busy(status)).then(|| status.clone()))?;
    }
    if before.process.state == ServingState::Draining {
        return Err(NotReloaded::Drains);
    }
    let pid = before.process.pid;
    if let Err(error) = signal_namesake(pid, signal_for(what)) {
        // A signal fails with these errors if the process has another program name or runs in
        // another container.
        let elsewhere = [io::ErrorKind::InvalidInput, io::ErrorKind::NotFound];
        if elsewhere.contains(&error.kind())
            && let Some(done) = over_socket(what, place)
        {
            return done;
        }
        return Err(NotReloaded::NotSignalled { pid, error });
    }
    let is_upgrade = what == OperatorRequest::Upgrade;
    let (then, _) = requests(what, &before);
    wait(place, |status| {
        let (now, outcome) = requests(what, status);
        let is_same_process = status.process.started == before.process.started;
        if now.done != then.done && (is_upgrade || is_same_process) {
            Some(Ok(ended(&before.changes.temporary)))
        } else if !is_same_process {
            Some(Err(NotReloaded::Restarted))
        } else if now.refused != then.refused {
            let errors = outcome.into_iter().flat_map(|it| &it.errors);
            let errors = errors.map(|error| escaped(error)).collect();
            Some(Err(NotReloaded::Refused(what, errors)))
        } else if status.process.state == ServingState::Draining && !is_upgrade {
            Some(Err(NotReloaded::Drains))
        } else {
            None
        }
    })?
}

/// Returns the counts of reloads or of upgrades, and the last outcome.
fn requests(what: OperatorRequest, status: &Status) -> (ReloadCounts, Option<&ReloadOutcome>) {
    let changes = &status.changes;
    match what {
        OperatorRequest::Upgrade => (changes.upgrades, changes.upgrade.as_ref()),
        _ => (changes.reloads, changes.reload.as_ref()),
    }
}

/// Sends the request over the admin socket, which needs no process ID. Returns `None` if the admin
/// address is not a socket.
fn over_socket(what: OperatorRequest, place: &AdminAddress) -> Option<Result<String, NotReloaded>> {
    if !place.is_socket() {
        return None;
    }
    let task = match what {
        OperatorRequest::Upgrade => CtlTask::Upgrade,
        _ => CtlTask::Reload,
    };
    let done = ctl::run(place, &task, false).map_err(NotReloaded::from);
    Some(done.map(|text| {
        text.split_once('\n')
            .map_or("", |(_, ended)| ended)
            .to_owned()
    }))
}

fn failure(what: OperatorRequest) -> &'static str {
    match what {
        OperatorRequest::Upgrade => "upgrade failed",
        _ => "reload refused",
    }
}

/// Polls `/status` until there is an outcome. Retries after an error, because the admin server may
/// have reached its connection limit.
fn wait<T>(place: &AdminAddress, outcome: impl Fn(&Status) -> Option<T>) -> Result<T, NotReloaded> {
    for _ in 0..MOST_TRIES {
        if let Some(outcome) = place.status().ok().as_ref().and_then(&outcome) {
            return Ok(outcome);
        }
        sleep(STEP);
    }
    Err(NotReloaded::Late)
}

const STEP: Duration = Duration::from_millis(50);
/// Maximum number of polls. They take about one minute if each response arrives immediately.
const MOST_TRIES: usize = 1200;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn a_renamed_program_is_reloaded_over_its_socket() {
        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let status = format!("{{\"version\":\"1\",\"pid\":{}}}", other.id());
        let answers = [
            ("GET /status ", status.as_str()),
            ("POST /reload ", "{\"ended\":[\"a\"]}"),
        ];
        let answers = answers.map(|(asked, body)| (asked, body.to_owned()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            for (asked, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let length = stream.read(&mut request).unwrap();
                assert!(request[..length].starts_with(asked.as_bytes()));
                write!(stream, "HTTP/1.1 200 OK\r\n\r\n{body}").unwrap();
            }
        });
        let place = AdminAddress {
            socket: Some(path),
            ..AdminAddress::default()
        };
        let done = ask_for(OperatorRequest::Reload, &place).unwrap();
        assert_eq!(done, "ended: a\n");
        server.join().unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
