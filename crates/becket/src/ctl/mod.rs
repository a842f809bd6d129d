//! `becket ctl`: looks at and changes what a running becket does.
//!
//! A thin client of the admin pages ([`becket_control::api`]). Each task is one request or a few. The answer is printed as a table ([`table`]) or
//! as JSON. Reload, drain and upgrade are requests as well: the serving process asks its supervisor for them.

mod connections;
mod kept;
mod table;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use self::connections::of_connections;
pub use self::connections::{ConnectionTask, FilterFlags};
use self::kept::Kept;
use crate::status::{Answer, NoStatus, Place, ended};
use becket_log::Escaped;

/// What is to be done.
#[derive(Clone, Debug, Subcommand)]
pub enum CtlTask {
    /// List servers, or change one
    Servers {
        /// What to change; lists them all without.
        #[command(subcommand)]
        change: Option<ServerTask>,
    },
    /// List certificates and when they expire, the first to expire on top, or set one
    Certificates {
        /// What to change; lists them all without.
        #[command(subcommand)]
        change: Option<CertificateTask>,
    },
    /// List open connections, or end some
    #[command(args_conflicts_with_subcommands = true)]
    Connections {
        /// Which.
        #[command(flatten)]
        filter: Box<FilterFlags>,
        /// Rows at most
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// What to do with them; lists them without.
        #[command(subcommand)]
        task: Option<ConnectionTask>,
    },
    /// Count sessions that are kept, or forget them
    Sessions {
        /// What to do with them; counts them without.
        #[command(subcommand)]
        task: Option<SessionTask>,
    },
    /// List sources of clients that are tracked, and which of them are limited
    Sources,
    /// See what a stricter policy would do
    Policy {
        /// What of it.
        #[command(subcommand)]
        task: PolicyTask,
    },
    /// Show the level of the log, or set it
    Log {
        /// A level such as debug, or a filter such as info,becket_tls=debug
        #[arg(value_name = "LEVEL", group = "change")]
        level: Option<String>,
        /// Go back to the level of the file
        #[arg(long, group = "change")]
        reset: bool,
        /// Keep it after reloads and restarts
        #[arg(long, requires = "change")]
        keep: bool,
    },
    /// Work with ticket keys
    Tickets {
        /// What to do with them.
        #[command(subcommand)]
        task: TicketTask,
    },
    /// Read certificates and configuration again, and wait for the outcome
    Reload,
    /// Take no new clients, finish, end with exit code 4
    Drain,
    /// Become the program that is on the disk now, without losing a connection
    Upgrade,
}

/// A server by its backend and its name.
#[derive(Clone, Debug)]
pub struct ServerName {
    backend: String,
    server: String,
}

/// What to change of a server.
#[derive(Clone, Debug, Subcommand)]
pub enum ServerTask {
    /// Give it clients
    Ready(ServerFlags),
    /// Give it no new clients but those who stick to it
    Drain(ServerFlags),
    /// Give it nobody, and do not check it
    Maintenance(ServerFlags),
    /// Change its share of new clients
    Weight {
        /// Which.
        #[command(flatten)]
        server: ServerFlags,
        /// 0 to 256
        #[arg(value_name = "WEIGHT")]
        weight: u32,
    },
    /// Change how many connections it may have
    Maxconn {
        /// Which.
        #[command(flatten)]
        server: ServerFlags,
        /// 0 is no limit
        #[arg(value_name = "CONNECTIONS")]
        most: u32,
    },
    /// Change where it is; open connections stay where they are
    Address {
        /// Which.
        #[command(flatten)]
        server: ServerFlags,
        /// IP:PORT or /unix/path, tried in this order
        #[arg(value_name = "ADDRESS", required = true)]
        addresses: Vec<String>,
    },
    /// Undo all that was changed: what the file says counts again
    Reset(ServerFlags),
    /// Add a server beside those of the file
    Add(AddFlags),
    /// Take a server away; its connections go on
    Remove {
        /// Backend and server, as becket ctl servers shows them
        #[arg(value_name = "BACKEND/SERVER", value_parser = server_name)]
        server: ServerName,
        /// Keep it removed after reloads and restarts
        #[arg(long)]
        keep: bool,
    },
}

