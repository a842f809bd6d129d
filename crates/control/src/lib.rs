//! The control plane of the serving process: start, reload, rotation of ticket keys, health checks, upgrade, admin pages.
//!
//! Everything here runs on the main thread or on threads of its own, never on the data path: workers get messages and share counters. The
//! command line is not here (crate `becket`), the supervisor neither (crate `process`).
//!
//! * [`launch`]: the order of a start; [`server`]: the control loop, and what each command does;
//! * [`reload`], [`rotation`], [`certificates`]: what changes while becket runs; [`handover`]: the state that passes in an upgrade;
//! * [`sandbox`]: rights that the serving process gives up; [`sockets`]: listening sockets of all workers;
//! * [`admin`] serves pages over HTTP, on a thread of its own, each made of a [`snapshot::Snapshot`] of the [`state`]; [`exposition`] is
//!   `/metrics`, [`page`] is text, `web` the page for browsers with its [`history`]. [`admin_http`] accepts clients of the pages;
//!   [`api`] is what may be asked and changed;
//! * [`ebb`]: when memory of closed connections is given back; [`mod@process`]: CPU and memory of this process.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "a crate of one program: a name that says what it is needs no comment"
)]

pub mod admin;
pub mod admin_http;
pub mod api;
pub mod certificates;
pub mod cluster;
mod connections;
pub mod ebb;
pub mod exposition;
pub mod handover;
pub mod history;
mod host;
pub mod launch;
pub mod page;
pub mod process;
pub mod reload;
pub mod rotation;
pub mod sandbox;
pub mod server;
pub mod snapshot;
pub mod sockets;
pub mod state;
pub mod temporary;
mod trials;
mod visitors;
mod web;

#[cfg(test)]
pub(crate) mod sample;
