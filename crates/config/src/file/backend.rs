//! `[[backend]]` and its servers as written.

use serde::{Deserialize, Serialize};

use super::{FileHealth, FileOnward, Scalar};
use crate::choices::{Balance, OnDown, ProxyVersion, QueuePlace, StickBy};

/// `[[backend]]`: a pool of servers.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileBackend {
    /// Unique.
    pub name: Option<String>,
    /// The PROXY header towards the servers.
    pub proxy_header: Option<ProxyVersion>,
    /// What a header of version 2 says only if asked to.
    pub proxy_tlvs: Vec<FileProxyTlv>,
    /// `[backend.tls]`; without it the servers speak plain TCP.
    pub tls: Option<FileOnward>,
    /// Who gets the next connection.
    pub balance: Balance,
    /// Connections that may wait for a slot.
    pub queue_length: u64,
    /// A duration; the default is `timeouts.connect`.
    pub queue_timeout: Option<Scalar>,
    /// When a connection asks for a slot.
    pub queue: QueuePlace,
    /// Whether a client that ends its stream while it waits gives up its place.
    pub abort_on_half_close: bool,
    /// Further servers or addresses that are tried when a connect fails.
    pub retries: u64,
    /// What becomes of a server's connections when it goes out of service.
    pub on_down: OnDown,
    /// By what clients are known again.
    pub stick: StickBy,
    /// Clients that are remembered.
    pub stick_entries: u64,
    /// A duration.
    pub stick_lifetime: Scalar,
    /// A duration or `off`.
    pub resolve_interval: Scalar,
    /// IP addresses of this host.
    pub source: Vec<String>,
    /// `[backend.health]`
    pub health: FileHealth,
    /// `[[backend.server]]`
    pub server: Vec<FileServer>,
}

impl Default for FileBackend {
    fn default() -> Self {
        Self {
            name: None,
            proxy_header: None,
            proxy_tlvs: Vec::new(),
            tls: None,
            balance: Balance::default(),
            queue_length: 1024,
            queue_timeout: None,
            queue: QueuePlace::default(),
            abort_on_half_close: false,
            retries: 3,
            on_down: OnDown::default(),
            stick: StickBy::default(),
            stick_entries: 100_000,
            stick_lifetime: "30m".into(),
            resolve_interval: "1m".into(),
            source: Vec::new(),
            health: FileHealth::default(),
            server: Vec::new(),
        }
    }
}

/// A part of the PROXY header that is not always sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileProxyTlv {
    /// A checksum.
    Crc32c,
    /// A name of the connection.
    UniqueId,
    /// The client's certificate, DER.
    ClientCertificate,
}

/// `[[backend.server]]`: one server.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileServer {
    /// `HOST:PORT`, `[V6]:PORT` or `/unix/path`.
    pub address: Option<String>,
    /// Share of new connections.
    pub weight: u64,
    /// Connections that it may have.
    pub maxconn: Option<u64>,
    /// Connections that it may have while nobody waits.
    pub minconn: Option<u64>,
    /// Serves only when no other server can.
    pub backup: bool,
    /// Gets no connections.
    pub disabled: bool,
    /// Its number in becket's tickets, when it is a becket itself.
    pub node: Option<u64>,
}

impl Default for FileServer {
    fn default() -> Self {
        Self {
            address: None,
            weight: 1,
            maxconn: None,
            minconn: None,
            backup: false,
            disabled: false,
            node: None,
        }
    }
}
