//! One run on several machines: agents generate the load, and a coordinator starts them and merges their outcomes.
//!
//! The [`coordinator`] sends each agent the command line and its share. The agent parses it with the same code, and takes
//! every n-th start of one schedule, so that rates are divided without rounding. Each [`agent`] generates load for
//! targets that its operator allows, one run at a time, as long as the coordinator stays connected.
//!
//! No clocks are compared. The coordinator measures round trips and sends each agent the time until the start. The
//! round trip of this message bounds the error, which is about half of it.
//!
//! The connection is TLS 1.3 with certificates on both sides ([`identity`]) and carries JSON in frames of bounded length
//! ([`channel`], [`protocol`]). Both sides use blocking sockets with short time-outs and a deadline for each wait.

pub mod agent;
pub mod channel;
pub mod coordinator;
pub mod identity;
pub mod protocol;
