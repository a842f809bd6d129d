//! Measures becket and its peers side by side with `becket-load`, and writes a report.
//!
//! A [`scenario::Scenario`] is a question with a list of cases; [`catalog`] contains the built-in scenarios. For each
//! case, [`runner`] starts the [`peer`]s with equal settings on pinned CPUs ([`place`], [`process`]). A [`measure`]
//! then puts load on all peers in interleaved rounds until their difference is clear ([`verdict`]). [`control`] and
//! [`others`] detect disturbances of the machine.
//!
//! The result is a [`result::Run`], from which [`report`] and [`readme`] are written. [`figure::Figure`] defines the
//! heading, the unit and the better direction of a measured number. A run neither passes nor fails.
//!
//! A run also measures lower bounds of the CPU cost: [`relay`] relays bytes without TLS, and [`library`] makes the same
//! handshakes in memory. [`guard`] stops all child processes if the bench is killed.
//!
//! [`simulate`] computes what needs many hosts, and measures nothing.
//!
//! A new scenario is a TOML file. A new peer is a file in `peer/`. A new measure is a file in `measure/`, a variant of
//! [`scenario::Measure`] and its figures in [`figure`].
//!
//! ```
//! let scenario = &becket_bench::catalog::find(&["key".to_owned()])?[0];
//! assert!(scenario.cases(false)?.len() > 1);
//! # Ok::<(), becket_bench::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod agents;
pub mod answer;
pub mod articles;
pub mod build;
pub mod bundles;
pub mod catalog;
pub mod classic;
pub mod cli;
pub mod conditions;
pub mod control;
pub mod farm;
pub mod figure;
pub mod figures;
pub mod floors;
pub mod gate;
pub mod guard;
pub mod kernel;
pub mod keys;
pub mod library;
pub mod load;
pub mod measure;
pub mod network;
pub mod order;
pub mod others;
pub mod part;
pub mod peer;
pub mod place;
pub mod plan;
pub mod plot;
pub mod process;
pub mod readme;
pub mod relay;
pub mod report;
pub mod result;
pub mod runner;
pub mod scenario;
pub mod simulate;
pub mod spread;
pub mod store;
pub mod table;
pub mod turns;
pub mod verdict;

use std::path::PathBuf;

/// Error that ends a run without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line or a scenario is invalid.
    #[error("{0}")]
    Asked(String),
    /// A peer is missing or does not start.
    #[error("{0}")]
    Peer(String),
    /// A peer supports the requested TLS parameters, but negotiated different ones.
    #[error("{0}")]
    Unlike(String),
    /// The gate's counts differ from the stored ones.
    #[error(
        "the counts differ from the stored ones; if that is intended, run `cargo run -p becket-bench -- gate --update`, and state \
         difference and reason in the message of the same commit"
    )]
    Counts,
    /// Other processes use the CPUs of the run.
    #[error(
        "other processes use {share:.0} % of the CPUs of this run, which would distort the figures; stop them, or use --busy-ok"
    )]
    Busy {
        /// CPU use of other processes, in percent.
        share: f64,
    },
    /// The operating system refuses a resource that the run needs.
    #[error("{what}: {source}")]
    Os {
        what: String,
        source: std::io::Error,
    },
    #[error("{path}: {why}")]
    Stored { path: PathBuf, why: String },
    #[error("becket-load: {0}")]
    Load(#[from] becket_load::Error),
    #[error("interrupted; the peers are stopped, and the finished scenarios are in {0}")]
    Interrupted(PathBuf),
    /// A signal arrived before the first scenario was finished.
    #[error("interrupted; the peers are stopped, and nothing is stored")]
    Stopped,
}

impl Error {
    pub fn os(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Os {
            what: what.into(),
            source,
        }
    }

    /// Returns the exit code of the program: 1 for other counts than stored, 2 for an invalid option, scenario or stored run, 3 for a peer that is missing or
    /// does not start, 4 for an operating system error, 5 for peers with different parameters and a failed agent, 6 for a busy machine,
    /// 130 after a signal.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Counts => 1,
            Self::Asked(_) | Self::Stored { .. } => 2,
            Self::Peer(_) => 3,
            Self::Os { .. } => 4,
            Self::Unlike(_) => 5,
            Self::Busy { .. } => 6,
            Self::Load(error) => error.exit_code(),
            Self::Interrupted(_) | Self::Stopped => 130,
        }
    }
}
