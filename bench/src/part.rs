//! The bench's own children: the backend, the floor, the guard. Not for people.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use clap::{Parser, Subcommand};

use crate::{Error, guard, relay};

/// One of the bench's own children.
#[derive(Clone, Debug, Subcommand)]
pub enum Part {
    /// Stops what is left when the bench has gone.
    Guard,
    /// Carries bytes without TLS.
    Relay {
        /// Where to listen.
        address: SocketAddr,
        /// Where to connect.
        backend: SocketAddr,
        /// Makes the round trips of TLS, too.
        #[arg(long)]
        answers: bool,
    },
    /// `becket-load --serve` with these arguments.
    Backend {
        /// As `becket-load` has them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

impl Part {
    /// Is the child.
    ///
    /// # Errors
    /// What ended it.
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
