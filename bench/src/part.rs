//! Hidden subcommands for the bench's own child processes: the backend, the relay and the guard.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use clap::{Parser, Subcommand};

use crate::{Error, guard, relay};

/// Child process of the bench.
#[derive(Clone, Debug, Subcommand)]
pub enum Part {
    /// Kills the remaining processes after the bench has exited.
    Guard,
    /// Relays bytes without TLS.
    Relay {
        /// Address to listen on.
        address: SocketAddr,
        /// Address to connect to.
        backend: SocketAddr,
        /// Also makes the round trips of TLS.
        #[arg(long)]
        answers: bool,
    },
    /// Runs `becket-load` with `--serve`.
    Backend {
        /// Options of `becket-load`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

impl Part {
    /// Runs the child process.
    ///
    /// # Errors
    /// The error that ended the process.
    pub fn run(self) -> Result<(), Error> {
        match self {
            Self::Guard => {
                guard::run();
                Ok(())
            }
            Self::Relay {
                address,
                backend,
                answers,
            } => relay::run(address, backend, answers),
            Self::Backend { args } => {
                let args = std::iter::once("becket-load".to_owned()).chain(args);
                let cli = becket_load::cli::Cli::try_parse_from(args)
                    .map_err(|e| Error::Asked(e.to_string()))?;
                Ok(becket_load::serve::run(&cli, &AtomicBool::new(false))?)
            }
        }
    }
}
