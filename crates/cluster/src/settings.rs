//! What replication is told by the configuration: at the start, and again at each reload.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::session::PolicyTag;
use becket_proto::ticket::{NodeId, SecretId};
use zeroize::Zeroizing;

/// Everything at once. A reload changes all but `node` and `listen`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The number of this host among the others.
    pub node: NodeId,
    /// The first one joins; all of them let peers in.
    pub secrets: Vec<Secret>,
    /// Where datagrams of peers arrive.
    pub listen: SocketAddr,
    /// Each name once.
    pub peers: Vec<Peer>,
    /// How often names of peers are looked up again; without, only until they are known.
    pub resolve_interval: Option<Duration>,
    /// The policies of all routes: sessions of others are refused.
    pub policies: HashSet<PolicyTag>,
    /// How long a session may live here.
    pub id_lifetime: Duration,
    /// The age after the full handshake at which no session resumes.
    pub max_age: Duration,
    /// How long it may be remembered where a client was sent.
    pub stick_lifetime: Duration,
}

/// A secret by which nodes know each other. The id names it on all nodes and changes with the key.
#[derive(Clone)]
pub struct Secret {
    /// Its name.
    pub id: SecretId,
    /// What keys are derived from.
    pub key: Zeroizing<[u8; 32]>,
}

/// A peer as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// As written; a label of status and log.
    pub name: Arc<str>,
    /// Host and port to look up; nothing for an address.
    pub lookup: Option<(String, u16)>,
    /// The address, or what was found at the last lookup.
    pub addresses: Vec<SocketAddr>,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Secret({:08x})", self.id.0)
    }
}
