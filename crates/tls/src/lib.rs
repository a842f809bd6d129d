//! TLS towards the client: what is offered, to whom, and what may be resumed. TLS towards servers.
//!
//! This crate turns the prepared configuration ([`config`]) into what a handshake needs. It has no socket and no event loop.
//!
//! * [`hello_router`]: the routes of one listener: from a peeked hello to a configuration, or a refusal;
//! * [`route_configs`]: the few `ServerConfig`s of one route, and which of them answers a hello;
//! * [`policy`]: the digest of a policy, the border that sessions never cross;
//! * [`verifier`]: client certificates; [`chain`]: limits that are checked before; [`path`]: the path that verified a chain; [`server_rules`]: rules for certificates of servers;
//! * [`deferred`]: keys whose signatures crypto threads make;
//! * [`metered`]: keys that cost a token, where full handshakes are limited; [`admission`]: the limits;
//! * [`engine`]: rustls' unbuffered connections as "bytes in, bytes out"; [`skipping`]: early data
//!   that it does not take; [`scratch`]: the buffers that it works on;
//! * [`sessions`]: sessions by ID, tickets, early data; [`resumption`]: outcomes of resumption; [`secret`]: the secrets of a cluster;
//! * [`to_servers`]: TLS towards the servers of a backend;
//! * [`trial`]: policies that are tried and refuse nobody; [`ja4`]: fingerprints of hellos;
//! * [`key_log`]: the file that `SSLKEYLOGFILE` names;
//! * [`names`]: names of versions, suites and groups.
//!
//! Every worker builds its own [`hello_router::HelloRouter`]s from the shared configuration: what a handshake
//! touches (configurations, ticket keys) is then owned by one thread, and no reference count is fought over.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "a crate of one program: a name that says what it is needs no comment"
)]

pub mod admission;
pub mod chain;
pub mod config;
pub mod deferred;
pub mod engine;
pub mod hello_router;
pub mod ja4;
pub mod key_log;
pub mod metered;
pub mod names;
pub mod path;
pub mod policy;
pub mod resumption;
pub mod route_configs;
pub mod scratch;
pub mod secret;
pub mod server_rules;
pub mod sessions;
pub mod side;
pub mod skipping;
pub mod to_servers;
pub mod trial;
pub mod verifier;
