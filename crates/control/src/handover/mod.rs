//! Transfer of state from a serving process to its replacement, over a socket pair.
//!
//! An upgrade passes three things: this state (sessions, ticket secrets, health of servers, stick
//! entries); listening sockets and counts of shared limits, by the commands and events of
//! [`becket_process::protocol`]; and, if the supervisor replaces its own program, the supervisor's
//! state with its descriptors, listed in `crates/process/src/carried.rs`.
//!
//! The old process has a [`sender::Sender`], the new process a [`receiver`]. The old process copies
//! sessions and stick entries while it serves, and then sends each new session. After it has
//! stopped accepting, it sends changed stick entries, the health of servers, ticket secrets, and a
//! record that marks the cut. The new process serves after the cut. Sessions of the old process's
//! last handshakes follow the cut. [`becket_proto::handover`] defines the format.

pub mod receiver;
pub mod sender;
