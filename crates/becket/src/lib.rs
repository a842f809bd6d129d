//! Becket: a TLS terminator. TLS in, TCP out, one worker per core.
//!
//! This library is the whole program; the binary only parses arguments. Start reading at
//! [`server`], which lists what is shared and brings everything up, then [`worker`], the event
//! loop, and [`connection`], the life of one client. `docs/architecture.md` has the picture.
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
