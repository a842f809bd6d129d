//! Which CPU does what.
//!
//! With one CPU everybody shares it, and the report says so. With two, the server has the first, client
//! and backend the second. With more, the server gets as many as it has workers, at most half.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Error;
use crate::scenario::Settings;

/// The CPUs of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    cpus: Vec<usize>,
}

impl Place {
    /// Reads which CPUs the calling thread may use.
    pub fn here() -> Result<Self, Error> {
        let set = sched_getaffinity(None).map_err(|e| Error::os("sched_getaffinity", e.into()))?;
        let cpus = (0..CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .collect();
        Ok(Self { cpus })
    }

    pub fn all(&self) -> &[usize] {
        &self.cpus
    }

    /// Returns the most workers that do not share a CPU with the client.
    pub fn most_workers(&self) -> usize {
        (self.cpus.len() / 2).max(1)
    }

    /// Returns the machine that a case needs, if this one lacks a CPU of its own for each worker where the case needs that.
    pub fn needs(&self, settings: &Settings) -> Option<String> {
        let lacks = settings.spread && settings.workers > self.most_workers();
        lacks.then(|| {
            let (least, here) = (settings.workers * 2, self.cpus.len());
            format!("needs {least} CPUs, here are {here}: workers must not share with the client")
        })
    }

    /// Returns the CPUs of a server with this many workers: more workers than there is room for share.
    pub fn server(&self, workers: usize) -> &[usize] {
        let count = workers.clamp(1, self.most_workers());
        self.cpus.get(..count).unwrap_or(&self.cpus)
    }

    /// Returns the CPUs of clients and backend beside such a server.
    pub fn client(&self, workers: usize) -> &[usize] {
        match self.cpus.get(self.server(workers).len()..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => &self.cpus,
        }
    }
}

/// Does something with the calling thread on these CPUs: threads and processes that it starts stay
/// there.
pub fn on<T>(cpus: &[usize], work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let failed = |e: rustix::io::Errno| Error::os(format!("pinning to CPUs {cpus:?}"), e.into());
    let before = sched_getaffinity(None).map_err(failed)?;
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set).map_err(failed)?;
    let result = work();
    sched_setaffinity(None, &before).map_err(failed)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_and_client_share_a_cpu_only_when_there_is_one() {
        let place = |count: usize| Place {
            cpus: (0..count).collect(),
        };
        assert_eq!(place(1).server(1), place(1).client(1));
        assert_eq!(
            (place(2).server(4), place(2).client(4)),
            (&[0][..], &[1][..])
        );
        assert_eq!(place(8).server(3), [0, 1, 2]);
        assert_eq!(place(8).client(9), [4, 5, 6, 7]);
    }
}
