//! Prepared backends and servers: their configuration and the objects built from it.

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
    /// The configured keys.
    pub keys: backend::Backend,
    /// Folder whose files are served instead of relaying to servers.
    pub docroot: Option<Arc<Docroot>>,
    /// Servers; at least one unless files are served.
    pub servers: Vec<Server>,
    /// Names of configured servers that an operator removed.
    pub removed: Vec<Arc<str>>,
    /// TLS to the servers; `None` for plain TCP.
    pub tls: Option<Onward>,
    /// Maximum time in the queue: the configured value, or `timeouts.connect`.
    pub queue_timeout: Duration,
}

/// One server of a backend.
#[derive(Clone, Debug)]
pub struct Server {
    /// The configured keys.
    pub keys: backend::ServerSection,
    /// Configured address, which is also the label in metrics and logs.
    pub name: Arc<str>,
    /// Addresses in the order of connection attempts; a unix socket has one. Empty for a host name,
    /// unless names were resolved with the configuration. The state of a running server has its
    /// resolved addresses.
    pub addresses: Vec<ServerAddress>,
    /// The server is not in the file: an operator added it.
    pub added: bool,
}

impl Backend {
    /// Returns a backend with default keys and no names to resolve, for tests and benchmarks.
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

    /// Returns the maximum number of clients that the stick table remembers.
    pub fn most_remembered(&self) -> usize {
        match self.keys.stick {
            StickBy::None => 0,
            StickBy::Source | StickBy::TlsSession => self.keys.stick_entries,
        }
    }
}

impl Server {
    /// Returns a server with default keys, for tests and benchmarks.
    pub fn plain(name: &str, addresses: Vec<ServerAddress>) -> Self {
        Self {
            keys: backend::ServerSection::default(),
            name: name.into(),
            addresses,
            added: false,
        }
    }

    /// Returns host and port if the server is configured by name.
    pub fn host(&self) -> Option<(String, u16)> {
        match Written::parse(&self.name).ok()?.address {
            Address::Name(host, port) => Some((host, port)),
            _ => None,
        }
    }
}
