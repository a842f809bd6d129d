//! Replication of TLS 1.2 sessions between hosts.
//!
//! The rules are [`becket_proto::replica`]'s, a pure state machine. Here it is given sockets,
//! secrets, the session table and a clock. Everything but [`outbox`] runs on the control thread:
//! a worker leaves a note there and goes on.
//!
//! * [`membership`]: what launch builds and control starts;
//! * [`outbox`]: from the workers to control;
//! * [`exchange`]: the task: receive, tell, send, sleep;
//! * [`node`]: the state machine with what belongs to it; [`shelf`], the session table as peers
//!   fill and read it; [`directory`], where the peers are;
//! * [`socket`]: UDP, also to a group;
//! * [`vault`]: keys, seals, agreements;
//! * [`status`]: what pages show of it; [`news`]: what the log is told;
//! * [`stud`]: sessions of other terminators, which have a way of their own.

pub mod directory;
pub mod exchange;
pub mod membership;
pub mod news;
pub mod node;
pub mod outbox;
pub mod shelf;
pub mod socket;
pub mod status;
pub mod stud;
pub mod vault;

#[cfg(test)]
mod tests;
