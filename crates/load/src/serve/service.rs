//! What a responder is told: where to listen, and how long each response takes.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::Error;
use crate::cli::Cli;

/// What the responder is to be.
#[derive(Clone, Debug)]
pub struct Responder {
    pub(super) address: SocketAddr,
    pub(super) threads: usize,
    pub(super) cpus: Vec<usize>,
    pub(super) body: u64,
    pub(super) service: Service,
}

/// How long a response takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Service {
    /// The least time.
    pub(super) time: Duration,
    /// The number of requests in service from which it grows.
    pub(super) knee: Option<usize>,
}

impl Service {
    /// Returns the time of a request that is one of `n` in service.
    pub(super) fn time_of(self, n: usize) -> Duration {
        let load = self
            .knee
            .map_or(1.0, |knee| (n as f64 / knee as f64).max(1.0));
        self.time.mul_f64(load * load)
    }
}

impl Cli {
    /// Makes the responder's plan.
    ///
    /// # Errors
    /// [`Error::Plan`] for an address that cannot be understood or is not on this machine.
    pub fn responder(&self, address: &str) -> Result<Responder, Error> {
        let wrong = |why: String| Error::Plan(format!("--serve {address}: {why}"));
        let mut found = address
            .to_socket_addrs()
            .map_err(|e| wrong(e.to_string()))?;
        let socket = found
            .next()
            .ok_or_else(|| wrong("no such address".to_owned()))?;
        Ok(Responder {
            address: socket,
            threads: self.load.threads.map_or(1, std::num::NonZeroUsize::get),
            cpus: self
                .measuring
                .cpus
                .clone()
                .map_or(Vec::new(), |list| list.0),
            body: self.responder.body,
            service: Service {
                time: self.responder.service_time,
                knee: self.responder.service_knee.map(std::num::NonZeroUsize::get),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_time_follows_its_formula() {
        let service = Service {
            time: Duration::from_millis(9),
            knee: Some(30),
        };
        assert_eq!(service.time_of(1), Duration::from_millis(9));
        assert_eq!(service.time_of(30), Duration::from_millis(9));
        assert_eq!(service.time_of(60), Duration::from_millis(36));
        assert_eq!(
            Service {
                knee: None,
                ..service
            }
            .time_of(1000),
            Duration::from_millis(9)
        );
    }
}
