//! Which CPU does what.
//!
//! With one CPU everybody shares it, and the report says so. With two, the server has the first, client
//! and backend the second. With more, the server gets as many as it has workers, at most half, each of another core; the other
//! hyper-threads of these cores rest, unless a case has workers share cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Error;
use crate::result::Core;
use crate::scenario::Settings;

/// The CPUs of a run, by core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    cores: Vec<Core>,
}

/// CPUs of a server, and of its clients and backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    pub server: Vec<usize>,
    pub client: Vec<usize>,
}

impl Place {
    /// Reads which CPUs the calling thread may use.
    pub fn here() -> Result<Self, Error> {
        let set = sched_getaffinity(None).map_err(|e| Error::os("sched_getaffinity", e.into()))?;
        let mut cores: Vec<Core> = Vec::new();
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)) {
            let socket = topology(cpu, "physical_package_id").parse().unwrap_or(0);
            let core = topology(cpu, "core_id").parse().unwrap_or(cpu);
            let known = cores.iter_mut();
            match known
                .into_iter()
                .find(|c| (c.socket, c.core) == (socket, core))
            {
                Some(known) => known.cpus.push(cpu),
                None => cores.push(Core {
                    socket,
                    core,
                    cpus: vec![cpu],
                }),
            }
        }
        Ok(Self { cores })
    }

    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    pub fn all(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.cores.iter().flat_map(|c| c.cpus.clone()).collect();
        all.sort_unstable();
        all
    }

    /// Returns the most cores of a server that it does not share with the client.
    fn most_cores(&self) -> usize {
        (self.cores.len() / 2).max(1)
    }

    /// Returns the machine that a case needs, if this one lacks a CPU of its own for each worker where the case needs that, or hyper-threads.
    pub fn needs(&self, settings: &Settings) -> Option<String> {
        if settings.smt && self.cores.iter().all(|core| core.cpus.len() == 1) {
            return Some("needs cores with two hyper-threads".to_owned());
        }
        let lacks = settings.spread && settings.workers > self.most_cores();
        lacks.then(|| {
            let (least, here) = (settings.workers * 2, self.cores.len());
            format!("needs {least} cores, here are {here}: workers must not share with the client")
        })
    }

    /// Returns the CPUs of a case.
    pub fn of(&self, settings: &Settings) -> Shares {
        let threads = if settings.smt { 2 } else { 1 };
        let cores = settings.cores.and_then(|cores| usize::try_from(cores).ok());
        let cores = cores.unwrap_or(settings.workers.div_ceil(threads));
        self.shares(cores, threads)
    }

    /// Returns the CPUs of a server with one worker.
    pub fn one(&self) -> Shares {
        self.shares(1, 1)
    }

    /// Returns the CPUs of a server on this many cores, if there is room for as many, with as many hyper-threads of each.
    fn shares(&self, cores: usize, threads: usize) -> Shares {
        let count = cores.clamp(1, self.most_cores());
        let (server, client) = self.cores.split_at(count.min(self.cores.len()));
        let server = server
            .iter()
            .flat_map(|core| core.cpus.iter().take(threads));
        let client: Vec<usize> = client.iter().flat_map(|core| core.cpus.clone()).collect();
        Shares {
            server: server.copied().collect(),
            client: if client.is_empty() {
                self.all()
            } else {
                client
            },
        }
    }
}

fn topology(cpu: usize, name: &str) -> String {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.trim().to_owned()
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

    /// A machine of `count` cores with `threads` hyper-threads each, numbered as Linux does: first one of each core.
    fn place(count: usize, threads: usize) -> Place {
        let core = |core| Core {
            socket: 0,
            core,
            cpus: (0..threads).map(|thread| core + thread * count).collect(),
        };
        Place {
            cores: (0..count).map(core).collect(),
        }
    }

    #[test]
    fn server_and_client_share_a_cpu_only_when_there_is_one() {
        let cpus = |count, cores| {
            let shares = place(count, 1).shares(cores, 1);
            (shares.server, shares.client)
        };
        assert_eq!(cpus(1, 1), (vec![0], vec![0]));
        assert_eq!(cpus(2, 4), (vec![0], vec![1]));
        assert_eq!(cpus(8, 3), (vec![0, 1, 2], vec![3, 4, 5, 6, 7]));
        assert_eq!(cpus(8, 9), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
    }

    #[test]
    fn no_core_has_a_server_and_its_client() {
        let cpus = |cores, threads| {
            let shares = place(4, 2).shares(cores, threads);
            (shares.server, shares.client)
        };
        assert_eq!(cpus(1, 1), (vec![0], vec![1, 5, 2, 6, 3, 7]));
        assert_eq!(cpus(1, 2), (vec![0, 4], vec![1, 5, 2, 6, 3, 7]));
        assert_eq!(cpus(8, 2), (vec![0, 4, 1, 5], vec![2, 6, 3, 7]));
    }
}
