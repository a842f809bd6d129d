//! The event loop of a worker, and the interface of all workers to the control thread.
//!
//! [`event_loop`] contains [`event_loop::Worker`] and its turn. Modules with parts of a turn:
//! `slices` (established connections, handshakes, signatures), `accept` (new clients), `messages`
//! (from the control thread and other threads), `overdue` (deadlines and sweeps), `reclaim` (idle
//! connections that hold slots), `lists` (lists of connections).
//!
//! A worker never blocks. It waits only for its poll: not for a disk, a name, a thread, a token or
//! a log. It opens no file, starts no thread, and reads the clock only once per turn and after
//! steps. It may take a lock that is held for one lookup or insert: a shard of a table (TLS 1.2
//! sessions by ID, early data, sticks, limits of a source) or the queue of a backend. Longer work
//! runs on another thread, and its result arrives as a message.

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
