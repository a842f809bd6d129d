//! How a backend shares its clients among its servers: the choices that a file may name.
//!
//! Each is one word in the file and one value here; what they do is `backend/`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Backend, Server, ServerAddress};

/// Who of the servers gets the next connection, by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// In turn.
    #[default]
    RoundRobin,
    /// The least busy one.
    LeastConnections,
    /// The less busy one of two that are drawn.
    TwoRandomChoices,
    /// The first that has a free slot, in the order of the file.
    First,
    /// Always the same one for a client's address.
    SourceHash,
    /// Always the same one for a server name of the hello.
    SniHash,
}

/// When a connection asks for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueuePlace {
    /// When its handshake is complete.
    #[default]
    AfterHandshake,
    /// When its hello was read, before a private key is used for it.
    BeforeHandshake,
}

/// What becomes of a server's connections when it goes out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnDown {
    /// They go on.
    #[default]
    Drain,
    /// They are closed.
    Close,
}

/// By what a client is known again, to be given the server that it had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StickBy {
    /// Not at all.
    #[default]
    None,
    /// By its address.
    Source,
    /// By the TLS session that it resumes.
    TlsSession,
}

impl Backend {
    /// A backend with every key at its default, for tests and benches.
    pub fn plain(name: &str, servers: Vec<Server>) -> Self {
        Self {
            name: name.to_owned(),
            servers,
            proxy_header: None,
            proxy_tlvs: Default::default(),
            tls: None,
            balance: Balance::default(),
            queue_length: 1024,
            queue_timeout: Duration::from_secs(5),
            queue: QueuePlace::default(),
            abort_on_half_close: false,
            retries: 3,
            on_down: OnDown::default(),
            stick: StickBy::default(),
            stick_entries: 0,
            stick_lifetime: Duration::from_secs(1800),
            health: super::Health::default(),
            resolve_interval: None,
            source: Vec::new(),
        }
    }
}

impl Server {
    /// A server with every key at its default, for tests and benches.
    pub fn plain(name: &str, addresses: Vec<ServerAddress>) -> Self {
        Self {
            name: name.into(),
            addresses,
            weight: 1,
            maxconn: None,
            minconn: None,
            backup: false,
            disabled: false,
            node: None,
        }
    }
}
