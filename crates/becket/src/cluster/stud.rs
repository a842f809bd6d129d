//! Sessions of stud and hitch: received, never sent, so that a farm can move host by host.
//!
//! The control thread receives what the old terminators tell each other of new sessions, and puts what passes into the
//! session table under one policy. Nothing else of becket knows of it, and peers of a cluster are not told.
//!
//! * [`reception`]: the socket and the task;
//! * [`intake`]: what is taken, for how long, and why not;
//! * [`state`]: a session in the encoding that rustls resumes from;
//! * [`counts`]: how often which.
//!
//! [`becket_proto::stud`] has the format and its source.

pub mod counts;
pub mod intake;
pub mod reception;
pub mod state;
