//! Becket, a TLS terminator: the command line and the subcommands.
//!
//! This crate implements the arguments, the exit codes, the subcommands other than `run` (`check`,
//! `ctl`, `top`, `demo`, ...) and the drop-in modes. It handles no client connections itself:
//! `becket_process` contains the supervisor, `becket_control` the control plane and `becket_proxy`
//! the data plane.
//!
//! Main types: [`cli::Cli`] is the command line, [`cli::Subcommand`] one of its subcommands, and
//! [`check::Findings`] the result of `becket check`.
//!
//! ```
//! use clap::Parser;
//! let line = ["becket", "check", "--config", "becket.toml"];
//! assert!(becket::cli::Cli::try_parse_from(line).is_ok());
//! ```
//!
//! `docs/architecture.md` describes the structure of the whole program.
#![forbid(unsafe_code)]

pub mod admin;
pub mod check;
pub mod cli;
pub mod ctl;
pub mod demo;
pub mod dropin;
pub mod secret_command;
pub mod status;
pub mod top;
