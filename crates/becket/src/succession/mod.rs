//! From a serving process to the one that replaces it in an upgrade, over a socket that the parent made for the two.
//!
//! The old one has a [`successor::Successor`], the new one listens ([`predecessor`]). Sessions go over while the old one
//! serves, then those that came meanwhile; then the old one accepts nobody any more, tells what must be in one place only, and
//! says so: that is the cut, from which the new one serves. What the old one's last handshakes make follows as it comes. The layout is
//! [`becket_proto::succession`]'s. See `docs/decisions/0034-a-successor-beside-the-process-that-serves.md`.

pub(crate) mod predecessor;
pub(crate) mod successor;
