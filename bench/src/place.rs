//! Assigns CPUs to server, client and backend.
//!
//! With one CPU, all processes share it. With two CPUs, the server uses the first one, and client and backend share the
//! second one. With more CPUs, the server uses one core per worker, but at most half of all cores. It uses one CPU of
//! each core; the second hyper-thread of a core stays idle unless a case uses it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Error;
use crate::result::Core;
use crate::scenario::Settings;

/// CPUs of a run, by core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    cores: Vec<Core>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    pub server: Vec<usize>,
    pub client: Vec<usize>,
}

impl Place {
    /// Reads the CPUs that the calling thread may use.
    pub fn here() -> Result<Self, Error> {
        let cpus = becket_sys::affinity::allowed_cpus()
            .map_err(|e| Error::os("cannot read the CPU affinity", e))?;
        let mut cores: Vec<Core> = Vec::new();
        for cpu in cpus {
            let socket = topology(cpu, "physical_package_id").parse().unwrap_or(0);
            let core = topology(cpu, "core_id").parse().unwrap_or(cpu);
            let is_same = |known: &&mut Core| (known.socket, known.core) == (socket, core);
            match cores.iter_mut().find(is_same) {
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

    /// Returns the maximum number of cores for a server.
    fn most_cores(&self) -> usize {
        (self.cores.len() / 2).max(1)
    }

    /// Returns `None` if this machine has the cores and hyper-threads that a case needs. Otherwise describes the
    /// required machine.
    pub fn needs(&self, settings: &Settings) -> Option<String> {
        if settings.smt && self.cores.iter().all(|core| core.cpus.len() == 1) {
            return Some("needs cores with two hyper-threads".to_owned());
        }
        let (workers, here) = (settings.workers, self.cores.len());
        if settings.shares_cores && workers > here {
            return Some(format!(
                "needs {workers} cores, this machine has {here}: workers must not share cores"
            ));
        }
        let lacks = settings.spread && workers > self.most_cores();
        lacks.then(|| {
            let least = workers * 2;
            format!("needs {least} cores, this machine has {here}: workers must not share cores with the client")
        })
    }

    pub fn of(&self, settings: &Settings) -> Shares {
        let threads = if settings.smt { 2 } else { 1 };
        if settings.shares_cores {
            let cores = self.cores.iter().take(settings.workers);
            let server = cores.flat_map(|core| core.cpus.iter().take(threads));
            return Shares {
                server: server.copied().collect(),
                client: self.all(),
            };
        }
        let cores = settings.cores.and_then(|cores| usize::try_from(cores).ok());
        let cores = cores.unwrap_or(settings.workers.div_ceil(threads));
        self.shares(cores, threads)
    }

    /// Returns the CPUs for a server with one worker.
    pub fn one(&self) -> Shares {
        self.shares(1, 1)
    }

    /// Returns the CPUs for a server on at most `cores` cores, with at most `threads` CPUs of each core.
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

/// Runs `work` with the calling thread pinned to these CPUs. Threads and processes that `work` starts inherit the
/// pinning.
pub fn on<T>(cpus: &[usize], work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let failed = |e: rustix::io::Errno| Error::os(format!("cannot pin to CPUs {cpus:?}"), e.into());
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

    /// Returns a machine with `count` cores of `threads` hyper-threads. As in Linux, the first hyper-threads of all cores come first.
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
    fn server_and_client_share_a_cpu_only_if_there_is_just_one() {
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
    fn clients_use_the_cores_of_the_workers_if_the_case_says_so() {
        let scenario = &crate::catalog::find(&["sharing".to_owned()]).unwrap()[0];
        let place = place(2, 1);
        let shares = scenario.cases(true).unwrap().into_iter();
        let shares = shares.map(|(_, settings)| (place.of(&settings), place.needs(&settings)));
        let of = |server: &[usize]| Shares {
            server: server.to_vec(),
            client: vec![0, 1],
        };
        assert_eq!(
            shares.collect::<Vec<_>>(),
            [(of(&[0]), None), (of(&[0, 1]), None)]
        );
    }

    #[test]
    fn server_and_client_never_share_a_core() {
        let cpus = |cores, threads| {
            let shares = place(4, 2).shares(cores, threads);
            (shares.server, shares.client)
        };
        assert_eq!(cpus(1, 1), (vec![0], vec![1, 5, 2, 6, 3, 7]));
        assert_eq!(cpus(1, 2), (vec![0, 4], vec![1, 5, 2, 6, 3, 7]));
        assert_eq!(cpus(8, 2), (vec![0, 4, 1, 5], vec![2, 6, 3, 7]));
    }
}
