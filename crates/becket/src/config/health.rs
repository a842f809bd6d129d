//! `[backend.health]` as it is used.

use std::time::Duration;

use becket_config::address::{Address, ServerAddress as Written};
use becket_config::notation::Text;
use becket_proto::health::Rules;
use becket_proto::http_status::Expected;

use super::{CheckKind, Server};

/// How the servers of a backend are looked after.
#[derive(Clone, Debug)]
pub struct Health {
    /// How far a check goes.
    pub check: CheckKind,
    /// What takes a server out of service and brings it back.
    pub rules: Rules,
    /// For each address of a server.
    pub timeout: Duration,
    /// What an HTTP check asks for.
    pub path: String,
    /// The host that it names; absent is the server's address.
    pub host: Option<String>,
    /// Statuses of a server that is well.
    pub expect: Vec<Expected>,
}

impl Default for Health {
    /// Nobody looks after them.
    fn default() -> Self {
        Self {
            check: CheckKind::None,
            rules: Rules {
                checks: None,
                passive: None,
                slow_start: Duration::ZERO,
            },
            timeout: Duration::from_secs(2),
            path: "/".to_owned(),
            host: None,
            expect: Vec::new(),
        }
    }
}

impl Server {
    /// Host and port, where the server is known by a name.
    pub fn host(&self) -> Option<(String, u16)> {
        match Written::parse(&self.name).ok()?.address {
            Address::Name(host, port) => Some((host, port)),
            _ => None,
        }
    }
}
