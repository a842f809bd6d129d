//! Replicates TLS 1.2 sessions, and the assignments of clients to servers, between the hosts of a cluster.
//!
//! The terminator starts a [`Membership`], passes new [`Settings`] to it at a reload, and shows its [`ClusterStatus`].
//! Workers put a [`SessionEvent`] into an [`Outbox`] for each session that is created or ends. Sessions of other hosts
//! are added to the session table. Everything except the outboxes runs on the thread that starts the membership.
//!
//! ```
//! use becket_cluster::replica::{MAX_DATAGRAM, ReplicaLimits};
//! assert!(MAX_DATAGRAM < ReplicaLimits::default().queue_bytes);
//! ```
//!
//! * [`replica`] is a state machine without I/O that decides what to send to which peer, and what to accept;
//! * [`vault`] implements its cryptography, [`socket`] sends and receives UDP datagrams, and [`exchange`] is the task
//!   that runs it;
//! * [`sink`] connects it to the session table, and [`addresses`] looks up the addresses of peers;
//! * [`node`] owns these parts, [`status`] describes them for the admin pages, and [`peer_log`] logs changes;
//! * [`sharing`] exchanges pending ACME challenges and ordered certificates;
//! * [`outbox`] transports events from the workers to the task, and [`lookups`] requests to a store.
#![forbid(unsafe_code)]

mod addresses;
mod exchange;
mod lookups;
mod membership;
mod node;
mod outbox;
mod peer_log;
pub mod replica;
mod settings;
pub mod sharing;
mod sink;
mod socket;
pub mod status;
mod sticks;
mod sync;
mod vault;

pub use self::addresses::{ConfiguredPeer, NameLookup, Resolve};
pub use self::lookups::{LookupRequest, StoreLookups};
pub use self::membership::Membership;
pub use self::node::{Host, NoBoot, Node};
pub use self::outbox::{BATCH, Outbox, OutboxReader, SessionEvent};
pub use self::replica::PeerStick;
pub use self::settings::{Peer, Secret, Settings};
pub use self::sink::SinkCounts;
pub use self::socket::bind;
pub use self::status::ClusterStatus;

pub use self::sticks::StickMemory;
