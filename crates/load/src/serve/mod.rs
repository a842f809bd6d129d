//! The responder: the cheapest HTTP/1 server there is, for standing behind a terminator.
//!
//! A request that comes in one piece costs `accept4`, `recv`, `send`, `close` and nothing else: no
//! registration, no parsing beyond three headers. `Connection: close` and HTTP/1.0 are answered by
//! closing; the path `/bytes/N` asks for a body of N bytes.
//!
//! A service time makes it a model of an application. It is constant, or grows with the number `n` of
//! requests in service: `time * max(1, n / knee)^2`. The formula is fixed before a run and printed.

mod desk;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use self::desk::Desk;
use crate::Error;
use crate::cli::Cli;

/// What the responder is to be.
#[derive(Clone, Debug)]
pub struct Responder {
    address: SocketAddr,
    threads: usize,
    cpus: Vec<usize>,
    body: u64,
    service: Service,
}

/// How long a response takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Service {
    /// The least time.
    pub time: Duration,
    /// The number of requests in service from which it grows.
    pub knee: Option<usize>,
}

impl Service {
    /// Returns the time of a request that is one of `n` in service.
    pub fn time_of(self, n: usize) -> Duration {
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
        let cpus = match self.cpus.as_deref() {
            None | Some("none") => Vec::new(),
            Some(list) => list
                .split(',')
                .map(|n| {
                    n.trim()
                        .parse()
                        .map_err(|_| wrong(format!("`{n}` is not a CPU")))
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Responder {
            address: socket,
            threads: self.threads.map_or(1, std::num::NonZeroUsize::get),
            cpus,
            body: self.body,
            service: Service {
                time: self.service_time,
                knee: self.service_knee.map(std::num::NonZeroUsize::get),
            },
        })
    }
}

/// Answers until `stop` is set.
///
/// # Errors
/// [`Error::Os`] when the address is in use or may not be bound.
pub fn run(responder: &Responder, stop: &Arc<AtomicBool>) -> Result<(), Error> {
    // As many as the system gives: a responder with fewer callers does not need them.
    becket_sys::rlimit::raise_open_files(DESCRIPTORS).unwrap_or(0);
    let first = Desk::new(responder, responder.address)?;
    let bound = first
        .listener
        .local_addr()
        .map_err(|e| Error::os("getsockname", e))?;
    let in_service = Arc::new(AtomicUsize::new(0));
    let mut desks = vec![first];
    for _ in 1..responder.threads {
        desks.push(Desk::new(responder, bound)?);
    }
    println!("listening on {bound}");
    let threads = desks.into_iter().enumerate().map(|(index, mut desk)| {
        desk.in_service = Arc::clone(&in_service);
        let (stop, cpu) = (Arc::clone(stop), responder.cpus.get(index).copied());
        std::thread::spawn(move || {
            if let Some(cpu) = cpu {
                becket_sys::affinity::pin_current_thread(cpu)
                    .map_err(|e| Error::os(format!("pinning to CPU {cpu}"), e))?;
            }
            desk.work(&stop)
        })
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        thread.join().unwrap_or(Ok(()))?;
    }
    Ok(())
}

/// As many callers as any scenario has.
const DESCRIPTORS: u64 = 32_768;

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
