//! The configuration of the becket TLS terminator: the file format, its values, and what is wrong with them.
//!
//! Data only: nothing here opens a file, resolves a name or builds anything of TLS, so a gateway or a migration tool can
//! read and write a configuration without the terminator. [`read`] turns a text into a [`file::File`] and says every fault
//! of its shape and its values at once; [`check`] says what contradicts. What needs certificates, addresses and sockets is
//! checked by those who have them.
//!
//! A key costs three places: its field here, with its notation and its default, its row in `docs/config.md`, and its use.
#![forbid(unsafe_code)]

pub mod access_format;
pub mod address;
pub mod backend;
pub mod check;
pub mod choices;
pub mod client_name;
pub mod cluster;
pub mod edits;
pub mod error;
pub mod file;
pub mod glob;
pub mod key_source;
pub mod listener;
pub mod memory_limit;
pub mod notation;
pub mod parts;
pub mod policy;
pub mod process;
pub mod read;
mod section;
pub mod suites;
