//! TLS 1.2 sessions by ID, and what ACME companions share, in a Redis or Valkey server of a fleet.
//!
//! [`Store`] runs one thread. It writes each new session of the workers to the server, and looks up the sessions that
//! clients offer and the session table lacks. A worker never waits for the server: new sessions pass through the bounded
//! queues of [`Outbox`](becket_cluster::Outbox), and requests through [`StoreLookups`](becket_cluster::StoreLookups). Without the
//! server, clients make full handshakes. Sessions that allow early data are never stored.
//!
//! * [`vault`] seals the sessions, so that the server knows nothing about them and cannot make any;
//! * [`breaker`] decides when the server is used; it has no clock;
//! * [`connection`] connects to one server, by sentinels, or to a Redis Cluster;
//! * [`exchange`] shares claims, challenges and bundles of the ACME companions;
//! * [`service`] is the thread; [`status`] describes it for the admin pages.
//!
//! ```
//! use becket_store::{Breaker, MOST_FAILURES};
//! use std::time::Duration;
//! let mut breaker = Breaker::new(Duration::ZERO);
//! breaker.handle_connected(Duration::ZERO);
//! let opened = (0..MOST_FAILURES).any(|_| breaker.handle_failure(Duration::ZERO));
//! assert!(opened && !breaker.is_closed());
//! ```
#![forbid(unsafe_code)]

mod breaker;
mod connection;
mod exchange;
mod service;
mod status;
mod vault;

pub use self::breaker::{Breaker, MOST_FAILURES};
pub use self::connection::StoreServer;
pub use self::service::{Store, StoreHost, StoreSettings, StoreView};
pub use self::status::{StoreCounts, StoreStatus};
pub use self::vault::{Lifetimes, Live, MOST_VALUE, PREFIX, StoreVault, decode};
