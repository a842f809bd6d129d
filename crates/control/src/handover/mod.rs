//! Transfer of state from the serving process to its replacement during an upgrade, over a socket
//! pair.
//!
//! The state consists of sessions, ticket secrets, health of servers, and stick entries. Listening
//! sockets and the counts of shared limits are passed separately, in commands and events of
//! [`becket_process::protocol`]. If the supervisor replaces its own program, it passes its state as
//! listed in `crates/process/src/carried.rs`.
//!
//! The old process has a [`sender::Sender`], the new process a [`receiver`].
//! [`becket_proto::handover`] defines the format. The transfer has these steps:
//!
//! 1. The old process copies sessions and stick entries while it serves clients, and sends each new
//!    session.
//! 2. It stops accepting, and sends changed stick entries, the health of servers, ticket secrets,
//!    and a record called the cut.
//! 3. After the cut the new process accepts clients. The old process sends the sessions of its last
//!    handshakes.

pub mod receiver;
pub mod sender;
