//! Contains the running servers of a case, and the settings and tools that a measure uses.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use becket_load::tls::Tls;

use super::capacities::Capacities;
use crate::Error;
use crate::control::Control;
use crate::floors::Floors;
use crate::load::{self, Ask};
use crate::network::Network;
use crate::order::Effort;
use crate::others::Others;
use crate::peer::{Peer, Server, Site};
use crate::result::Column;
use crate::scenario::{Front, Measure, Settings};

pub struct Stage<'a> {
    pub measure: Measure,
    pub settings: &'a Settings,
    /// Servers, in the order of the report.
    pub servers: &'a mut [Server],
    /// Program and settings of the nodes that the `failover` and `store` measures start.
    pub farm: Option<(&'a Peer, &'a Site<'a>)>,
    /// Peers that the `certificates` measure starts, and their settings.
    pub starts: (&'a [Peer], &'a Site<'a>),
    pub floors: Option<Floors>,
    /// Network with a delay, for the `delay` measure.
    pub network: Option<&'a Network>,
    pub control: &'a mut Control,
    pub others: &'a mut Others,
    pub backend: SocketAddr,
    pub directory: &'a Path,
    pub client: &'a [usize],
    pub effort: &'a Effort,
    pub capacities: &'a mut Capacities,
    /// `true` after a signal.
    pub stop: &'a Arc<AtomicBool>,
}

impl Stage<'_> {
    /// Returns load options for a server of this case. The load tool records the CPU time of process `pid`.
    pub fn ask(&self, address: SocketAddr, pid: Option<u32>) -> Ask {
        let ask = self.ask_as(self.settings, address);
        match pid {
            Some(pid) => ask.with("--pid", pid),
            None => ask,
        }
    }

    pub fn ask_as(&self, settings: &Settings, address: SocketAddr) -> Ask {
        let scheme = match settings.front {
            Front::Plain => "http",
            Front::Terminate | Front::Passthrough => "https",
        };
        self.ask_url(settings, format!("{scheme}://{address}{}", self.path()))
    }

    /// Returns load options for a server without TLS.
    pub fn ask_plain(&self, address: SocketAddr) -> Ask {
        self.ask_url(self.settings, format!("http://{address}{}", self.path()))
    }

    fn ask_url(&self, settings: &Settings, url: String) -> Ask {
        let ask = Ask::of(settings, url);
        let ask = match &self.effort.agents {
            None => ask.on(self.client),
            Some(agents) => ask.by(&agents.fleet),
        };
        let ask = ask.with("--expect-body", settings.body);
        match settings.requests {
            1 => ask,
            count => ask.with("--keepalive", count),
        }
    }

    /// Returns the request path for the body size of this case.
    pub fn path(&self) -> String {
        format!("/bytes/{}", self.settings.body)
    }

    /// Returns a TLS client of the load tool, for connections that a measure opens itself.
    pub fn tls(&self) -> Result<Tls, Error> {
        load::tls(self.settings)
    }

    pub fn columns(&self) -> Vec<Column> {
        let columns = self.servers.iter().map(|server| Column::new(&server.name));
        columns.collect()
    }

    /// Returns the number of connections to hold open: that of the case, limited by the effort of the run.
    pub fn held(&self) -> usize {
        self.settings.connections.min(self.effort.most_idle())
    }

    /// Returns the number of connections of the `crowd` measure.
    pub fn crowd(&self) -> usize {
        self.effort.crowd(self.settings)
    }

    pub fn check_signal(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        Ok(())
    }

    /// Returns an error with the end of the server's log if a server has exited.
    pub fn check_alive(&mut self) -> Result<(), Error> {
        for server in self.servers.iter_mut() {
            if server.process.has_ended() {
                return Err(server.process.complain("exited during the run"));
            }
        }
        Ok(())
    }

    /// Returns the time-out of a transaction, which grows with the body size.
    pub fn time_out(&self) -> Duration {
        Duration::from_secs(5 + self.settings.body / (16 * 1024 * 1024))
    }
}
