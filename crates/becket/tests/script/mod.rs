//! Connections without a kernel: scripted sockets, and a stage that runs a connection.
//!
//! A connection is written against [`Net`](becket_proxy::connection::Net), so it runs here exactly
//! as in a worker, one turn at a time, with time as a value. Tests use it to reach every state. The
//! fuzz target of the connection uses it as well, and includes this folder by its path.
//!
//! * [`kernel`]: emulates kernel TLS at one end of a stream, for `sealed`;
//! * [`link`]: a bounded stream in memory with two ends and the readiness edges of epoll;
//! * [`net`]: servers that accept, refuse, or decide later;
//! * [`stage`]: one connection and the resources that a worker lends it.
//!
//! Nothing here reads a clock, sleeps or draws a random number; only the script decides what
//! happens.

pub(crate) mod kernel;
pub(crate) mod link;
pub(crate) mod net;
mod sealed;
pub(crate) mod stage;
