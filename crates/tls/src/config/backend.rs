//! Backends and servers as they are used: what the file says, and what was built of it.

use std::sync::Arc;
use std::time::Duration;

use becket_config::address::{Address, SectionName, ServerAddress as Written};
use becket_config::backend;
use becket_config::choices::StickBy;
use becket_config::notation::Text;

use super::onward::Onward;
use super::server_address::ServerAddress;
use becket_http::docroot::Docroot;

/// A pool of servers.
#[derive(Clone, Debug)]
pub struct Backend {
    /// As the file has it.
    pub keys: backend::Backend,
    /// The folder whose files are served in place of servers.
    pub docroot: Option<Arc<Docroot>>,
    /// Servers, at least one unless files are served.
    pub servers: Vec<Server>,
    /// Names of servers of the file that an operator removed.
    pub removed: Vec<Arc<str>>,
    /// TLS towards the servers; `None` is plain TCP.
    pub tls: Option<Onward>,
    /// How long a connection may wait for a slot: the key, or else `timeouts.connect`.
    pub queue_timeout: Duration,
}

/// One server of a backend.
#[derive(Clone, Debug)]
pub struct Server {
    /// As the file has it.
    pub keys: backend::ServerSection,
    /// Its address as configured; a label of metrics and logs.
    pub name: Arc<str>,
    /// Its addresses, tried in order; a unix socket has one. None for a name, unless names of servers were
    /// looked up with the configuration: those of a server that runs are in its state.
    pub addresses: Vec<ServerAddress>,
    /// It is not in the file: an operator has added it.
    pub added: bool,
}

impl Backend {
    /// A backend with every key at its default and no names to look up, for tests and benches.
    pub fn plain(name: &str, servers: Vec<Server>) -> Self {
        Self {
            keys: backend::Backend {
                name: SectionName(name.into()),
                resolve_interval: None,
                ..Default::default()
            },
            docroot: None,
            servers,
            removed: Vec::new(),
            tls: None,
            queue_timeout: Duration::from_secs(5),
        }
    }

    /// How many clients are remembered.
    pub fn most_remembered(&self) -> usize {
        match self.keys.stick {
            StickBy::None => 0,
            StickBy::Source | StickBy::TlsSession => self.keys.stick_entries,
        }
    }
}

impl Server {
    /// A server with every key at its default, for tests and benches.
    pub fn plain(name: &str, addresses: Vec<ServerAddress>) -> Self {
        Self {
            keys: backend::ServerSection::default(),
            name: name.into(),
            addresses,
            added: false,
        }
    }

    /// Host and port, where the server is known by a name.
    pub fn host(&self) -> Option<(String, u16)> {
        match Written::parse(&self.name).ok()?.address {
            Address::Name(host, port) => Some((host, port)),
            _ => None,
        }
    }
}
