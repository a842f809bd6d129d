//! The data plane: workers with an event loop each, and connections from accept to close.
//!
//! This crate accepts clients, relays bytes, chooses servers, queues for their slots and counts. It reads no file of the configuration and
//! takes no command from an operator: control sends it messages ([`worker::mailbox`]).
//!
//! Main types: [`worker::event_loop::Worker`] is one event loop, [`connection::Connection`] is one client with its server, and [`shared::SharedState`] is the
//! state that all threads share.
//!
//! ```
//! use becket_proto::close_reason::CloseReason;
//! let counters = becket_proxy::metrics::Counters::default();
//! counters.closed.of(CloseReason::ServerDown).add(1);
//! assert_eq!(counters.closed.total(), 1);
//! ```
//!
//! * [`worker`]: the event loop; [`worker::workers`]: all workers as control sees them;
//! * [`connection`]: the phases of a connection, over the traits of [`socket`];
//! * [`backend`]: servers, their slots, queues and health;
//! * [`leg`]: one side of a connection; [`pipes`]: pipes for bulk;
//! * [`shared`]: the state that workers and control share; [`metrics`]: counters; [`memory`]: the watermark.
//!
//! Start reading at [`shared`], then [`worker`], then [`connection`].
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "a crate of one program: a name that says what it is needs no comment"
)]

pub mod backend;
pub mod connection;
pub mod leg;
pub mod memory;
pub mod metrics;
pub mod pipes;
pub mod shared;
pub mod socket;
mod sync;
pub mod worker;
