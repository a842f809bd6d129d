//! TLS sessions with clients: storage, tickets, and conditions for resumption.
//!
//! * [`context`]: data that the running handshake exchanges with the store and the ticketer;
//! * [`store`]: sessions in memory: TLS 1.2 sessions by ID, and sessions that allow early data;
//! * [`tickets`]: sessions that becket seals and that clients store;
//! * [`stored`]: the check that a client may resume its session.

pub mod context;
pub mod store;
pub mod stored;
pub mod tickets;