/// A server that is added.
#[derive(Clone, Debug, Args)]
pub struct AddFlags {
    /// Backend and address of the server: IP:PORT, NAME:PORT or /unix/path
    #[arg(value_name = "BACKEND/ADDRESS", value_parser = server_name)]
    server: ServerName,
    /// Its share of new clients, 0 to 256
    #[arg(long, value_name = "WEIGHT")]
    weight: Option<u32>,
    /// Connections that it may have
    #[arg(long, value_name = "CONNECTIONS")]
    maxconn: Option<u32>,
    /// It serves only when no other server can
    #[arg(long)]
    backup: bool,
    /// It gets nobody until becket ctl servers ready
    #[arg(long)]
    disabled: bool,
    /// Keep it after reloads and restarts
    #[arg(long)]
    keep: bool,
}

/// What to do with certificates.
#[derive(Clone, Debug, Subcommand)]
pub enum CertificateTask {
    /// Answer with a certificate that the file does not have, for the names in it
    Set {
        /// Listener, as becket ctl certificates shows it
        #[arg(value_name = "LISTENER")]
        listener: String,
        /// PEM file with the chain, the server's own certificate first
        #[arg(long, value_name = "FILE")]
        chain: PathBuf,
        /// PEM file with the key; may be the same file
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Keep it after reloads and restarts
        #[arg(long)]
        keep: bool,
    },
    /// Answer with those of the file again
    Remove {
        /// Listener
        #[arg(value_name = "LISTENER")]
        listener: String,
        /// A name of the certificate that was set
        #[arg(value_name = "NAME")]
        name: String,
        /// Remove a kept certificate
        #[arg(long)]
        keep: bool,
    },
}

/// Which server.
#[derive(Clone, Debug, Args)]
pub struct ServerFlags {
    /// Backend and server, as becket ctl servers shows them
    #[arg(value_name = "BACKEND/SERVER", value_parser = server_name)]
    server: ServerName,
    /// Keep the change after reloads and restarts
    #[arg(long)]
    keep: bool,
}

fn server_name(text: &str) -> Result<ServerName, &'static str> {
    let (backend, server) = text.split_once('/').ok_or("a backend, a slash, a server")?;
    Ok(ServerName {
        backend: backend.to_owned(),
        server: server.to_owned(),
    })
}

/// What to do with sessions.
#[derive(Clone, Debug, Subcommand)]
pub enum SessionTask {
    /// Forget all that are kept here: clients that resume by ID, or with early data, do a full handshake. Tickets are kept by
    /// clients: becket ctl tickets rotate, twice, makes those worthless
    Forget,
}

/// What of policies.
#[derive(Clone, Debug, Subcommand)]
pub enum PolicyTask {
    /// Show how many clients the trial of their policy would have refused, by reason
    Report {
        /// Policy; without it, each policy that has a trial
        #[arg(value_name = "NAME")]
        policy: Option<String>,
    },
}

