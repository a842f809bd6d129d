//! Renders Gateway, TLSRoute and TCPRoute manifests as becket's configuration, offline.
//!
//! * [`manifests`] reads YAML into [`objects`], whose fields are in [`kinds`];
//! * [`listeners`] decides which listeners and routes are accepted; [`hosts`] compares names;
//! * [`servers`] builds backends, [`credentials`] checks Secrets and CA certificates;
//! * [`render`] builds the configuration and writes it.
//!
//! The configuration is whole, or there are conditions. `docs/guide/gateway.md` lists the supported
//! fields.
#![forbid(unsafe_code)]

pub mod cli;
pub mod credentials;
pub mod hosts;
pub mod kinds;
pub mod listeners;
pub mod manifests;
pub mod objects;
pub mod render;
pub mod servers;
