//! The program `becket-gateway`.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | everything is rendered |
//! | 1 | conditions on standard error |
//! | 2 | wrong arguments, or a file cannot be read |
#![forbid(unsafe_code)]

use std::process::ExitCode;

use becket_gateway::cli::{self, Cli};
use clap::Parser;

fn main() -> ExitCode {
    cli::run(&Cli::parse())
}
