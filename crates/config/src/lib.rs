//! The configuration of becket: the file format, its values, and its errors.
//!
//! This crate defines the sections, the notations of values, the defaults, and all errors that the
//! text alone can show. It opens no file, resolves no name and creates no TLS context, so gateways
//! and migration tools can use it without the terminator. `becket_prepare` checks certificates and
//! addresses.
//!
//! Main types: [`file::File`] is the whole file, [`read::Reading`] is the result of reading a text,
//! and [`error::Problem`] is one error.
//!
//! ```
//! use becket_config::file::File;
//!
//! let file = File::parse("[timeouts]\nidle = '5m'\n").unwrap();
//! assert_eq!(file.timeouts.idle.as_secs(), 300);
//! let problems = File::parse("[timeouts]\nidel = '5m'\n").unwrap_err();
//! assert_eq!(problems[0].line, Some(2));
//! ```
//!
//! * [`mod@read`]: parses a text and finds all syntax errors, unknown keys and invalid values;
//! * [`check`]: finds contradictions between keys.
//!
//! Each key is a field in this crate, with its notation and its default, and a row in
//! `docs/reference/configuration.md`.
#![forbid(unsafe_code)]

pub mod acme;
pub mod address;
pub mod backend;
pub mod check;
pub mod choices;
pub mod client_name;
pub mod cluster;
pub mod error;
pub mod file;
pub mod glob;
mod hints;
pub mod key_source;
pub mod listener;
pub mod memory_limit;
pub mod notation;
pub mod parts;
pub mod policy;
pub mod process;
pub mod read;
mod section;
pub mod store_address;
pub mod suites;
mod units;
pub mod write;
