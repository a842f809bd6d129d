//! Starts the agents of a configuration, one for each token: for the process that has the rights, before the serving process is
//! confined.
//!
//! An agent runs as the run user, and ends when the serving process closes its socket. The serving process can ask for another agent in
//! the place of one that failed, by its index ([`Agents::again`]).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use becket_config::key_source::KeyUri;
use becket_sys::clock::Stopwatch;
use becket_sys::identity::Identity;
use becket_sys::process::ChildProcess;
use becket_sys::root_only::{self, RootOnly};
use becket_sys::seqpacket::Seqpacket;
use serde::{Deserialize, Serialize};

use super::agent::{NAME, REFUSED};
use super::wire::{Setup, TokenSpec, write};

/// The agents of one configuration. Dropping this ends none of them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Agents {
    agents: Vec<Agent>,
    user: Option<(u32, u32, Vec<u32>)>,
    /// The configuration is root's, who opens the files of PINs.
    is_roots: bool,
    /// Executed as an agent; `None` for the program that runs.
    #[serde(skip)]
    program: Option<PathBuf>,
    /// Processes that were killed and not waited for.
    killed: Vec<u32>,
    /// Since when no configuration uses them.
    #[serde(skip)]
    unused: Option<Stopwatch>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Agent {
    token: TokenSpec,
    /// Its process, which was not waited for.
    pid: Option<u32>,
    #[serde(skip, default = "Stopwatch::start")]
    since: Stopwatch,
    /// Agents of this token in a row that failed early.
    failures: usize,
}

impl Agents {
    /// Starts an agent for each token, as `user`, if root has one. `is_roots`: root alone can change the configuration. Returns a
    /// socket for each token, in their order.
    pub fn start(
        tokens: Vec<TokenSpec>,
        user: Option<&Identity>,
        is_roots: bool,
        program: Option<&Path>,
    ) -> io::Result<(Self, Vec<OwnedFd>)> {
        let mut all = Self {
            user: user.map(|user| (user.uid, user.gid, user.groups.clone())),
            is_roots,
            program: program.map(Path::to_owned),
            ..Self::default()
        };
        let mut sockets = Vec::new();
        for token in tokens {
            let (pid, socket) = all.spawn(&token)?;
            sockets.push(socket);
            all.agents.push(Agent {
                token,
                pid: Some(pid),
                since: Stopwatch::start(),
                failures: 0,
            });
        }
        Ok((all, sockets))
    }

    /// Replaces an agent, and returns the socket of the new one. Returns `None` when it is too early for that, and after the token has
    /// refused the PIN, since another attempt may lock it.
    pub fn again(&mut self, index: usize) -> Option<OwnedFd> {
        self.killed.retain(|pid| ended(*pid).is_none());
        let agent = self.agents.get_mut(index)?;
        if agent.since.elapsed() < *PAUSES.get(agent.failures)? {
            return None;
        }
        if let Some(pid) = agent.pid.take() {
            match ended(pid) {
                Some(Some(code)) if code == i32::from(REFUSED) => {
                    agent.failures = PAUSES.len();
                    return None;
                }
                Some(_) => {}
                None => self.killed.extend(kill(pid)),
            }
        }
        let has_served = agent.since.elapsed() > LONG;
        let failures = if has_served { 1 } else { agent.failures + 1 };
        agent.failures = failures.min(PAUSES.len() - 1);
        agent.since = Stopwatch::start();
        let token = agent.token.clone();
        let spawned = self.spawn(&token).inspect_err(|error| {
            tracing::error!(%error, "cannot start the process of a token");
        });
        let (pid, socket) = spawned.ok()?;
        self.agents.get_mut(index)?.pid = Some(pid);
        Some(socket)
    }

    /// Returns `true` once all have ended. Call it when no configuration uses them any more: they are killed if they do not end.
    pub fn have_ended(&mut self) -> bool {
        if self.unused.get_or_insert_with(Stopwatch::start).elapsed() > GRACE {
            self.kill();
        }
        self.killed.retain(|pid| ended(*pid).is_none());
        for agent in &mut self.agents {
            agent.pid = agent.pid.filter(|pid| ended(*pid).is_none());
        }
        let mut agents = self.agents.iter();
        self.killed.is_empty() && agents.all(|agent| agent.pid.is_none())
    }

