//! Tests of connections on scripted sockets: close reasons, and delivered data.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod batches;
mod certificates;
mod chains;
mod challenges;
mod common;
mod cuts;
mod early_data;
mod greeting;
mod handshake;
mod kernel;
mod limits;
mod onward;
mod passthrough;
mod payload;
mod postgresql;
mod queue;
mod relay;
mod resumption;
#[path = "../script/mod.rs"]
mod script;
mod self_test;
mod sendfile;
mod servers;
mod serving;
mod signing;
mod splicing;
mod starttls;
mod tangle;
