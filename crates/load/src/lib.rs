//! A TLS load generator that controls resumption, measures each phase and reports when it was itself the bottleneck.
//!
//! [`cli::Cli`] converts the command line to a [`plan::Plan`], and [`run`] starts one [`worker`] per thread. Each worker has its own
//! poll and [`slot`]s, and each slot makes one connection after another. A connection is a [`link`]: a state machine over
//! [`wire`], TLS and [`response`]. The workers record results in [`sample`]s, and [`summary`] converts these to a [`report`], which
//! [`text`] formats. Several machines take a run together by [`fleet`], and merge their [`outcome`]s. [`serve`] is a minimal HTTP server to use as a backend.
//!
//! Do not use this client for real traffic: it verifies no certificates and reuses key shares.
//!
//! ```
//! use clap::Parser;
//!
//! let args = ["becket-load", "https://127.0.0.1:8443/", "-c", "10", "--resume", "every=4"];
//! let cli = becket_load::cli::Cli::parse_from(args);
//! assert_eq!(cli.plan(Vec::new())?.connections, 10);
//! # Ok::<(), becket_load::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod allow;
pub mod cli;
pub mod clock;
pub mod cpu;
pub mod env;
pub mod failure;
pub mod findings;
pub mod fleet;
pub mod fleet_options;
pub mod hello;
pub mod histogram;
pub mod key_share;
pub mod link;
pub mod negotiated;
pub mod outcome;
pub mod plan;
pub mod preface;
pub mod probe;
pub mod report;
pub mod response;
pub mod resume;
pub mod run;
pub mod sample;
pub mod schedule;
pub mod serve;
pub mod slot;
pub mod source;
pub mod summary;
pub mod target;
pub mod text;
pub mod tls;
pub mod wait;
pub mod wire;
pub mod worker;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{0}")]
    Plan(String),
    #[error("{0}")]
    Unreachable(String),
    /// A system call that the run requires has failed.
    #[error("{what}: {source}")]
    Os {
        /// Failed operation, as `cannot <verb> <object>`.
        what: String,
        source: std::io::Error,
    },
    /// An agent refused the run or failed, so that there is no whole result.
    #[error("agent {agent}: {why}")]
    Agent { agent: String, why: String },
}

impl Error {
    pub fn os(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Os {
            what: what.into(),
            source,
        }
    }

    /// Returns the exit code of the program: 2 for an invalid command line, 3 for an unreachable target,
    /// 4 for an operating system error, 5 for an agent.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Plan(_) => 2,
            Self::Unreachable(_) => 3,
            Self::Os { .. } => 4,
            Self::Agent { .. } => 5,
        }
    }
}
