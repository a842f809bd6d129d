//! Control's rooms: what watches and shows the server, never on the data path.
//!
//! [`admin`] serves pages over HTTP, on a thread of its own, from a [`view::View`] of the server: [`index`],
//! [`exposition`] (`/metrics`, with `cluster`) and [`status`]; [`backends`] is their part about servers.
//! [`visits`] lets clients of the pages in. [`access_log`] writes what connections leave behind;
//! [`ebb`] says when their memory is given back.

pub mod access_log;
pub mod admin;
pub mod backends;
pub mod certificates;
mod cluster;
pub mod ebb;
pub mod exposition;
mod host;
pub mod index;
pub mod process;
pub mod reload;
pub mod rotation;
pub mod signals;
pub mod state;
pub mod status;
pub mod view;
pub mod visits;

#[cfg(test)]
pub(crate) mod sample;
