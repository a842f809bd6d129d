//! Backends: who gets the next connection, and who has to wait for it.
//!
//! * [`state`]: what all workers know of one server: how many connections it has, how it is;
//! * [`slot`]: one of the connections that a server may have, claimed by one connection of ours;
//! * [`mod@line`]: what all workers know of one backend: those who wait for a slot, and who had which
//!   server;
//! * [`registry`]: all of them, by name, so that they outlive a reload;
//! * [`pool`]: one worker's view of a backend: it chooses;
//! * [`probe`]: control's part: checks, names that are resolved anew; [`check`] is one check, [`watched`] what was found;
//! * [`cancel`]: cancels of PostgreSQL clients, passed on to all servers of a backend;
//! * [`inbox`]: how a worker learns of a slot that it was given.
//!
//! Who is chosen is decided by `becket_proto::balance`; connecting is `connection/connect.rs`.

pub mod cancel;
pub mod check;
pub mod inbox;
pub mod line;
pub mod pool;
pub mod probe;
pub mod registry;
pub mod slot;
pub mod state;
pub mod watched;
