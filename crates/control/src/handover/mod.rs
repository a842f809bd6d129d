//! Transfer of state from a serving process to its replacement, over a socket pair.
//!
//! An upgrade passes three things: this state (sessions, ticket secrets, health of servers,
//! sticks); listening sockets and counts of shared limits, by the commands and events of
//! [`becket_process::protocol`]; and, if the supervisor replaces its own program, the supervisor's
//! state with its descriptors, listed in `crates/process/src/carried.rs`.
//!
//! The old process has a [`sender::Sender`], the new one a [`receiver`]. Sessions and sticks are
//! copied while the old process serves, followed by new sessions. After the old process has stopped
//! accepting, it sends changed sticks, servers and secrets, and a cut. The new process serves after
//! the cut. Sessions of the old process's last handshakes follow later. [`becket_proto::handover`]
//! defines the format.

pub mod receiver;
pub mod sender;
