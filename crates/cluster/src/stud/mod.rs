//! Sessions of stud and hitch: received, never sent, so that a farm can move host by host.
//!
//! The control thread receives what the old terminators tell each other of new sessions, and puts what passes into the session
//! table under one policy. Peers of a cluster are not told.
//!
//! * [`reception`]: the socket and the task;
//! * [`datagram`], [`session`]: what is read, and its source; [`key`]: what seals it;
//! * [`intake`]: what is taken, for how long, and why not; [`counts`]: how often which;
//! * [`state`]: a session in the encoding that rustls resumes from.

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
