//! Options of agents and of a run with agents.

use std::path::PathBuf;
use std::time::Duration;

use becket_stats::units::{parse_duration, parse_rate};
use clap::Args;

use crate::allow::AllowedTarget;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Agents")]
pub struct FleetOptions {
    /// Generate the load on these agents (`becket-load agent`), comma separated; rate, connections and transactions are divided among
    /// them, -t applies to each
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',', conflicts_with_all = ["cpus", "source", "serve"])]
    pub agents: Vec<String>,
    #[command(flatten)]
    pub files: IdentityFiles,
}

/// Certificates with which coordinator and agents prove to each other who they are.
#[derive(Clone, Debug, Args)]
pub struct IdentityFiles {
    /// PEM file with the own certificate and its intermediates
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// PEM file with the private key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// PEM file with the CA of the other side. Any certificate of this CA is accepted, so use a CA that issues no other certificates
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct AgentOptions {
    /// Address for coordinators, for example 0.0.0.0:7440
    #[arg(long, value_name = "ADDR")]
    pub listen: String,
    /// Allow runs against this target, for example 10.1.0.0/16:443, [fd00::/8]:443, www.example.org:443, or 10.1.0.7:* for all ports; may
    /// be repeated. Nothing else is allowed
    #[arg(long, value_name = "HOST:PORT")]
    pub allow: Vec<AllowedTarget>,
    /// Maximum duration of a run
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10m")]
    pub longest: Duration,
    /// Maximum rate of this agent. Rejects closed loops (runs without -R or --ramp), because their rate has no limit [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub most_rate: Option<f64>,
    /// Exit after one complete run
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub files: IdentityFiles,
}

/// Port of an agent that is given without one.
pub const DEFAULT_PORT: u16 = 7440;
/// Maximum number of agents of a run. It limits the sums of their counts.
pub const MOST_AGENTS: usize = 64;
