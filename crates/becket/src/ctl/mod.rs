//! Implements `becket ctl`, which shows and changes the state of a running becket.
//!
//! The command is a client of the admin pages ([`becket_control::api`]). Each task sends a few
//! requests and prints the response as a table ([`table`]) or as JSON. The serving process forwards
//! requests for a reload, drain or upgrade to its supervisor.

mod connections;
mod request;
mod table;
pub mod tasks;

use std::thread::sleep;
use std::time::Duration;

use becket_control::replies::{EndedChanges, ForgottenSessions, RotatedTickets};
use serde_json::{Value, json};

use self::connections::of_connections;
pub use self::request::NotDone;
use self::request::{Printed, ask, shown};
use self::tasks::{CtlTask, PolicyTask, ServerTask, SessionTask, TicketTask};
use crate::admin::AdminAddress;
use crate::status::ended;

/// Runs a task, and returns the text to print.
///
/// # Errors
/// becket is unreachable or rejected the request.
pub fn run(place: &AdminAddress, task: &CtlTask, json: bool) -> Result<String, NotDone> {
    let (object, text) = done(place, task)?;
    Ok(if json { format!("{object:#}\n") } else { text })
}

fn done(place: &AdminAddress, task: &CtlTask) -> Result<Printed, NotDone> {
    let get = |path: &str| ask(place, "GET", path, None);
    let post = |path: &str| ask(place, "POST", path, Some(&json!({})));
    match task {
        CtlTask::Servers { change: None } => {
            let backends = place.status()?.backends;
            Ok((json!(backends), table::servers(&backends)))
        }
        CtlTask::Servers {
            change: Some(change),
        } => {
            let (method, body) = change.request();
            let object = ask(place, method, "/servers", Some(&body))?;
            match change {
                ServerTask::Remove(_) => shown(object, table::removed_server),
                _ => shown(object, table::changed_server),
            }
        }
        CtlTask::Certificates => {
            let status = place.status()?;
            let text = table::certificates(&status.certificates, status.certificates_omitted);
            Ok((json!(status.certificates), text))
        }
        CtlTask::Connections {
            filter,
            limit,
            task,
        } => of_connections(place, filter, *limit, task.as_ref()),
        CtlTask::Sessions { task: None } => {
            let sessions = place.status()?.sessions;
            let (table, early) = (sessions.table, sessions.early_sessions);
            let object = json!({"sessions": table, "early_sessions": early});
            let (entries, capacity) = (table.entries, table.capacity);
            let text = format!(
                "{entries} of {capacity} TLS 1.2 sessions by ID; {early} sessions with early data\n"
            );
            Ok((object, text))
        }
        CtlTask::Sessions {
            task: Some(SessionTask::Forget),
        } => shown(post("/sessions/forget")?, |it: &ForgottenSessions| {
            let (sessions, early) = (it.sessions, it.early_sessions);
            format!("forgot {sessions} sessions and {early} sessions with early data\n")
        }),
        CtlTask::Policy {
            task: PolicyTask::Report { policy },
        } => {
            let mut trials = place.status()?.traffic.trials;
            if let Some(policy) = policy {
                let names: Vec<_> = trials.keys().cloned().collect();
                trials.retain(|name, _| name == policy);
                if trials.is_empty() {
                    let accepted = match &names[..] {
                        [] => "a policy with a trial; there is none".to_owned(),
                        names => names.join(", "),
                    };
                    let fault = format!("policy {policy:?} has no trial; accepted: {accepted}");
                    return Err(NotDone::Refused(fault));
                }
            }
            Ok((json!(trials), table::trials(&trials)))
        }
        CtlTask::Sources => shown(get("/sources")?, table::sources),
        CtlTask::Log {
            level: None,
            reset: false,
        } => {
            let log = place.status()?.changes.log;
            Ok((json!(log), table::log(&log)))
        }
        CtlTask::Log { level, .. } => {
            let body = json!({"level": level});
            shown(ask(place, "PUT", "/log", Some(&body))?, table::log)
        }
        CtlTask::Tickets {
            task: TicketTask::Rotate,
        } => shown(post("/tickets/rotate")?, |it: &RotatedTickets| {
            format!("ticket keys rotated, epoch {}\n", it.epoch)
        }),
        CtlTask::Reload => {
            wait_for_upgrade(place);
            ending(post("/reload")?, "reloaded")
        }
        CtlTask::Drain => ending(post("/drain")?, "draining"),
        CtlTask::Upgrade => {
            wait_for_upgrade(place);
            ending(post("/upgrade")?, "upgraded")
        }
    }
}

/// Waits until no upgrade is running, for about a minute at most. The process that an upgrade
/// replaces refuses a reload, and answers every upgrade request with the outcome of the running one.
fn wait_for_upgrade(place: &AdminAddress) {
    for _ in 0..MOST_POLLS {
        let status = place.status();
        if !status.is_ok_and(|status| status.changes.upgrades.running) {
            return;
        }
        sleep(POLL_INTERVAL);
    }
}

/// Formats the outcome of a reload, drain or upgrade, followed by the temporary changes that no
/// longer apply.
fn ending(object: Value, done: &str) -> Result<Printed, NotDone> {
    shown(object, |it: &EndedChanges| {
        format!("{done}\n{}", ended(&it.ended))
    })
}

const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MOST_POLLS: usize = 1200;
