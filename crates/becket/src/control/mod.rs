//! The control thread's rooms: what watches and shows the server, never on the data path.
//!
//! [`admin`] serves pages over HTTP from a [`view::View`] of the server: [`index`], [`exposition`]
//! (`/metrics`, with `cluster`) and [`status`]; [`backends`] is their part about servers. [`access_log`]
//! writes what connections leave behind. [`doorway`]
//! bounds the HTTP servers.

pub mod access_log;
pub mod admin;
pub mod backends;
pub mod certificates;
mod cluster;
pub mod doorway;
pub mod exposition;
pub mod index;
pub mod process;
pub mod reload;
pub mod rotation;
pub mod signals;
pub mod state;
pub mod status;
pub mod view;

#[cfg(test)]
pub(crate) mod sample;
