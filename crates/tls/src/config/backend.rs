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

#[derive(Clone, Debug)]
pub struct Backend {
    pub keys: backend::Backend,
    /// Directory whose files are served. If set, clients are not relayed to servers.
    pub docroot: Option<Arc<Docroot>>,
    /// Servers of the backend. The list is empty only if files are served.
    pub servers: Vec<Server>,
    /// Names of servers that an operator removed at run time although they are in the configuration
    /// file.
    pub removed: Vec<Arc<str>>,
    pub tls: Option<Onward>,
    /// Maximum time in the queue: the configured value, or `timeouts.connect`.
    pub queue_timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub keys: backend::ServerSection,
    /// Address as configured, which is also the server's name in metrics and logs.
    pub name: Arc<str>,
    /// Addresses in the order of connection attempts. Empty for a host name, unless names were
    /// resolved when the configuration was loaded. `ServerState` contains the addresses in use.
    pub addresses: Vec<ServerAddress>,
    /// `true` if an operator added the server at run time. The server is then not in the
    /// configuration file.
    pub added: bool,
}

impl Backend {
    /// Returns a backend with default settings and without host names, for tests and benchmarks.
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

    pub fn most_remembered(&self) -> usize {
        match self.keys.stick {
            StickBy::None => 0,
            StickBy::Source | StickBy::TlsSession => self.keys.stick_entries,
        }
    }
}

impl Server {
    /// Returns a server with default settings, for tests and benchmarks.
    pub fn plain(name: &str, addresses: Vec<ServerAddress>) -> Self {
        Self {
            keys: backend::ServerSection::default(),
            name: name.into(),
            addresses,
            added: false,
        }
    }

    /// Returns host name and port, if the server is configured by host name.
    pub fn host(&self) -> Option<(String, u16)> {
        match Written::parse(&self.name).ok()?.address {
            Address::Name(host, port) => Some((host, port)),
            _ => None,
        }
    }
}