    /// Kills all that run.
    pub fn kill(&mut self) {
        let pids = self.agents.iter_mut().filter_map(|it| it.pid.take());
        self.killed.extend(pids.filter_map(kill));
    }

    fn spawn(&self, token: &TokenSpec) -> io::Result<(u32, OwnedFd)> {
        let keys = token.keys.iter().filter_map(|key| KeyUri::parse(key).ok());
        let keys: Vec<KeyUri> = keys.collect();
        let pin = keys.iter().find_map(|key| key.pin_source.as_deref());
        let pin = pin
            .filter(|_| self.is_roots)
            .and_then(|path| match root_only::open(path) {
                Ok(Some(RootOnly::File(file))) => Some(file),
                // The agent says what is wrong with it.
                _ => None,
            });
        let (here, there) = Seqpacket::pair()?;
        let setup = Setup {
            user: self.user.clone(),
            token: token.clone(),
        };
        here.send(&write(&setup), pin.as_ref().map(AsFd::as_fd))?;
        let own = Path::new("/proc/self/exe");
        let mut command = Command::new(self.program.as_deref().unwrap_or(own));
        command
            .arg0(NAME)
            // For lists of processes.
            .args(keys.first().map(|key| &key.token.module))
            .env_remove("NOTIFY_SOCKET")
            .env_remove("SSLKEYLOGFILE")
            .stdin(OwnedFd::from(there))
            .stdout(Stdio::null());
        let process = ChildProcess::start(&mut command)?;
        Ok((process.pid(), here.into()))
    }
}

/// Kills a process, which is to be waited for.
fn kill(pid: u32) -> Option<u32> {
    let killed = ChildProcess::of(pid).and_then(|process| process.kill());
    killed.is_ok().then_some(pid)
}

/// The exit code of a process that has ended; there is none after a signal.
fn ended(pid: u32) -> Option<Option<i32>> {
    match ChildProcess::of(pid).and_then(|process| process.try_wait()) {
        Ok(None) => None,
        Ok(Some(status)) => Some(status.code()),
        Err(_) => Some(None),
    }
}

/// How old an agent is before another one replaces it, by the number of those before it that failed early.
const PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];
/// An agent that has run for so long did not fail at its start.
const LONG: Duration = Duration::from_secs(10);
/// How long an agent may live without a configuration: longer than a handshake that began before.
const GRACE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The agent of a token, which is a script with these commands, after it has ended.
    fn after(commands: &str) -> Agents {
        let folder = tempfile::tempdir().unwrap();
        // The argument of an agent, and so the script of a shell in its place.
        let script = folder.path().join("script");
        fs::write(&script, commands).unwrap();
        let token = TokenSpec {
            keys: vec![format!("pkcs11:object=a?module-path={}", script.display())],
            sessions: 1,
        };
        let shell = Some(Path::new("/bin/sh"));
        let (agents, sockets) = Agents::start(vec![token], None, false, shell).unwrap();
        assert_eq!(sockets.len(), 1);
        let stat = format!("/proc/{}/stat", agents.agents[0].pid.unwrap());
        while !fs::read_to_string(&stat).unwrap().contains(") Z") {
            std::thread::yield_now();
        }
        agents
    }

    #[test]
    fn a_agent_that_failed_is_replaced_at_once_and_the_next_one_later() {
        let mut agents = after("exit 1");
        assert!(agents.again(1).is_none());
        agents.again(0).unwrap();
        assert!(agents.again(0).is_none());
        while !agents.have_ended() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_pin_that_the_token_refused_is_not_tried_again() {
        let mut agents = after("exit 3");
        assert!(agents.again(0).is_none());
        assert!(agents.again(0).is_none());
        assert!(agents.have_ended());
    }
}
