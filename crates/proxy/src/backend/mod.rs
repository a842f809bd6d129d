//! Backends: who gets the next connection, and who has to wait for it.
//!
//! * [`server_state`]: what all workers know of one server: how many connections it has, how it is;
//! * [`slot`]: one of the connections that a server may have, claimed by one connection of ours;
//! * [`backend_state`]: what all workers know of one backend: those who wait for a slot, and who had which
//!   server;
//! * [`registry`]: all of them, by name, so that they outlive a reload;
//! * [`pool`]: one worker's view of a backend: it chooses;
//! * [`cancel`]: cancels of PostgreSQL clients that wait for control;
//! * [`inbox`]: how a worker learns of a slot that it was given.
//!
//! Who is chosen is decided by `becket_proto::balance`; connecting is `connection/connecting.rs`.

pub mod backend_state;
pub mod cancel;
pub mod file_service;
pub mod inbox;
pub mod pool;
pub mod registry;
pub mod server_state;
pub mod slot;
