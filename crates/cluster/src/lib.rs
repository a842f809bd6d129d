//! Replication of TLS 1.2 sessions between hosts, and of where their clients were sent.
//!
//! The terminator starts a [`Membership`], gives it new [`Settings`] at a reload, shows its [`ClusterStatus`], and leaves a
//! [`SessionEvent`] in an [`Outbox`] for each session that is made or ends; sessions of other hosts appear in its session table.
//! Everything but the outboxes runs on the thread that starts the membership.
//!
//! ```
//! use becket_cluster::replica::{MAX_DATAGRAM, ReplicaLimits};
//! assert!(MAX_DATAGRAM < ReplicaLimits::default().queue_bytes);
//! ```
//!
//! * [`replica`] decides what is said to whom, and what is believed: a pure state machine;
//! * [`vault`] gives it cryptography, [`socket`] UDP, [`exchange`] a task that receives, tells, sends, sleeps;
//! * [`sink`] is the session table as peers fill and read it, [`addresses`] where the peers are;
//! * [`node`] holds these together; [`status`] is what pages show of them, [`peer_log`] what the log is told;
//! * [`outbox`] leads from the workers to the task;
//! * [`stud`] takes sessions of other terminators, which have a way of their own.
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
pub mod stud;
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
