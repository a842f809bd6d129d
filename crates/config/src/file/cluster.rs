//! `[cluster]` as written.

use serde::{Deserialize, Serialize};

use super::Scalar;

/// `[cluster]`: what is shared with other hosts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileCluster {
    /// A file; this or `secret-state`.
    pub secret: Option<String>,
    /// The file of a ratchet; this or `secret`.
    pub secret_state: Option<String>,
    /// Files of either kind.
    pub accept_secrets: Vec<String>,
    /// 1 to 65535.
    pub node: Option<u64>,
    /// `HOST:PORT`, `[V6]:PORT` or `:PORT`, UDP.
    pub listen: Option<String>,
    /// `HOST:PORT` or `[V6]:PORT`.
    pub peers: Vec<String>,
    /// A duration, or `off`.
    pub resolve_interval: Scalar,
    /// A group, `ADDRESS:PORT`.
    pub multicast: Option<String>,
    /// Name of a network interface.
    pub multicast_interface: Option<String>,
    /// Hops.
    pub multicast_ttl: Option<u64>,
    /// A duration.
    pub rotation: Scalar,
    /// A duration; instead of `sessions.max-age`.
    pub session_max_age: Option<Scalar>,
    /// Hand out tickets to TLS 1.2 clients.
    pub tls12_tickets: bool,
    /// Take sessions of stud and hitch.
    pub receive_stud: bool,
    /// `HOST:PORT`, `[V6]:PORT` or `:PORT`, UDP.
    pub stud_listen: Option<String>,
    /// A PEM file with an RSA key.
    pub stud_certificate: Option<String>,
    /// Name of a policy in use.
    pub stud_policy: Option<String>,
    /// `[cluster.limits]`
    pub limits: FileClusterLimits,
}

impl Default for FileCluster {
    fn default() -> Self {
        Self {
            secret: None,
            secret_state: None,
            accept_secrets: Vec::new(),
            node: None,
            listen: None,
            peers: Vec::new(),
            resolve_interval: "30s".into(),
            multicast: None,
            multicast_interface: None,
            multicast_ttl: None,
            rotation: "8h".into(),
            session_max_age: None,
            tls12_tickets: false,
            receive_stud: false,
            stud_listen: None,
            stud_certificate: None,
            stud_policy: None,
            limits: FileClusterLimits::default(),
        }
    }
}

/// `[cluster.limits]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileClusterLimits {
    /// Datagrams.
    pub datagrams_per_turn: u64,
    /// Sessions.
    pub entries_per_peer: u64,
    /// A size.
    pub bytes_per_second: Scalar,
    /// Sessions.
    pub queue: u64,
    /// Greetings.
    pub hellos_per_second: u64,
}

impl Default for FileClusterLimits {
    fn default() -> Self {
        Self {
            datagrams_per_turn: 256,
            entries_per_peer: 200_000,
            bytes_per_second: "32MiB".into(),
            queue: 16_384,
            hellos_per_second: 32,
        }
    }
}
