//! AdminState on its way from a serving process to the one that replaces it, over a socket pair of the two.
//!
//! The old process has a [`sender::Sender`], the new one a [`receiver`]. Sessions are copied while the old process serves, then those that
//! came in the meantime. After the old process has stopped accepting, it sends the rest and a cut, from which the new process may serve. Sessions of
//! the old process's last handshakes follow as they come. The layout is [`becket_proto::handover`]'s.

pub mod receiver;
pub mod sender;
