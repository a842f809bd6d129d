//! What a run is to do: validated, immutable, shared by all threads.

use std::net::SocketAddr;
use std::time::Duration;

use becket_stats::report;

use crate::options::{MeasuringOptions, NetworkOptions, RequestOptions};
use crate::request::RequestBytes;
use crate::resume::Resume;
use crate::schedule::{Arrivals, Stretch};
use crate::target::Target;
use crate::tls::TlsPlan;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is put under load.
    pub target: Target,
    /// Its addresses; the first one that answers is used.
    pub addresses: Vec<SocketAddr>,
    /// Connections in parallel: exactly in a closed loop, at most in an open one.
    pub connections: usize,
    /// Client threads.
    pub threads: usize,
    /// CPUs to pin threads to, in order; not pinned when empty.
    pub cpus: Vec<usize>,
    /// When transactions start.
    pub load: Load,
    /// Time before the first step whose results are thrown away.
    pub warm_up: Duration,
    /// Time after which a transaction is given up.
    pub time_out: Duration,
    /// The TLS client; absent for plain targets.
    pub tls: Option<TlsPlan>,
    /// Which handshakes are to be resumed.
    pub resume: Resume,
    /// The bytes of a request.
    pub request: RequestBytes,
    /// What is asked, and what is right.
    pub options: RequestOptions,
    /// How connections are made.
    pub network: NetworkOptions,
    /// What is measured and shown besides.
    pub measuring: MeasuringOptions,
    /// The command line.
    pub command: Vec<String>,
}

/// When transactions start.
#[derive(Clone, Debug)]
pub enum Load {
    /// Each connection starts when its last transaction ended, for a time.
    ClosedFor(Duration),
    /// The same, for a number of transactions.
    ClosedCount(u64),
    /// By a schedule.
    Open {
        /// The measured stretches.
        stretches: Vec<Stretch>,
        /// How starts are spaced.
        arrivals: Arrivals,
        /// Seed of Poisson arrivals.
        seed: u64,
    },
}

impl Plan {
    /// Returns the lengths of the measured steps; none is known for a count of transactions.
    pub fn steps(&self) -> Vec<Duration> {
        match &self.load {
            Load::ClosedFor(length) => vec![*length],
            Load::ClosedCount(_) => vec![],
            Load::Open { stretches, .. } => stretches.iter().map(|s| s.length).collect(),
        }
    }

    /// Returns whether sessions are of any use.
    pub fn resumes(&self) -> bool {
        self.resume != Resume::Never
    }

    /// Returns the address that is used.
    pub fn address(&self) -> SocketAddr {
        // Checked before a run: there is at least one.
        self.addresses
            .first()
            .copied()
            .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], self.target.port)))
    }

    /// Describes the plan for the report.
    pub fn describe(&self) -> report::Plan {
        let (arrivals, seed) = match &self.load {
            Load::Open { arrivals, seed, .. } => (Some(*arrivals), *seed),
            _ => (None, 0),
        };
        let kind = self
            .tls
            .as_ref()
            .map_or("any".to_owned(), |tls| format!("{:?}", tls.resume_kind));
        report::Plan {
            load_loop: if arrivals.is_some() { "open" } else { "closed" }.to_owned(),
            connections: self.connections,
            threads: self.threads,
            warm_up_s: self.warm_up.as_secs_f64(),
            arrivals: arrivals.map(|a| format!("{a:?}").to_lowercase()),
            seed,
            resume: self.resume.to_string(),
            resume_kind: kind.to_lowercase(),
            keepalive: self.options.keepalive,
            time_out_s: self.time_out.as_secs_f64(),
            command: self.command.clone(),
        }
    }
}
