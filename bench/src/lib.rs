//! Runs scenarios of `becket-load` against becket and its peers, side by side, and writes the report.
//!
//! [`scenario::Scenario`] is a question that unfolds into cases ([`catalog`] has the suite). [`runner`] starts the [`peer`]s of each
//! case alike and pinned ([`place`], [`process`]), and one of the measures ([`measure`]) puts load on them in interleaved rounds,
//! until the peers can be told apart ([`verdict`]). [`control`] and [`others`] watch the machine. The result is a [`result::Run`], from
//! which [`report`] and [`readme`] are made; a [`figure::Figure`] says how to read a number of it.
//!
//! Floors come from the same run: [`relay`] carries bytes without TLS, [`library`] makes the same handshakes in memory. If the bench
//! is killed, [`guard`] stops what it had started. It judges no stored run: that is for those who read the report.
//!
//! A new scenario is a TOML file; a new peer is a file in `peer/`; a new measure is a file in `measure/`, a variant of
//! [`scenario::Measure`] and its figures in [`figure`].
//!
//! ```
//! let scenario = &becket_bench::catalog::find(&["key".to_owned()])?[0];
//! assert!(scenario.cases(false)?.len() > 1);
//! # Ok::<(), becket_bench::Error>(())
//! ```
#![forbid(unsafe_code)]
#![expect(
    missing_docs,
    reason = "nobody comes here from outside: what a name says is not said again"
)]

pub mod answer;
pub mod articles;
pub mod catalog;
pub mod classic;
pub mod cli;
pub mod conditions;
pub mod control;
pub mod farm;
pub mod figure;
pub mod figures;
pub mod floors;
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
pub mod spread;
pub mod store;
pub mod table;
pub mod turns;
pub mod verdict;

use std::path::PathBuf;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command line or a scenario asks for what cannot be done.
    #[error("{0}")]
    Asked(String),
    /// A peer is missing or does not start.
    #[error("{0}")]
    Peer(String),
    /// Peers do not do the same, and could.
    #[error("{0}")]
    Unlike(String),
    /// Others are at work where the run would measure.
    #[error(
        "others use {share:.0} % of the CPUs of this run: figures would be theirs, too; end what they do, or say --busy-ok"
    )]
    Busy {
        /// Their share of the time, in per cent.
        share: f64,
    },
    /// The operating system refuses what the run needs.
    #[error("{what}: {source}")]
    Os {
        what: String,
        source: std::io::Error,
    },
    /// A stored file is not what it should be.
    #[error("{path}: {why}")]
    Stored {
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The load tool could not do its part.
    #[error("becket-load: {0}")]
    Load(#[from] becket_load::Error),
    #[error("interrupted; the peers are stopped, and what was finished is in {0}")]
    Interrupted(PathBuf),
    /// A signal came before anything was finished.
    #[error("interrupted; the peers are stopped, nothing is stored")]
    Stopped,
}

impl Error {
    /// Names what was tried when the operating system refused.
    pub fn os(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Os {
            what: what.into(),
            source,
        }
    }

    /// Returns the exit code of the program: 2 for what was asked wrongly, 3 for a peer that is missing
    /// or does not start, 4 for what the operating system refuses, 5 for peers that are not alike,
    /// 6 for a machine on which others are at work, 130 when a signal ended the run.
    pub fn exit_code(&self) -> u8 {
        match self {
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
