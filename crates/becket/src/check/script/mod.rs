//! Connections without a kernel: scripted sockets, and a stage on which a connection runs.
//!
//! The life of a connection is written against [`Net`](crate::connection::Net), so it runs here
//! exactly as in a worker, one turn at a time, with time as a value. `becket check` makes its
//! handshakes on it; tests and fuzz targets drive it into every corner.
//!
//! * [`link`]: a stream in memory with two ends, bounded, with the readiness edges of epoll;
//! * [`net`]: servers that accept, refuse, or make up their mind later;
//! * [`stage`]: one connection and what a worker lends it.
//!
//! Nothing here reads a clock, sleeps or draws a random number: what happens is what the script
//! does, in its order.

pub mod link;
pub mod net;
pub mod stage;
