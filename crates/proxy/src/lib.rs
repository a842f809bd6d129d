//! The data plane: workers with one event loop each, and connections from accept to close.
//!
//! This crate accepts clients, relays bytes, chooses servers, queues connections for server slots,
//! and counts events. It reads no configuration file and executes no operator commands: the control
//! thread sends messages to the workers ([`worker::mailbox`]).
//!
//! Main types: [`worker::event_loop::Worker`] is one event loop, [`connection::Connection`] is one
//! client with its server, and [`shared::SharedState`] is the state that all threads share.
//!
//! ```
//! use becket_proto::close_reason::CloseReason;
//! let counters = becket_proxy::metrics::Counters::default();
//! counters.closed.of(CloseReason::ServerDown).add(1);
//! assert_eq!(counters.closed.total(), 1);
//! ```
//!
//! * [`worker`]: the event loop; [`worker::workers`]: all workers, for the control thread;
//! * [`connection`]: the phases of a connection, over the traits of [`socket`];
//! * [`backend`]: servers, their slots, queues and health;
//! * [`leg`]: one side of a connection; [`pipes`]: pipes for bulk data;
//! * [`shared`]: state shared by workers and the control thread; [`metrics`]: counters; [`memory`]:
//!   memory pressure.
//!
//! Start reading at [`shared`], then [`worker`], then [`connection`].
#![forbid(unsafe_code)]

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
