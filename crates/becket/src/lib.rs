//! Becket: a TLS terminator. TLS in, TCP out, one worker per core.
//!
//! This crate is the program: its command line, and the subcommands that are not `run` (`check`, `ctl`, `top`, `demo`, the drop-in modes). What
//! runs is in crates of its own: `becket_process` has the supervisor, `becket_control` the control plane, `becket_proxy` the data plane.
//! `docs/architecture.md` has the picture.
#![forbid(unsafe_code)]

pub mod check;
pub mod cli;
pub mod ctl;
pub mod demo;
pub mod dropin;
pub mod reload;
pub mod secret_command;
pub mod status;
pub mod top;
