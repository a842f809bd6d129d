//! `[cluster]`: what is shared with other hosts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::address::{GroupAddress, InterfaceName, ListenAddress, PeerAddress};
use crate::notation::{Bytes, DAY, HOUR, SECOND, Time, TimeOrOff, Whole};

/// `[cluster]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cluster {
    /// A file; this or `secret-state`.
    pub secret: Option<String>,
    /// The file of a ratchet; this or `secret`.
    pub secret_state: Option<String>,
    /// Files of either kind.
    pub accept_secrets: Vec<String>,
    /// This becket among the others; absent is a fault.
    #[serde(with = "Whole::<1, 65_535>")]
    pub node: Option<u16>,
    /// Where datagrams of peers arrive; without, only tickets are shared.
    pub listen: Option<ListenAddress>,
    /// Peers by address.
    pub peers: Vec<PeerAddress>,
    /// How often their names are looked up again.
    #[serde(with = "TimeOrOff::<SECOND, DAY>")]
    pub resolve_interval: Option<Duration>,
    /// A group where nodes look for each other.
    pub multicast: Option<GroupAddress>,
    /// The network interface of the group; absent leaves the choice to the routes.
    pub multicast_interface: Option<InterfaceName>,
    /// Hops that a datagram to the group may go; absent is 1, which stays on the link.
    #[serde(with = "Whole::<1, 255>")]
    pub multicast_ttl: Option<u8>,
    /// How long an epoch of ticket keys lasts; the same on all nodes. At most half of what RFC 8446, section 4.6.1, allows a
    /// ticket to live: one is good for up to two epochs.
    #[serde(with = "Time::<SECOND, { 84 * HOUR }>")]
    pub rotation: Duration,
    /// Instead of `sessions.max-age`.
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub session_max_age: Option<Duration>,
    /// Hand out tickets to TLS 1.2 clients.
    pub tls12_tickets: bool,
    /// Take sessions of stud and hitch.
    pub receive_stud: bool,
    /// Where their datagrams arrive.
    pub stud_listen: Option<ListenAddress>,
    /// A PEM file with an RSA key.
    pub stud_certificate: Option<String>,
    /// Name of a policy in use.
    pub stud_policy: Option<String>,
    /// `[cluster.limits]`
    pub limits: ClusterLimits,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            secret: None,
            secret_state: None,
            accept_secrets: Vec::new(),
            node: None,
            listen: None,
            peers: Vec::new(),
            resolve_interval: Some(Duration::from_secs(30)),
            multicast: None,
            multicast_interface: None,
            multicast_ttl: None,
            rotation: Duration::from_secs(8 * 3600),
            session_max_age: None,
            tls12_tickets: false,
            receive_stud: false,
            stud_listen: None,
            stud_certificate: None,
            stud_policy: None,
            limits: ClusterLimits::default(),
        }
    }
}

/// `[cluster.limits]`: bounds on what peers can cost.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ClusterLimits {
    /// Datagrams read before other work gets its turn.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub datagrams_per_turn: usize,
    /// Sessions of one peer in the table.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub entries_per_peer: usize,
    /// Bytes sent to all peers together in a second; below, one full datagram would not fit into a second.
    #[serde(with = "Bytes::<1400, 100_000_000_000>")]
    pub bytes_per_second: usize,
    /// Sessions of one worker that wait to be sent.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub queue: usize,
    /// Greetings of unknown peers that are opened in a second.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub hellos_per_second: usize,
}

impl Default for ClusterLimits {
    fn default() -> Self {
        Self {
            datagrams_per_turn: 256,
            entries_per_peer: 200_000,
            bytes_per_second: 32 << 20,
            queue: 16_384,
            hellos_per_second: 32,
        }
    }
}
