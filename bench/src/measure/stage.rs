//! What a measure works with.

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

/// What a measure works with: the servers of a case are up, and the backend.
pub struct Stage<'a> {
    pub measure: Measure,
    pub settings: &'a Settings,
    /// The servers, in the order of the report.
    pub servers: &'a mut [Server],
    /// The servers of a measure that loses them: which program, and what all have in common.
    pub farm: Option<(&'a Peer, &'a Site<'a>)>,
    /// The floors, for measures that have any.
    pub floors: Option<Floors>,
    /// The way from clients to servers, for a measure that has one of its own.
    pub network: Option<&'a Network>,
    pub control: &'a mut Control,
    pub others: &'a mut Others,
    pub backend: SocketAddr,
    /// Where the files of the run are.
    pub directory: &'a Path,
    /// CPUs of the client.
    pub client: &'a [usize],
    pub effort: &'a Effort,
    /// Capacities that this run has measured.
    pub capacities: &'a mut Capacities,
    /// Set by a signal.
    pub stop: &'a Arc<AtomicBool>,
}

impl Stage<'_> {
    /// Returns the ask for a server of this case.
    pub fn ask(&self, address: SocketAddr, pid: Option<u32>) -> Ask {
        let ask = self.ask_as(self.settings, address);
        match pid {
            Some(pid) => ask.with("--pid", pid),
            None => ask,
        }
    }

    /// Returns the ask for a server with other settings of the client.
    pub fn ask_as(&self, settings: &Settings, address: SocketAddr) -> Ask {
        let scheme = match settings.front {
            Front::Plain => "http",
            Front::Terminate | Front::Passthrough => "https",
        };
        self.ask_url(settings, format!("{scheme}://{address}{}", self.path()))
    }

    /// Returns the ask for a plain server.
    pub fn ask_plain(&self, address: SocketAddr) -> Ask {
        self.ask_url(self.settings, format!("http://{address}{}", self.path()))
    }

    fn ask_url(&self, settings: &Settings, url: String) -> Ask {
        let ask = Ask::of(settings, url)
            .on(self.client)
            .with("--expect-body", settings.body);
        match settings.requests {
            1 => ask,
            count => ask.with("--keepalive", count),
        }
    }

    /// Returns the path that asks for the body of this case.
    pub fn path(&self) -> String {
        format!("/bytes/{}", self.settings.body)
    }

    /// Returns a client of the load tool, for connections that a measure makes itself.
    pub fn tls(&self) -> Result<Tls, Error> {
        load::tls(self.settings)
    }

    /// Returns the columns to fill, one per server.
    pub fn columns(&self) -> Vec<Column> {
        let columns = self.servers.iter().map(|server| Column::new(&server.name));
        columns.collect()
    }

    /// Returns how many connections can be held.
    pub fn held(&self) -> usize {
        self.settings.connections.min(self.effort.most_idle())
    }

    /// Returns an error after a signal.
    pub fn check_signal(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        Ok(())
    }

    /// Returns an error with the log when a server has ended by itself.
    pub fn check_alive(&mut self) -> Result<(), Error> {
        for server in self.servers.iter_mut() {
            if server.process.has_ended() {
                return Err(server.process.complain("ended during the run"));
            }
        }
        Ok(())
    }

    /// Returns a time-out that suits the case: large bodies take their time.
    pub fn time_out(&self) -> Duration {
        Duration::from_secs(5 + self.settings.body / (16 * 1024 * 1024))
    }
}
