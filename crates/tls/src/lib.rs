//! Builds rustls configurations from TLS policies, and runs TLS connections on byte buffers.
//!
//! This crate owns the prepared configuration ([`config`]), the choice of a `ServerConfig` for a
//! ClientHello, the engine around rustls, sessions and tickets, admission control, and TLS to
//! servers. It has no sockets and no event loop. It opens only the cluster's secrets and the key
//! log.
//!
//! Main types: [`config::Config`] is the prepared configuration, [`hello_router::HelloRouter`]
//! chooses the configuration for a ClientHello, and [`engine::Engine`] runs a connection of rustls.
//!
//! * [`hello_router`]: the routes of one listener; [`route_configs`]: the `ServerConfig`s of one
//!   route;
//! * [`policy`]: the digest of a policy, which separates sessions;
//! * [`verifier`]: client certificates; [`chain`]: limits that are checked first; [`path`]: the
//!   path that verified a chain; [`server_rules`]: rules for server certificates;
//! * [`admission`]: limits on clients; [`served_key`]: keys whose signatures cost an admission
//!   token, or are made by other threads or PKCS#11 tokens;
//! * [`engine`]: rustls' unbuffered connections; [`skipping`]: discards rejected early data;
//!   [`scratch`]: buffers;
//! * [`sessions`]: sessions by ID, tickets, early data; [`resumption`]: results of resumption;
//!   [`secret`]: cluster secrets;
//! * [`to_servers`]: TLS to the servers of a backend;
//! * [`trial`]: policies on trial; [`ja4`]: fingerprints of clients;
//! * [`challenges`]: answers to ACME authorities;
//! * [`key_log`]: the file of `SSLKEYLOGFILE`;
//! * [`names`]: names of versions, suites and groups.
//!
//! Each worker builds its own [`hello_router::HelloRouter`]s from the shared configuration. So one
//! thread owns all objects that a handshake uses (configurations, ticket keys), and threads do not
//! contend for reference counts.
//!
//! The ID of a cluster's secret is the same on every node with that secret:
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

pub mod admission;
mod certificate_compression;
pub mod chain;
pub mod challenges;
pub mod config;
mod direct;
pub mod engine;
pub mod hello_router;
pub mod ja4;
pub mod kernel;
pub mod key_log;
pub mod limit_key;
pub mod names;
mod output;
pub mod path;
pub mod policy;
pub mod random;
pub mod resumption;
pub mod route_configs;
pub mod scratch;
pub mod secret;
pub mod served_key;
pub mod server_rules;
pub mod sessions;
pub mod side;
pub mod skipping;
mod sync;
pub mod to_servers;
pub mod trial;
pub mod verifier;
pub mod wanted_names;
