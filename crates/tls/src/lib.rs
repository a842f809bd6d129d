//! TLS policies as rustls configurations, and handshakes as bytes in and bytes out.
//!
//! This crate owns the prepared configuration ([`config`]), the choice of a `ServerConfig` for a hello, the engine around rustls, sessions and
//! tickets, admission, and TLS towards servers. It has no socket and no event loop, and opens no file but the cluster's secrets and the key log.
//!
//! Main types: [`config::Config`] is the validated configuration, [`hello_router::HelloRouter`] chooses the configuration for a hello, and
//! [`engine::Engine`] runs a connection of rustls.
//!
//! * [`hello_router`]: the routes of one listener; [`route_configs`]: the `ServerConfig`s of one route;
//! * [`policy`]: the digest of a policy, which separates sessions;
//! * [`verifier`]: client certificates; [`chain`]: limits that are checked first; [`path`]: the path that verified a chain;
//!   [`server_rules`]: rules for certificates of servers;
//! * [`deferred`]: keys whose signatures are made off the loop;
//! * [`admission`]: limits; [`metered`]: keys that cost a token, if full handshakes are limited;
//! * [`engine`]: rustls' unbuffered connections; [`skipping`]: drops rejected early data; [`scratch`]: buffers;
//! * [`sessions`]: sessions by ID, tickets, early data; [`resumption`]: outcomes of resumption; [`secret`]: secrets of a cluster;
//! * [`to_servers`]: TLS towards the servers of a backend;
//! * [`trial`]: trials of policies; [`ja4`]: fingerprints of hellos;
//! * [`key_log`]: the file of `SSLKEYLOGFILE`;
//! * [`names`]: names of versions, suites and groups.
//!
//! Every worker builds its own [`hello_router::HelloRouter`]s from the shared configuration. So one thread owns all that a handshake touches
//! (configurations, ticket keys), and threads do not compete for a reference count.
//!
//! The id of a cluster's secret is the same on every node that has it:
//!
//! ```
//! use becket_tls::secret::shared::{SecretBytes, SharedSecret};
//! use std::path::Path;
//!
//! let root = SecretBytes::draw()?;
//! let here = SharedSecret::of_root(root.clone(), Path::new("/etc/becket/secret"))?;
//! let there = SharedSecret::of_root(root, Path::new("/run/secret"))?;
//! assert_eq!(here.id, there.id);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
pub mod kernel;
pub mod key_log;
pub mod limit_key;
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
mod sync;
pub mod to_servers;
pub mod trial;
pub mod verifier;
