//! The event loop of a worker, and the interface of the control thread to all workers.
//!
//! [`event_loop`] contains [`event_loop::Worker`], which runs the loop. These modules contain parts
//! of a turn: `slices` (established connections, handshakes, signatures), `accept` (new clients),
//! `messages` (from the control thread and other threads), `overdue` (deadlines and sweeps),
//! `reclaim` (idle connections that hold slots), `lists` (lists of connections).
//!
//! A worker blocks only in its poll: it never waits for a disk, a name lookup, another thread, a
//! token or a log. It may take a lock that is held for a single lookup or insert. Longer work runs
//! on another thread, and its result arrives as a message.

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
mod reclaim;
mod shares;
mod slices;
pub mod start;
mod sweep;
mod unsigned;
pub mod workers;
