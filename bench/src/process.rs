//! Starts a program pinned to CPUs with its output in a file, and stops it on drop.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use becket_load::clock;
use rustix::process::Signal;

use crate::{Error, guard, place};

/// Running program and all processes of its process group.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Proportional set size in bytes.
    pub pss_bytes: u64,
    pub threads: u64,
}

impl Weight {
    /// Returns the growth since `before` in bytes for each of `count` connections, rounded.
    pub fn growth(self, before: Self, count: usize) -> f64 {
        let growth = self.pss_bytes.saturating_sub(before.pss_bytes) as f64;
        (growth / count.max(1) as f64).round()
    }
}

impl Process {
    /// Starts a program on these CPUs in its own process group. `log` receives its output.
    pub fn start(
        name: String,
        mut command: Command,
        cpus: &[usize],
        log: PathBuf,
    ) -> Result<Self, Error> {
        let no_log = |e| Error::os(format!("cannot write {}", log.display()), e);
        let output = File::create(&log).map_err(no_log)?;
        let also = output.try_clone().map_err(no_log)?;
        command.stdin(Stdio::null()).stdout(output).stderr(also);
        let child = place::on(cpus, || {
            command.process_group(0).spawn().map_err(|e| {
                let program = command.get_program().display();
                Error::Peer(format!("cannot start {name}: {program}: {e}"))
            })
        })?;
        guard::watch(child.id());
        Ok(Self { name, child, log })
    }

    /// Waits until the program accepts connections.
    pub fn wait_for(&mut self, address: SocketAddr) -> Result<(), Error> {
        let deadline = clock::now() + START_LIMIT;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.complain(&format!("exited during its start ({status})")));
            }
            if TcpStream::connect_timeout(&address, PAUSE * 10).is_ok() {
                return Ok(());
            }
            if clock::now() > deadline {
                return Err(self.complain(&format!("does not listen on {address}")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns an error that includes the end of the program's log.
    pub fn complain(&self, what: &str) -> Error {
        let log = match end_of(&self.log).as_str() {
            "" => "its log is empty".to_owned(),
            lines => format!("its log ends with:{lines}"),
        };
        Error::Peer(format!("{} {what}; {log}", self.name))
    }

    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    /// Waits for the end of the program. Returns `None` if it still runs after `limit`.
    pub fn end_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = clock::now() + limit;
        while clock::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(PAUSE);
        }
        None
    }

    pub fn kill(&self) {
        guard::kill(self.child.id(), Signal::KILL);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads memory and number of threads of the process group. Takes several milliseconds for a large process.
    pub fn weight(&self) -> Weight {
        let mut weight = Weight::default();
        for pid in members(self.pid()) {
            let read =
                |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            weight.pss_bytes += field(&read("smaps_rollup"), "Pss:") * 1024;
            weight.threads += field(&read("status"), "Threads:");
        }
        weight
    }

    /// Returns the CPU time of becket's workers.
    pub fn worker_time(&self) -> Duration {
        self.cpu_time(|name| {
            let number = name.strip_prefix("becket-");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    }

    /// Returns the CPU time of the threads of the process group whose names satisfy `is_meant`, with nanosecond
    /// resolution. Excludes threads that have ended.
    pub fn cpu_time(&self, is_meant: impl Fn(&str) -> bool) -> Duration {
        let tasks = members(self.pid()).into_iter().flat_map(|pid| {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"));
            tasks.into_iter().flatten().flatten()
        });
        let nanos = tasks.filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            is_meant(name.trim_end()).then_some(())?;
            let line = fs::read_to_string(task.path().join("schedstat")).ok()?;
            line.split_ascii_whitespace().next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let group = self.child.id();
        guard::kill(group, Signal::TERM);
        self.end_within(STOP_LIMIT);
        // SIGKILL also ends the children, and the program itself if it is still running.
        guard::kill(group, Signal::KILL);
        drop(self.child.wait());
        guard::forget(group);
    }
}

/// Returns the last lines of a log, each after a line break and two spaces.
pub fn end_of(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LOG_LINES));
    last.map(|line| format!("\n  {line}")).collect()
}

/// Returns a free address of 127.0.0.1, with a port below the range of ephemeral ports (ip_local_port_range). Does not
/// reserve the port.
pub fn free_address() -> Result<SocketAddr, Error> {
    let tries = (0..PORTS_TRIED).map(|_| ([127, 0, 0, 1], fastrand::u16(PORTS)).into());
    let tries: Vec<SocketAddr> = tries.collect();
    let found = TcpListener::bind(tries.as_slice()).and_then(|listener| listener.local_addr());
    found.map_err(|e| Error::os("cannot find a free port of 127.0.0.1", e))
}

fn members(group: u32) -> Vec<u32> {
    let in_group = |pid: &u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = line.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_ascii_whitespace().nth(2) == Some(&group.to_string())
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(in_group).collect()
}

pub(crate) fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_ascii_whitespace().next());
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Replaces the path of the run's directory with `DIR` in a configuration that the report shows.
pub fn without_places(text: &str, directory: &Path) -> String {
    text.replace(&directory.display().to_string(), "DIR")
}

const PORTS: std::ops::Range<u16> = 10_000..32_000;
const PORTS_TRIED: u32 = 100;
const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(5);
const LOG_LINES: usize = 20;
