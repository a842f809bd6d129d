//! Sessions with clients: what is kept of a handshake, where, and who may resume it.
//!
//! * [`context`]: what the running handshake tells the store and the ticketer, and back;
//! * [`store`]: sessions that we keep: of TLS 1.2 by ID, and those that admit early data;
//! * [`tickets`]: sessions sealed by us and kept by clients;
//! * [`stored`]: whether the client of a session may come back.

pub mod context;
pub mod store;
pub mod stored;
pub mod tickets;
