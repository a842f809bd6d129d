//! `[cluster]`: what is shared with other hosts.

use std::time::Duration;

use crate::address::{ListenAddress, PeerAddress};
use crate::notation::{DAY, HOUR, Off, SECOND, Time, TimeOr, Whole};
use crate::section::section;

section! {
/// `[cluster]`
pub struct Cluster {
    /// A file.
    pub secret: Option<String>,
    /// A PEM file with a private key, from which the secret is made.
    pub secret_from_key: Option<String>,
    /// Further files.
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
}
}

impl Cluster {
    /// Whether anything is shared with other beckets. Else sessions of stud and hitch are taken, and that is all.
    pub fn shares(&self) -> bool {
        !self.receive_stud
            || self.secret.is_some()
            || self.secret_from_key.is_some()
            || !self.accept_secrets.is_empty()
            || self.node.is_some()
            || self.listen.is_some()
            || !self.peers.is_empty()
            || self.tls12_tickets
    }
}
