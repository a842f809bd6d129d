//! The event loop of a worker, and all workers as control sees them.
//!
//! [`event_loop`] has [`event_loop::Worker`] and its turn. Parts of the turn: `slices` (established connections, handshakes, signatures), `accept` (new clients),
//! `messages` (of control and other threads), `overdue` (deadlines and sweeps), `reclaim` (connections at rest that hold slots), `lists` (lists of connections).
//!
//! A worker never blocks. It waits for nothing but its poll: not for a disk, a name, a thread, a token or a log. It opens no file, starts
//! no thread, and calls no clock but once per turn. It may take a lock that is held for one lookup or insert: the shard of a table (TLS 1.2
//! sessions by ID, early data, sticks, limits of a source) and the queue of a backend. Whatever takes longer goes to another thread and
//! comes back as a message.

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
