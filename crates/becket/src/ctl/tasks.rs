//! The command line of `becket ctl`.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

/// What is to be done.
#[derive(Clone, Debug, Subcommand)]
pub enum CtlTask {
    /// List servers, or change one
    Servers {
        /// What to change; lists them all without.
        #[command(subcommand)]
        change: Option<ServerTask>,
    },
    /// List certificates and when they expire, the first to expire on top
    Certificates,
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
    /// List sources, names and JA4s that are tracked and limited
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
pub struct ServerPath {
    pub(super) backend: String,
    pub(super) server: String,
}

/// What to change of a server.
#[derive(Clone, Debug, Subcommand)]
pub enum ServerTask {
    /// Give it clients
    Ready(ServerFlags),
    /// Give it no new clients but those who stick to it
    Drain(ServerFlags),
    /// Stop new connections and health checks
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
    /// Add a server to those of the file
    Add(AddFlags),
    /// Take a server away; its connections go on
    Remove {
        /// Backend and server, as becket ctl servers shows them
        #[arg(value_name = "BACKEND/SERVER", value_parser = server_name)]
        server: ServerPath,
    },
}

/// A server that is added.
#[derive(Clone, Debug, Args)]
pub struct AddFlags {
    /// Backend and address of the server: IP:PORT, NAME:PORT or /unix/path
    #[arg(value_name = "BACKEND/ADDRESS", value_parser = server_name)]
    pub(super) server: ServerPath,
    /// Its share of new clients, 0 to 256
    #[arg(long, value_name = "WEIGHT")]
    pub(super) weight: Option<u32>,
    /// Connections that it may have
    #[arg(long, value_name = "CONNECTIONS")]
    pub(super) maxconn: Option<u32>,
    /// It serves only when no other server can
    #[arg(long)]
    pub(super) backup: bool,
    /// Start without connections, until becket ctl servers ready
    #[arg(long)]
    pub(super) disabled: bool,
}

/// Which server.
#[derive(Clone, Debug, Args)]
pub struct ServerFlags {
    /// Backend and server, as becket ctl servers shows them
    #[arg(value_name = "BACKEND/SERVER", value_parser = server_name)]
    pub(super) server: ServerPath,
}

fn server_name(text: &str) -> Result<ServerPath, &'static str> {
    let (backend, server) = text.split_once('/').ok_or("a backend, a slash, a server")?;
    Ok(ServerPath {
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

/// Which connections.
#[derive(Clone, Debug, Default, Args)]
pub struct FilterFlags {
    /// The one with this id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Only connections from this client address or network
    #[arg(long, value_name = "NETWORK")]
    client: Option<String>,
    /// Only connections of this listener
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Only connections that asked for this server name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only connections to a server of this backend
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Only connections to this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Only connections in this phase, such as relaying or queued
    #[arg(long, value_name = "PHASE")]
    phase: Option<String>,
    /// Only connections open for at least this many seconds
    #[arg(long, value_name = "SECONDS")]
    age: Option<u64>,
}

impl FilterFlags {
    pub(super) fn fields(&self) -> Map<String, Value> {
        let age = self.age.map(|seconds| seconds.to_string());
        let fields = [
            ("id", &self.id),
            ("client", &self.client),
            ("listener", &self.listener),
            ("name", &self.name),
            ("backend", &self.backend),
            ("server", &self.server),
            ("phase", &self.phase),
            ("age", &age),
        ];
        let set = fields.into_iter().filter_map(|(field, value)| {
            let value = value.clone()?;
            Some((field.to_owned(), Value::String(value)))
        });
        set.collect()
    }
}

/// What to do with connections.
#[derive(Clone, Debug, Subcommand)]
pub enum ConnectionTask {
    /// End them: clients and servers see a reset, or an end without close_notify
    Kill {
        /// Which.
        #[command(flatten)]
        filter: Box<FilterFlags>,
        /// All of them, where nothing else says which
        #[arg(long)]
        all: bool,
    },
    /// Count them by source, server name and server
    Top {
        /// Which.
        #[command(flatten)]
        filter: Box<FilterFlags>,
    },
}

impl ServerTask {
    fn target(&self) -> &ServerPath {
        match self {
            Self::Add(flags) => &flags.server,
            Self::Remove { server } => server,
            Self::Ready(flags)
            | Self::Drain(flags)
            | Self::Maintenance(flags)
            | Self::Reset(flags)
            | Self::Weight { server: flags, .. }
            | Self::Maxconn { server: flags, .. }
            | Self::Address { server: flags, .. } => &flags.server,
        }
    }

    /// Returns the method of the request, and its body.
    pub(super) fn request(&self) -> (&'static str, Value) {
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
        let ServerPath { backend, server } = self.target();
        body["backend"] = backend.as_str().into();
        if body["server"].is_null() {
            body["server"] = server.as_str().into();
        }
        (method, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use becket_proxy::worker::listing::Filter;

    #[test]
    fn a_server_may_have_slashes_in_its_name() {
        let name = server_name("app//run/app.sock").unwrap();
        assert_eq!((&*name.backend, &*name.server), ("app", "/run/app.sock"));
        let flags = ServerFlags { server: name };
        let expected = json!({"backend": "app", "server": "/run/app.sock", "weight": 3});
        let task = ServerTask::Weight {
            server: flags,
            weight: 3,
        };
        assert_eq!(task.request(), ("PATCH", expected));
    }

    #[test]
    fn every_field_of_a_filter_has_a_flag() {
        let text = || Some("1".to_owned());
        let flags = FilterFlags {
            id: text(),
            client: text(),
            listener: text(),
            name: text(),
            backend: text(),
            server: text(),
            phase: text(),
            age: Some(1),
        };
        let mut fields = Filter::FIELDS.map(str::to_owned);
        fields.sort();
        let given: Vec<String> = flags.fields().keys().cloned().collect();
        assert_eq!(given, fields);
    }
}
