//! The command line of `becket ctl`.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Task of `becket ctl`.
#[derive(Clone, Debug, Subcommand)]
pub enum CtlTask {
    /// List servers, or change one
    Servers {
        /// Change to make; without one, all servers are listed.
        #[command(subcommand)]
        change: Option<ServerTask>,
    },
    /// List certificates in order of expiry
    Certificates,
    /// List or close open connections
    #[command(args_conflicts_with_subcommands = true)]
    Connections {
        /// Selects connections.
        #[command(flatten)]
        filter: Box<FilterFlags>,
        /// Maximum number of rows
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
        /// Task; without one, connections are listed.
        #[command(subcommand)]
        task: Option<ConnectionTask>,
    },
    /// Count or forget the kept sessions
    Sessions {
        /// Task; without one, sessions are counted.
        #[command(subcommand)]
        task: Option<SessionTask>,
    },
    /// List sources, names and JA4s tracked by admission control
    Sources,
    /// Report what a stricter policy would refuse
    Policy {
        /// Task for a policy.
        #[command(subcommand)]
        task: PolicyTask,
    },
    /// Show or set the log level
    Log {
        /// Level such as debug, or filter such as info,becket_tls=debug
        #[arg(value_name = "LEVEL", group = "change")]
        level: Option<String>,
        /// Restore the level of the configuration file
        #[arg(long, group = "change")]
        reset: bool,
    },
    /// Manage ticket keys
    Tickets {
        /// Task for ticket keys.
        #[command(subcommand)]
        task: TicketTask,
    },
    /// Reload configuration and certificates, and wait for the outcome
    Reload,
    /// Drain connections, then exit with code 4
    Drain,
    /// Replace the running program without dropping connections
    Upgrade,
}

/// A server by its backend and its name.
#[derive(Clone, Debug)]
pub struct ServerPath {
    pub(super) backend: String,
    pub(super) server: String,
}

/// Change of a server.
#[derive(Clone, Debug, Subcommand)]
pub enum ServerTask {
    /// Send clients to a server again
    Ready(ServerFlags),
    /// Send a server only clients that stick to it
    Drain(ServerFlags),
    /// Stop new connections and health checks of a server
    Maintenance(ServerFlags),
    /// Change the weight of a server relative to other servers
    Weight {
        /// Server to change.
        #[command(flatten)]
        server: ServerFlags,
        /// Weight relative to the other servers, 0 to 256
        #[arg(value_name = "WEIGHT")]
        weight: u32,
    },
    /// Change the maximum number of connections of a server
    Maxconn {
        /// Server to change.
        #[command(flatten)]
        server: ServerFlags,
        /// Maximum number of connections; 0 means no limit
        #[arg(value_name = "CONNECTIONS")]
        most: u32,
    },
    /// Change the addresses of a server; open connections keep the old ones
    Address {
        /// Server to change.
        #[command(flatten)]
        server: ServerFlags,
        /// IP:PORT or /unix/path, tried in this order
        #[arg(value_name = "ADDRESS", required = true)]
        addresses: Vec<String>,
    },
    /// Undo all changes: restore the values of the configuration file
    Reset(ServerFlags),
    /// Add a server
    Add(AddFlags),
    /// Remove a server; its open connections continue
    Remove(ServerFlags),
}

/// Arguments of `becket ctl servers add`.
#[derive(Clone, Debug, Args)]
pub struct AddFlags {
    /// Backend and address of the server: IP:PORT, NAME:PORT or /unix/path
    #[arg(value_name = "BACKEND/ADDRESS", value_parser = server_name)]
    pub(super) server: ServerPath,
    /// Weight relative to the other servers, 0 to 256
    #[arg(long, value_name = "WEIGHT")]
    pub(super) weight: Option<u32>,
    /// Maximum number of connections
    #[arg(long, value_name = "CONNECTIONS")]
    pub(super) maxconn: Option<u32>,
    /// Use the server only if no other server is available
    #[arg(long)]
    pub(super) backup: bool,
    /// Send no clients to the server until becket ctl servers ready
    #[arg(long)]
    pub(super) disabled: bool,
}

/// Selects a server.
#[derive(Clone, Debug, Args)]
pub struct ServerFlags {
    /// Backend and server, as becket ctl servers shows them
    #[arg(value_name = "BACKEND/SERVER", value_parser = server_name)]
    pub(super) server: ServerPath,
}

fn server_name(text: &str) -> Result<ServerPath, &'static str> {
    let (backend, server) = text.split_once('/').ok_or("expected BACKEND/SERVER")?;
    Ok(ServerPath {
        backend: backend.to_owned(),
        server: server.to_owned(),
    })
}

/// Task for sessions.
#[derive(Clone, Debug, Subcommand)]
pub enum SessionTask {
    /// Delete all sessions that this process stores
    ///
    /// Clients that resume by ID or with early data then make a full handshake. Clients store
    /// tickets themselves: run becket ctl tickets rotate twice to invalidate them.
    Forget,
}

/// Task for policies.
#[derive(Clone, Debug, Subcommand)]
pub enum PolicyTask {
    /// Count the handshakes that a policy's trial would refuse, by reason
    Report {
        /// Name of a policy (default: every policy with a trial)
        #[arg(value_name = "NAME")]
        policy: Option<String>,
    },
}

/// Task for ticket keys.
#[derive(Clone, Debug, Subcommand)]
pub enum TicketTask {
    /// Create a new ticket key now
    ///
    /// Tickets of the previous key stay valid until the second rotation.
    Rotate,
}

/// Selects connections. The fields have the names that the admin pages accept.
#[derive(Clone, Debug, Default, Args, Serialize)]
pub struct FilterFlags {
    /// Only the connection with this ID
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
    sni: Option<String>,
    /// Only connections to a server of this backend
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Only connections to this server
    #[arg(long, value_name = "[BACKEND/]SERVER")]
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
        let Value::Object(mut fields) = json!(self) else {
            return Map::new();
        };
        fields.retain(|_, value| !value.is_null());
        fields
    }
}

/// Task for connections.
#[derive(Clone, Debug, Subcommand)]
pub enum ConnectionTask {
    /// Close the selected connections: peers see a reset, or an end without close_notify
    Kill {
        /// Selects connections.
        #[command(flatten)]
        filter: Box<FilterFlags>,
        /// Close all connections, if no other filter is given
        #[arg(long)]
        all: bool,
    },
    /// Count the selected connections by source, server name and server
    Top {
        /// Selects connections.
        #[command(flatten)]
        filter: Box<FilterFlags>,
    },
}

impl ServerTask {
    fn target(&self) -> &ServerPath {
        match self {
            Self::Add(flags) => &flags.server,
            Self::Ready(flags)
            | Self::Drain(flags)
            | Self::Maintenance(flags)
            | Self::Reset(flags)
            | Self::Remove(flags)
            | Self::Weight { server: flags, .. }
            | Self::Maxconn { server: flags, .. }
            | Self::Address { server: flags, .. } => &flags.server,
        }
    }

    /// Returns the method and the body of the request.
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
            Self::Remove(_) => ("DELETE", json!({})),
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
            sni: text(),
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
