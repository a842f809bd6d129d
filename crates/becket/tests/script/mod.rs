//! Connections without a kernel: scripted sockets, and a stage on which a connection runs.
//!
//! The life of a connection is written against [`Net`](becket_proxy::connection::Net), so it runs here
//! exactly as in a worker, one turn at a time, with time as a value. Tests drive it into every corner, and so does
//! the fuzz target of the connection, which includes this folder by its path.
//!
//! * [`kernel`]: what a kernel does with TLS on one end of it, which `sealed` makes it do;
//! * [`link`]: a stream in memory with two ends, bounded, with the readiness edges of epoll;
//! * [`net`]: servers that accept, refuse, or make up their mind later;
//! * [`stage`]: one connection and what a worker lends it.
//!
//! Nothing here reads a clock, sleeps or draws a random number: what happens is what the script
//! does, in its order.

pub(crate) mod kernel;
pub(crate) mod link;
pub(crate) mod net;
mod sealed;
pub(crate) mod stage;
