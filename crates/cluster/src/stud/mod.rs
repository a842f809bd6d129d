//! Sessions of stud and hitch: received, never sent, so that a farm can be migrated host by host.
//!
//! The control thread receives the announcements of new sessions that the old terminators send to each other,
//! and stores accepted ones in the session table under one policy. They are not sent to peers of a cluster.
//!
//! * [`reception`]: the socket and the task;
//! * [`datagram`], [`session`]: the formats, and their source; [`key`]: the key of the HMAC;
//! * [`intake`]: conditions, lifetimes and refusals; [`counts`]: counters of outcomes;
//! * [`state`]: a session in the encoding from which rustls resumes.

mod counts;
mod datagram;
mod intake;
mod key;
mod reception;
mod session;
mod state;

pub use self::counts::StudOutcome;
pub use self::datagram::Datagram;
pub use self::intake::Terms;
pub use self::key::StudKey;
pub use self::reception::{Reception, ReceptionStatus, StudStatus, bind};
pub use self::session::{SessionFault, StudSession};
