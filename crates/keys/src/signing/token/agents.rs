//! Starts the agents of a configuration, one per token. The starting process is the supervisor,
//! which has root privileges if any process does.
//!
//! An agent runs as the configured user, and exits when the serving process closes its socket. The
//! serving process can request a replacement for a failed agent by the index of its token
//! ([`Agents::again`]).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use becket_config::key_source::KeyUri;
use becket_sys::clock::Stopwatch;
use becket_sys::identity::UnixIdentity;
use becket_sys::process::ChildProcess;
use becket_sys::root_only::{self, RootOnly};
use becket_sys::seqpacket::Seqpacket;
use serde::{Deserialize, Serialize};

use super::agent::{NAME, REFUSED};
use super::wire::{Setup, TokenSpec, write};

/// The agents of one configuration. They keep running when this value is dropped.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Agents {
    agents: Vec<Agent>,
    user: Option<(u32, u32, Vec<u32>)>,
    /// `true` if only root can change the configuration; then root opens the PIN files.
    is_roots: bool,
    /// Program to execute as an agent; `None` for the running program.
    #[serde(skip)]
    program: Option<PathBuf>,
    /// PIDs of killed processes that may still run.
    killed: Vec<u32>,
    /// Time since the configuration that needs the agents was dropped.
    #[serde(skip)]
    unused: Option<Stopwatch>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Agent {
    token: TokenSpec,
    /// PID of the agent; the process may still run.
    pid: Option<u32>,
    #[serde(skip, default = "Stopwatch::start")]
    since: Stopwatch,
    /// Number of consecutive early failures. It equals the length of `PAUSES_SECONDS` if the token
    /// rejected the PIN; the agent is then never replaced.
    failures: usize,
}

impl Agents {
    /// Starts an agent for each token, as `user` if given. `is_roots` means that only root can
    /// change the configuration. Returns one socket per token, in their order.
    pub fn start(
        tokens: Vec<TokenSpec>,
        user: Option<&UnixIdentity>,
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

    /// Replaces an agent and returns its socket. Returns `None` during the pause after a failure,
    /// and after the token rejected the PIN, because another attempt may lock the token.
    pub fn again(&mut self, index: usize) -> Option<OwnedFd> {
        self.killed.retain(is_running);
        let agent = self.agents.get_mut(index)?;
        if agent.since.elapsed().as_secs() < *PAUSES_SECONDS.get(agent.failures)? {
            return None;
        }
        if let Some(pid) = agent.pid.take() {
            let ended = ChildProcess::of(pid).and_then(|process| process.try_wait());
            match ended {
                Ok(None) => self.killed.push(kill(pid)),
                Ok(Some(status)) if status.code() == Some(REFUSED.into()) => {
                    agent.failures = PAUSES_SECONDS.len();
                    return None;
                }
                _ => {}
            }
        }
        let has_served = agent.since.elapsed() > LONG;
        let failures = if has_served { 1 } else { agent.failures + 1 };
        agent.failures = failures.min(PAUSES_SECONDS.len() - 1);
        agent.since = Stopwatch::start();
        let spawned = self.spawn(&self.agents.get(index)?.token);
        let spawned = spawned.inspect_err(|error| {
            tracing::error!(name: "token-agent-failed", %error, "cannot start the agent of a PKCS#11 token");
        });
        let (pid, socket) = spawned.ok()?;
        self.agents.get_mut(index)?.pid = Some(pid);
        Some(socket)
    }

    /// Returns `true` after all agents have exited. Call it repeatedly after dropping the
    /// configuration: it kills agents that do not exit.
    pub fn have_ended(&mut self) -> bool {
        if self.unused.get_or_insert_with(Stopwatch::start).elapsed() > GRACE {
            self.kill();
        }
        self.killed.retain(is_running);
        for agent in &mut self.agents {
            agent.pid = agent.pid.filter(is_running);
        }
        let mut agents = self.agents.iter();
        self.killed.is_empty() && agents.all(|agent| agent.pid.is_none())
    }

    pub fn kill(&mut self) {
        let pids = self.agents.iter_mut().filter_map(|it| it.pid.take());
        self.killed.extend(pids.map(kill));
    }

    fn spawn(&self, token: &TokenSpec) -> io::Result<(u32, OwnedFd)> {
        let keys = token.keys.iter().filter_map(|key| KeyUri::parse(key).ok());
        let keys: Vec<KeyUri> = keys.collect();
        let pin = keys.iter().find_map(|key| key.pin_source.as_deref());
        let pin = match pin.filter(|_| self.is_roots).map(root_only::open) {
            Some(Ok(Some(RootOnly::File(file)))) => Some(file),
            // The agent opens the PIN file itself, and reports errors.
            _ => None,
        };
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
            // Shows the module in process listings; the agent ignores this argument.
            .args(keys.first().map(|key| &key.token.module))
            .env_remove("NOTIFY_SOCKET")
            .env_remove("SSLKEYLOGFILE")
            .stdin(OwnedFd::from(there))
            .stdout(Stdio::null());
        let process = ChildProcess::start(&mut command)?;
        Ok((process.pid(), here.into()))
    }
}

/// Kills a process and returns its PID. Call [`is_running`] until the process has exited.
fn kill(pid: u32) -> u32 {
    // Fails only if the process has already been reaped.
    let killed = ChildProcess::of(pid).and_then(|process| process.kill());
    killed.ok();
    pid
}

fn is_running(pid: &u32) -> bool {
    let ended = ChildProcess::of(*pid).and_then(|process| process.try_wait());
    matches!(ended, Ok(None))
}

/// Minimum age in seconds at which a failed agent is replaced, by the number of consecutive early
/// failures.
const PAUSES_SECONDS: [u64; 5] = [0, 1, 2, 5, 10];
/// Age of an agent above which its failure is not counted as early.
const LONG: Duration = Duration::from_secs(10);
/// Maximum lifetime of an agent after its configuration was dropped. All handshakes of that
/// configuration end earlier.
const GRACE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Starts an agent that is a shell script with these commands, and waits until it has exited.
    fn after(commands: &str) -> Agents {
        let folder = tempfile::tempdir().unwrap();
        // An agent gets the path of its module as an argument; here it is the script of a shell.
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
    fn a_failed_agent_is_replaced_at_once_and_the_next_one_later() {
        let mut agents = after("exit 1");
        assert!(agents.again(1).is_none());
        agents.again(0).unwrap();
        assert!(agents.again(0).is_none());
        while !agents.have_ended() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_rejected_pin_is_not_retried() {
        let mut agents = after("exit 3");
        assert!(agents.again(0).is_none());
        assert!(agents.again(0).is_none());
        assert!(agents.have_ended());
    }
}
