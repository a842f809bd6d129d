//! Control's rooms: what watches and shows the server, never on the data path.
//!
//! [`admin`] serves pages over HTTP, on a thread of its own, each made of a [`snapshot::Snapshot`] of the [`state`];
//! [`exposition`] is `/metrics`, [`page`] is text for people, [`web`] the page
//! for browsers with its [`history`]. [`admin_http`] lets clients of the pages in, as far as [`visitors`] has room. [`api`] is what
//! may be asked and changed there, [`connections`] lists and ends connections.
//! [`ebb`] says when their memory is given back.

pub mod admin;
pub mod admin_http;
pub(crate) mod api;
pub mod certificates;
mod connections;
pub(crate) mod ebb;
pub(crate) mod exposition;
pub(crate) mod history;
mod host;
pub mod page;
pub mod process;
pub(crate) mod reload;
pub mod rotation;
pub(crate) mod signals;
pub(crate) mod snapshot;
pub mod state;
pub(crate) mod temporary;
mod trials;
mod visitors;
mod web;

#[cfg(test)]
pub(crate) mod sample;
