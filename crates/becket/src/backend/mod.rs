//! Backends: who gets the next connection.
//!
//! [`pool`] knows the servers of one backend and picks; connecting is `connection/connect.rs`.

pub mod pool;
