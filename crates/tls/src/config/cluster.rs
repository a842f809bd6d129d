//! `[cluster]` as it is used: what this becket shares with others.

use std::net::SocketAddr;

use becket_cluster::Peer;
use becket_cluster::stud::StudKey;
use becket_config::cluster;
use becket_proto::epoch::EpochLength;
use becket_proto::session::PolicyTag;
use becket_proto::ticket::NodeId;

use crate::secret::shared::SharedSecret;

/// What this becket shares with others.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// As the file has it.
    pub keys: cluster::Cluster,
    /// Names this becket among the others; at least 1. A hint in tickets, and the name of a peer.
    pub node: NodeId,
    /// The first one seals; all of them open and let peers in. Never empty, each id once.
    pub secrets: Vec<SharedSecret>,
    /// How long an epoch of ticket keys lasts; the same on all nodes.
    pub rotation: EpochLength,
    /// Where datagrams of peers arrive; without, only tickets are shared.
    pub listen: Option<SocketAddr>,
    /// Peers by address. Each name once.
    pub peers: Vec<Peer>,
}

/// Terms on which sessions of stud and hitch are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stud {
    /// Where their datagrams arrive.
    pub listen: SocketAddr,
    /// What seals them.
    pub key: StudKey,
    /// Configuration name of the policy.
    pub policy_name: String,
    /// The policy under which they resume.
    pub policy: PolicyTag,
    /// Numbers of its suites for TLS 1.2.
    pub suites: Vec<u16>,
    /// It refuses sessions without extended master secret.
    pub require_ems: bool,
}
