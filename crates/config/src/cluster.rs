//! `[cluster]`: what is shared with other hosts.

use std::time::Duration;

use crate::address::{GroupAddress, InterfaceName, ListenAddress, PeerAddress};
use crate::notation::{Bytes, DAY, HOUR, Off, SECOND, Time, TimeOr, Whole};
use crate::section::section;

section! {
/// `[cluster]`
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
    #[serde(with = "TimeOr::<Off, SECOND, DAY>")]
    pub resolve_interval: Option<Duration> = Some(Duration::from_secs(30)),
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
    pub rotation: Duration = Duration::from_secs(8 * 3600),
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
}

impl Cluster {
    /// Whether anything is shared with other beckets. Else sessions of stud and hitch are taken, and that is all.
    pub fn shares(&self) -> bool {
        let secrets = [&self.secret, &self.secret_state];
        !self.receive_stud
            || secrets.iter().any(|secret| secret.is_some())
            || !self.accept_secrets.is_empty()
            || self.node.is_some()
            || self.listen.is_some()
            || !self.peers.is_empty()
            || self.multicast.is_some()
            || self.tls12_tickets
    }
}

section! {
/// `[cluster.limits]`: bounds on what peers can cost.
pub struct ClusterLimits {
    /// Datagrams read before other work gets its turn.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub datagrams_per_turn: usize = 256,
    /// Sessions of one peer in the table.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub entries_per_peer: usize = 200_000,
    /// Bytes sent to all peers together in a second; below, one full datagram would not fit into a second.
    #[serde(with = "Bytes::<1400, 100_000_000_000>")]
    pub bytes_per_second: usize = 32 << 20,
    /// Sessions of one worker that wait to be sent.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub queue: usize = 16_384,
    /// Greetings of unknown peers that are opened in a second.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub hellos_per_second: usize = 32,
}
}
