//! Sessions with clients: what is kept of a handshake, where, and who may resume it.
//!
//! * [`context`]: what the running handshake tells the store and the ticketer, and back;
//! * [`store`]: TLS 1.2 sessions by ID;
//! * [`tickets`]: sessions sealed by us and kept by clients;
//! * [`early`]: sessions of TLS 1.3 where early data is taken;
//! * [`stored`]: whether the client of a session may come back.

pub mod context;
pub mod early;
pub mod store;
pub mod stored;
pub mod tickets;
