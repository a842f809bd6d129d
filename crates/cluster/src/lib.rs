//! Replicates TLS 1.2 sessions between hosts, and the assignments of clients to servers.
//!
//! The terminator starts a [`Membership`], passes it new [`Settings`] at a reload, shows its [`ClusterStatus`], and
//! puts a [`SessionEvent`] into an [`Outbox`] for each session that is created or ends. Sessions of other hosts appear
//! in its session table. Everything except the outboxes runs on the thread that starts the membership.
//!
//! ```
//! use becket_cluster::replica::{MAX_DATAGRAM, ReplicaLimits};
//! assert!(MAX_DATAGRAM < ReplicaLimits::default().queue_bytes);
//! ```
//!
//! * [`replica`] decides which data to send to which peer, and which data to accept: a pure state machine;
//! * [`vault`] implements its cryptography, [`socket`] sends and receives UDP, [`exchange`] is the task that receives,
//!   sends and sleeps;
//! * [`sink`] connects it to the session table, [`addresses`] looks up the addresses of peers;
//! * [`node`] owns these parts; [`status`] is shown on pages, [`peer_log`] logs changes;
//! * [`outbox`] transports events from the workers to the task.
#![forbid(unsafe_code)]

mod addresses;
mod exchange;
mod membership;
mod node;
mod outbox;
mod peer_log;
pub mod replica;
mod settings;
mod sink;
mod socket;
pub mod status;
mod sticks;
mod sync;
mod vault;

pub use self::addresses::{ConfiguredPeer, NameLookup, Resolve};
pub use self::membership::Membership;
pub use self::node::{Host, NoBoot, Node};
pub use self::outbox::{Outbox, SessionEvent};
pub use self::replica::PeerStick;
pub use self::settings::{Peer, Secret, Settings};
pub use self::sink::SinkCounts;
pub use self::socket::{NotBound, bind};
pub use self::status::ClusterStatus;

pub use self::sticks::StickMemory;
