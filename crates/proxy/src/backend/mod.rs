//! Backends: choose the server of a new connection, or queue the connection.
//!
//! * [`server_state`]: state of one server, shared by all workers: connection counts, health;
//! * [`slot`]: the right to one connection to a server;
//! * [`backend_state`]: state of one backend, shared by all workers: the queue, and the table of
//!   clients and their servers;
//! * [`registry`]: all states by name, so that they survive a reload;
//! * [`pool`]: a worker's view of a backend: chooses the server of a connection;
//! * [`cancel`]: queued cancel requests of PostgreSQL clients;
//! * [`inbox`]: events from other threads, such as a granted slot.
//!
//! The balancing algorithms are in `becket_proto::balance`. Connecting to the chosen server is in
//! `connection/connecting.rs`.

pub mod awaited;
pub mod backend_state;
pub mod cancel;
pub mod file_service;
pub mod inbox;
pub mod pool;
pub mod registry;
pub mod server_state;
pub mod slot;
