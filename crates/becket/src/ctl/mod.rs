//! `becket ctl`: looks at and changes what a running becket does.
//!
//! A client of the admin pages ([`becket_control::api`]). Each task is one request or a few. The answer is printed as a table ([`table`]) or
//! as JSON. Reload, drain and upgrade are requests as well: the serving process asks its supervisor for them.

mod connections;
mod kept;
mod request;
mod table;
pub mod tasks;

use std::fs;
use std::path::Path;

use becket_control::replies::{
    EndedChanges, ForgottenSessions, RemovedCertificate, RotatedTickets,
};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use self::connections::of_connections;
use self::kept::Kept;
pub use self::request::NotDone;
use self::request::{Printed, ask, shown};
use self::tasks::{CertificateTask, CtlTask, PolicyTask, ServerTask, SessionTask, TicketTask};
use crate::admin::AdminAddress;
use crate::status::{ended, escaped};

/// Does it, and returns what is to be printed.
///
/// # Errors
/// Why it was not done.
pub fn run(place: &AdminAddress, task: &CtlTask, json: bool) -> Result<String, NotDone> {
    let kept = task.is_kept().then(|| Kept::open(place)).transpose()?;
    let (object, mut text) = match (done(place, task), task, &kept) {
        (
            Err(NotDone::Refused(_)),
            CtlTask::Certificates {
                change: Some(CertificateTask::Remove { listener, name, .. }),
            },
            Some(kept),
        ) if kept.has_certificate(listener, name) => {
            // It came with the configuration.
            let text = "in use until the next reload\n".to_owned();
            (json!({"removed": false}), text)
        }
        (done, ..) => done?,
    };
    if let Some(kept) = kept {
        let before = kept.loaded;
        let path = kept.write(task)?;
        // A process that loaded the configuration meanwhile may lack the edit.
        if !place.status().is_ok_and(|it| Kept::loaded(&it) == before) {
            done(place, &CtlTask::Reload).map_err(|error| {
                let file = path.display();
                NotDone::Refused(format!(
                    "kept in {file}, but maybe not in use yet; reload becket: {error}"
                ))
            })?;
        }
        text += &format!("kept in {}\n", path.display());
    }
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
                ServerTask::Remove { .. } => shown(object, table::removed_server),
                _ => shown(object, table::changed_server),
            }
        }
        CtlTask::Certificates { change } => of_certificates(place, change.as_ref()),
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
                "{entries} sessions of TLS 1.2 by ID, room for {capacity}; {early} sessions with early data\n"
            );
            Ok((object, text))
        }
        CtlTask::Sessions {
            task: Some(SessionTask::Forget),
        } => shown(post("/sessions/forget")?, |it: &ForgottenSessions| {
            let (sessions, early) = (it.sessions, it.early_sessions);
            format!("{sessions} sessions and {early} with early data forgotten\n")
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
                    let fault = format!("no trial of a policy {policy:?}; accepted: {accepted}");
                    return Err(NotDone::Refused(fault));
                }
            }
            Ok((json!(trials), table::trials(&trials)))
        }
        CtlTask::Sources => shown(get("/sources")?, table::sources),
        CtlTask::Log {
            level: None,
            reset: false,
            ..
        } => {
            let log = place.status()?.changes.log;
            Ok((json!(log), table::log(&log)))
        }
        CtlTask::Log { level, keep, .. } => {
            let body = json!({"level": level, "keep": keep});
            shown(ask(place, "PUT", "/log", Some(&body))?, table::log)
        }
        CtlTask::Tickets {
            task: TicketTask::Rotate,
        } => shown(post("/tickets/rotate")?, |it: &RotatedTickets| {
            format!("ticket keys rotated, epoch {}\n", it.epoch)
        }),
        CtlTask::Reload => ending(post("/reload")?, "reloaded"),
        CtlTask::Drain => ending(post("/drain")?, "draining"),
        CtlTask::Upgrade => ending(post("/upgrade")?, "upgraded"),
    }
}

/// Has an outcome printed, with the temporary changes that it ended.
fn ending(object: Value, done: &str) -> Result<Printed, NotDone> {
    shown(object, |it: &EndedChanges| {
        format!("{done}\n{}", ended(&it.ended))
    })
}

fn of_certificates(
    place: &AdminAddress,
    change: Option<&CertificateTask>,
) -> Result<Printed, NotDone> {
    match change {
        None => {
            let certificates = place.status()?.certificates;
            Ok((json!(certificates), table::certificates(&certificates)))
        }
        Some(CertificateTask::Set {
            listener,
            chain,
            key,
            keep,
        }) => {
            place.refuse_tcp("a private key")?;
            let (chain_text, key_text) = (read(chain, *keep)?, read(key, *keep)?);
            let files = [chain, key].map(|path| kept::path_of(path));
            let files: Result<Vec<String>, _> = files.into_iter().filter(|_| *keep).collect();
            let files = files.map_err(|error| NotDone::Refused(error.to_string()))?;
            let body = json!({
                "listener": listener, "chain": *chain_text, "key": *key_text, "keep": keep, "files": files,
            });
            let object = ask(place, "PUT", "/certificates", Some(&body))?;
            shown(object, table::set_certificate)
        }
        Some(CertificateTask::Remove { listener, name, .. }) => {
            let body = json!({"listener": listener, "name": name});
            let object = ask(place, "DELETE", "/certificates", Some(&body))?;
            shown(object, |it: &RemovedCertificate| {
                format!("{}: as in the file\n", escaped(&it.removed))
            })
        }
    }
}

/// A file that may have a key. One that is kept is read again at every start.
fn read(path: &Path, keep: bool) -> Result<Zeroizing<String>, NotDone> {
    if keep && !path.is_file() {
        let text = "--keep needs a regular file, because becket reads it again at every start";
        return Err(NotDone::Refused(format!("{}: {text}", path.display())));
    }
    let text = fs::read_to_string(path).map_err(|error| NotDone::NotRead {
        path: path.to_owned(),
        error,
    })?;
    Ok(Zeroizing::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn a_key_is_neither_read_nor_sent_where_a_becket_is_asked_over_tcp() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing.pem");
        let place = AdminAddress {
            admin: Some(listener.local_addr().unwrap().to_string()),
            token_file: Some(missing.clone()),
            ..AdminAddress::default()
        };
        let set = CertificateTask::Set {
            listener: "web".to_owned(),
            chain: missing.clone(),
            key: missing,
            keep: false,
        };
        let change = Some(set);
        let refused = done(&place, &CtlTask::Certificates { change }).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("use --socket PATH"), "{text}");
        listener.set_nonblocking(true).unwrap();
        let came = listener.accept().unwrap_err();
        assert_eq!(came.kind(), io::ErrorKind::WouldBlock);
    }
}
