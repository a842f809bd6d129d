//! A TLS load generator that controls resumption, separates the phases and says when it was itself
//! what was slow.
//!
//! [`cli::Cli`] reads the command line into a [`plan::Plan`]; [`run`] starts one [`worker`] per thread, each with its poll and its
//! [`slot`]s; a slot carries one [`link`] after the other (a connection as a state machine over [`wire`], TLS and [`response`]); what
//! happened is written into [`sample`]s, which [`summary`] turns into a report of `becket-stats`. [`serve`] is the other end: the
//! cheapest HTTP responder, for standing behind a terminator.
//!
//! It verifies no certificates and uses key shares again: it is no client for real traffic.
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
#![expect(
    missing_docs,
    reason = "a tool, and no library for others: what a name says is not said again"
)]

pub mod cli;
pub mod clock;
pub mod cpu;
pub mod env;
pub mod failure;
pub mod findings;
pub mod hello;
pub mod key_share;
pub mod link;
pub mod negotiated;
pub mod plan;
pub mod preface;
pub mod probe;
pub mod random;
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
pub mod tls;
pub mod wait;
pub mod wire;
pub mod worker;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line asks for what cannot be done.
    #[error("{0}")]
    Plan(String),
    /// The target cannot be reached at all.
    #[error("{0}")]
    Unreachable(String),
    /// The operating system refuses what the run needs.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// What it answered.
        source: std::io::Error,
    },
}

impl Error {
    /// Names what was tried when the operating system refused.
    pub fn os(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Os {
            what: what.into(),
            source,
        }
    }

    /// Returns the exit code of the program: 2 for a wrong command line, 3 for an unreachable target,
    /// 4 for what the operating system refuses.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Plan(_) => 2,
            Self::Unreachable(_) => 3,
            Self::Os { .. } => 4,
        }
    }
}
