//! The event loop of a worker, and all workers as control sees them.
//!
//! [`event_loop`] has [`event_loop::Worker`] and its turn. Parts of the turn: `slices` (established connections, handshakes, signatures), `accept` (new clients),
//! `messages` (of control and other threads), `overdue` (deadlines and sweeps), `lists` (lists of connections).

mod accept;
mod acceptor;
pub mod bound;
pub mod event_loop;
pub mod listing;
mod lists;
pub mod mailbox;
mod messages;
pub mod net;
mod overdue;
mod shares;
mod slices;
pub mod start;
mod sweep;
mod unsigned;
pub mod workers;
