//! `[cluster]`: tickets and sessions that several hosts share.

use std::time::Duration;

use crate::address::{ListenAddress, PeerAddress};
use crate::notation::{DAY, HOUR, MILLISECOND, Off, OwnAddress, SECOND, Time, TimeOr, WholeOr};
use crate::section::section;
use crate::store_address::StoreAddress;

section! {
pub struct Cluster {
    /// File with the cluster secret.
    pub secret: Option<String>,
    /// PEM file with a private key from which the secret is derived.
    pub secret_from_key: Option<String>,
    /// Files with additional cluster secrets that this node accepts.
    pub accept_secrets: Vec<String>,
    /// Number of this node, different on each node; `None` for the end of its address.
    #[serde(with = "WholeOr::<OwnAddress, 1, 65_535>")]
    pub node: Option<u16>,
    /// UDP address for replication between peers; if absent, only tickets are shared.
    pub listen: Option<ListenAddress>,
    pub peers: Vec<PeerAddress>,
    /// Interval between DNS lookups of the peers' names.
    #[serde(with = "TimeOr::<Off, SECOND, DAY>")]
    pub resolve_interval: Option<Duration> = Some(Duration::from_secs(30)),
    /// Lifetime of a ticket key, equal on all nodes. A ticket is valid for up to two lifetimes, and
    /// RFC 8446, section 4.6.1, limits it to seven days.
    #[serde(with = "Time::<SECOND, { 84 * HOUR }>")]
    pub rotation: Duration = Duration::from_secs(8 * 3600),
    /// Overrides `sessions.max-age`.
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub session_max_age: Option<Duration>,
    /// Issue tickets to TLS 1.2 clients.
    pub tls12_tickets: bool,
    /// Redis or Valkey server for TLS 1.2 sessions by ID, if nodes do not know each other.
    pub store: Option<StoreAddress>,
    pub store_user: Option<String>,
    /// File with the password of the store.
    pub store_password_file: Option<String>,
    /// CA certificates of the store; absent means the system's.
    pub store_ca: Option<String>,
    /// Maximum time that a handshake waits for the store.
    #[serde(with = "Time::<MILLISECOND, SECOND>")]
    pub store_timeout: Duration = Duration::from_millis(10),
}
}
