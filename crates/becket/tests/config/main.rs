//! The configuration, from files to [`becket::config::Config`].

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod certificates;
mod common;
mod docs;
mod errors;
