//! The control plane of the serving process: start, reload, rotation of ticket keys, upgrade and
//! admin pages.
//!
//! This crate owns the main thread of the serving process and the threads of the admin pages. It
//! sends messages to workers and reads their counters, but receives no data of client connections.
//! The command line is in `becket`, the supervisor in `becket_process`.
//!
//! Main types: [`server::Control`] is the control loop, [`state::AdminState`] is the state behind
//! the admin pages.
//!
//! ```
//! let status: becket_control::status::Status = serde_json::from_str("{}").unwrap();
//! assert!(status.problems.is_empty());
//! ```
//!
//! * [`launch`]: the order of a start; [`server`]: the control loop and its commands;
//! * [`reload`], [`rotation`]: changes while becket runs; [`handover`]: the state that an upgrade
//!   passes on;
//! * [`health`]: health checks, lookups of names, cancels of PostgreSQL clients;
//! * [`sandbox`]: access that the serving process gives up; [`sockets`]: listening sockets of all
//!   workers;
//! * [`cluster`]: the terminator's side of replication;
//! * [`admin`]: the pages; [`api`]: their requests and changes; [`admin_http`]: their clients;
//!   [`exposition`]: `/metrics`; [`status`]: the model of all pages and commands; [`problems`]:
//!   problems that need an operator; `web` and [`history`]: the page for browsers;
//!   [`certificates`]: certificates in use;
//! * [`memory`]: the memory watermark.
#![forbid(unsafe_code)]

pub mod admin;
pub mod admin_http;
mod answers;
pub mod api;
pub mod certificates;
pub mod cluster;
mod connections;
pub mod exposition;
pub mod handover;
pub mod health;
pub mod history;
mod host;
pub mod launch;
pub mod memory;
pub mod page_refusals;
pub mod problems;
pub mod reload;
pub mod replies;
pub mod rotation;
pub mod sandbox;
pub mod server;
pub mod snapshot;
pub mod sockets;
pub mod state;
pub mod status;
pub mod temporary;
pub mod totals;
pub mod web;

#[cfg(test)]
pub(crate) mod sample;
