//! Sessions with clients: the stored state, where it is kept, and the conditions for resumption.
//!
//! * [`context`]: data exchanged between the running handshake, the store and the ticketer;
//! * [`store`]: sessions kept by the server: TLS 1.2 sessions by ID, and sessions that allow early
//!   data;
//! * [`tickets`]: sessions sealed by the server and kept by clients;
//! * [`stored`]: the check that a client may resume its session.

pub mod context;
pub mod store;
pub mod stored;
pub mod tickets;
