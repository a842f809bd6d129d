//! Replication of TLS 1.2 sessions between hosts.
//!
//! Everything but [`outbox`] runs on the control thread: a worker leaves a note there and goes on.

pub mod outbox;

pub mod vault;
