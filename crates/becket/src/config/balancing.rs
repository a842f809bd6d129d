//! Backends and servers with every key at its default.

use std::time::Duration;

use super::{Backend, Balance, OnDown, QueuePlace, Server, ServerAddress, StickBy};

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