/// What to do with ticket keys.
#[derive(Clone, Debug, Subcommand)]
pub enum TicketTask {
    /// Draw a new key now. Tickets of the one before are still good; after a second rotation they are not
    Rotate,
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotDone {
    /// It cannot be asked.
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    /// A file that was to be sent.
    #[error("{}: {error}", path.display())]
    NotRead {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It was asked, and refused.
    #[error("{0}")]
    Refused(String),
    /// It is changed, but the next reload ends that.
    #[error("changed until the next reload, but not kept: cannot write {}: {error}", path.display())]
    NotKept {
        /// The file of kept edits.
        path: PathBuf,
        /// Why it cannot be written.
        error: io::Error,
    },
}

/// Does it, and returns what is to be printed.
///
/// # Errors
/// Why it was not done.
pub fn run(place: &Place, task: &CtlTask, json: bool) -> Result<String, NotDone> {
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
        let before = kept.loaded.clone();
        let path = kept.write(task)?;
        // A process that loaded the configuration meanwhile may lack the edit.
        if !place.ask().is_ok_and(|it| Kept::loaded(&it) == before) {
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

/// What came back, and the same for people.
fn done(place: &Place, task: &CtlTask) -> Result<(Value, String), NotDone> {
    let get = |path: &str| ask(place, "GET", path, None);
    let post = |path: &str, body: Value| ask(place, "POST", path, Some(&body));
    let status = || place.ask().map_err(NotDone::from);
    Ok(match task {
        CtlTask::Servers { change: None } => shown(status()?["backends"].take(), table::servers),
        CtlTask::Servers {
            change: Some(change),
        } => {
            let (method, body) = change.request();
            let said = match change {
                ServerTask::Remove { .. } => table::removed_server,
                _ => table::changed_server,
            };
            shown(ask(place, method, "/servers", Some(&body))?, said)
        }
        CtlTask::Certificates { change } => of_certificates(place, change.as_ref())?,
        CtlTask::Connections {
            filter,
            limit,
            task,
        } => of_connections(place, filter, *limit, task.as_ref())?,
        CtlTask::Sessions { task: None } => {
            let status = status()?;
            shown(
                json!({
                    "sessions": status["sessions"], "early_sessions": status["early_sessions"],
                }),
                table::sessions,
            )
        }
        CtlTask::Sessions {
            task: Some(SessionTask::Forget),
        } => {
            let object = post("/sessions/forget", json!({}))?;
            let (sessions, early) = (&object["sessions"], &object["early_sessions"]);
            let text = format!("{sessions} sessions and {early} with early data forgotten\n");
            (object, text)
        }
        CtlTask::Policy {
            task: PolicyTask::Report { policy },
        } => {
            let mut trials = status()?["trials"].take();
            if let (Some(wanted), Value::Object(trials)) = (policy, &mut trials) {
                trials.retain(|policy, _| policy == wanted);
            }
            shown(trials, table::trials)
        }
        CtlTask::Sources => shown(get("/sources")?, table::sources),
        CtlTask::Log {
            level: None,
            reset: false,
            ..
        } => shown(status()?["log"].take(), table::log),
        CtlTask::Log { level, keep, .. } => {
            let body = json!({"level": level, "keep": keep});
            shown(ask(place, "PUT", "/log", Some(&body))?, table::log)
        }
        CtlTask::Tickets {
            task: TicketTask::Rotate,
        } => {
            let object = post("/tickets/rotate", json!({}))?;
            let text = format!("ticket keys rotated, epoch {}\n", object["epoch"]);
            (object, text)
        }
        CtlTask::Reload => ending(post("/reload", json!({}))?, "reloaded"),
        CtlTask::Drain => ending(post("/drain", json!({}))?, "draining"),
        CtlTask::Upgrade => ending(post("/upgrade", json!({}))?, "upgraded"),
    })
}

/// What was done, and the temporary changes that it ended.
fn ending(object: Value, done: &str) -> (Value, String) {
    let text = format!("{done}\n{}", ended(&object["ended"]));
    (object, text)
}

fn of_certificates(
    place: &Place,
    change: Option<&CertificateTask>,
) -> Result<(Value, String), NotDone> {
    Ok(match change {
        None => {
            let mut status = place.ask()?;
            let text = table::certificates(&status);
            (status["certificates"].take(), text)
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
            let files: Result<Vec<String>, String> = files.into_iter().filter(|_| *keep).collect();
            let files = files.map_err(NotDone::Refused)?;
            let body = json!({
                "listener": listener, "chain": *chain_text, "key": *key_text, "keep": keep, "files": files,
            });
            let object = ask(place, "PUT", "/certificates", Some(&body))?;
            shown(object, table::set_certificate)
        }
        Some(CertificateTask::Remove { listener, name, .. }) => {
            let body = json!({"listener": listener, "name": name});
            let object = ask(place, "DELETE", "/certificates", Some(&body))?;
            (object, format!("{}: as in the file\n", Escaped::new(name)))
        }
    })
}

fn shown(object: Value, table: fn(&Value) -> String) -> (Value, String) {
    let text = table(&object);
    (object, text)
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

impl ServerTask {
    /// Returns the server, and whether the change is to be kept.
    fn target(&self) -> (&ServerName, bool) {
        match self {
            Self::Add(flags) => (&flags.server, flags.keep),
            Self::Remove { server, keep } => (server, *keep),
            Self::Ready(flags)
            | Self::Drain(flags)
            | Self::Maintenance(flags)
            | Self::Reset(flags)
            | Self::Weight { server: flags, .. }
            | Self::Maxconn { server: flags, .. }
            | Self::Address { server: flags, .. } => (&flags.server, flags.keep),
        }
    }

    fn is_kept(&self) -> bool {
        self.target().1
    }

    /// Returns the method of the request, and its body.
    fn request(&self) -> (&'static str, Value) {
        let (method, mut body) = match self {
            Self::Add(flags) => {
                let mut server = json!({
                    "address": flags.server.server, "backup": flags.backup, "disabled": flags.disabled,
                });
                for (key, value) in [("weight", flags.weight), ("maxconn", flags.maxconn)] {
                    if let Some(value) = value {
                        server[key] = value.into();
                    }
                }
                ("POST", json!({"server": server}))
            }
            Self::Remove { .. } => ("DELETE", json!({})),
            Self::Ready(_) => ("PATCH", json!({"mode": "ready"})),
            Self::Drain(_) => ("PATCH", json!({"mode": "drain"})),
            Self::Maintenance(_) => ("PATCH", json!({"mode": "maintenance"})),
            Self::Weight { weight, .. } => ("PATCH", json!({"weight": weight})),
            Self::Maxconn { most, .. } => ("PATCH", json!({"maxconn": most})),
            Self::Address { addresses, .. } => ("PATCH", json!({"addresses": addresses})),
            Self::Reset(_) => (
                "PATCH",
                json!({"mode": null, "weight": null, "maxconn": null, "addresses": null}),
            ),
        };
        let (ServerName { backend, server }, keep) = self.target();
        body["backend"] = backend.as_str().into();
        body["keep"] = keep.into();
        if body["server"].is_null() {
            body["server"] = server.as_str().into();
        }
        (method, body)
    }
}

fn query(words: Map<String, Value>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (field, value) in &words {
        query.append_pair(field, value.as_str().unwrap_or_default());
    }
    query.finish()
}

fn ask(place: &Place, method: &str, path: &str, body: Option<&Value>) -> Result<Value, NotDone> {
    let Answer { code, body } = place.request(method, path, body)?;
    if code == 200 {
        return Ok(body);
    }
    let text = |value: &Value| Escaped::new(value.as_str().unwrap_or_default()).to_string();
    Err(NotDone::Refused(match &body["error"] {
        Value::Null => format!("refused with status {code}: {}", text(&body)),
        error => format!("{}; accepted: {}", text(error), text(&body["accepted"])),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_neither_read_nor_sent_where_a_becket_is_asked_over_tcp() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing.pem");
        let place = Place {
            admin: Some(listener.local_addr().unwrap().to_string()),
            token_file: Some(missing.clone()),
            ..Place::default()
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

    #[test]
    fn a_server_may_have_slashes_in_its_name() {
        let name = server_name("app//run/app.sock").unwrap();
        assert_eq!((&*name.backend, &*name.server), ("app", "/run/app.sock"));
        let flags = ServerFlags {
            server: name,
            keep: true,
        };
        let expected = json!({
            "backend": "app", "server": "/run/app.sock", "keep": true, "weight": 3,
        });
        let task = ServerTask::Weight {
            server: flags,
            weight: 3,
        };
        assert_eq!(task.request(), ("PATCH", expected));
    }
}
