//! Tests of the configuration, from files to [`becket_tls::config::Config`].

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod certificates;
mod cluster;
mod common;
mod docs;
mod errors;
mod health;
mod onward;
mod reloads;
mod renewals;
mod revocation;
mod servers;
