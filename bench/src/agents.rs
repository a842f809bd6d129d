//! Agents that generate the load on other hosts, while servers and backend run on this one.

use std::net::IpAddr;

use becket_load::fleet_options::{FleetOptions, IdentityFiles};
use clap::Args;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load from other hosts")]
pub struct AgentArgs {
    /// Generate the load on these agents (`becket-load agent`), comma separated. Servers and backend run on this host
    #[arg(
        long,
        value_name = "HOST[:PORT]",
        value_delimiter = ',',
        requires = "address"
    )]
    agents: Vec<String>,
    /// Address of this host for the servers. The agents must reach and allow it
    #[arg(long, value_name = "IP", requires = "agents")]
    address: Option<IpAddr>,
    #[command(flatten)]
    files: IdentityFiles,
}

/// Agents, and the address at which they reach the servers.
#[derive(Clone, Debug)]
pub struct Agents {
    pub fleet: FleetOptions,
    pub address: IpAddr,
}

impl AgentArgs {
    /// Returns `None` if this host generates the load.
    pub fn agents(&self) -> Option<Agents> {
        Some(Agents {
            address: self.address?,
            fleet: FleetOptions {
                agents: self.agents.clone(),
                files: self.files.clone(),
            },
        })
    }
}
