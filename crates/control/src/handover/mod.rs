//! State on its way from a serving process to the one that replaces it, over a socket pair of the two.
//!
//! An upgrade passes three things: this state (sessions, ticket secrets, health of servers, sticks); listening sockets and shares of limits,
//! by the commands and events of [`becket_process::protocol`]; and, if the supervisor becomes a new program, its own state with the
//! descriptors that it holds, which `crates/process/src/carried.rs` lists.
//!
//! The old process has a [`sender::Sender`], the new one a [`receiver`]. Sessions are copied while the old process serves, then those that
//! came in the meantime. After the old process has stopped accepting, it sends the rest and a cut, from which the new process may serve. Sessions of
//! the old process's last handshakes follow as they come. The layout is [`becket_proto::handover`]'s.

pub mod receiver;
pub mod sender;
