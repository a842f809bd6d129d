//! Inputs and actions of the supervisor.

use std::io;
use std::time::Duration;

use becket_proto::limits::Counts;
use serde::{Deserialize, Serialize};

use crate::protocol::{Command, Event, OperatorRequest, ProcessTimes, Restarts};

#[derive(Debug)]
pub(crate) enum Input {
    Requested(OperatorRequest),
    Event(u32, Event),
    /// Result of a process start: the timeouts of the process's configuration, or the error.
    Started(u32, io::Result<ProcessTimes>),
    /// A configuration with these timeouts was sent to a process.
    Offered(u32, ProcessTimes),
    Exited(u32, ProcessEnd),
    Broken(u32, String),
    /// Files that the supervisor watches have changed.
    FilesChanged,
    /// The exec of the new program failed for this reason.
    NotReplaced(String),
    /// A deadline may have expired.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessEnd {
    /// Exit code; `None` if a signal killed the process.
    pub code: Option<u8>,
    pub text: String,
}

impl From<io::Error> for ProcessEnd {
    fn from(error: io::Error) -> Self {
        let text = error.to_string();
        Self { code: None, text }
    }
}

/// A step for the runner. The runner carries out steps in order.
#[derive(Debug)]
pub(crate) enum Action {
    /// Start a process. `is_new` selects the program on disk instead of the running one. Answered
    /// by [`Input::Started`].
    Start {
        process: u32,
        is_new: bool,
        /// The process that sends its state to the new process.
        replaces: Option<u32>,
    },
    /// Send the command to load the current configuration. Answered by [`Input::Offered`].
    Reload(u32),
    /// Send the command to check files for changes.
    Renew(u32),
    Send(u32, Command),
    /// Send [`Command::Yield`] to the first process in favor of the second.
    Yield(u32, u32),
    /// Files may have changed: check them after they settle.
    Watch,
    /// The process serves with the last offered configuration: keep its resources, and drop those
    /// of the previous configuration.
    Commit(u32),
    /// The offered configuration is not used: drop its resources.
    Discard(u32),
    /// The service ends: drop all sockets.
    Release,
    Kill(u32),
    Notify(ServiceNotice),
    /// Execute the program of the serving process.
    Replace,
    Exit(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceNotice {
    Ready,
    ReloadRefused,
    ReloadLate,
    UpgradeRefused,
    Reloading,
    Stopping,
    Alive,
}

/// State that the supervisor passes to its next program over an exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SupervisorState {
    pub serving: u32,
    pub times: ProcessTimes,
    /// Draining processes, each with the time until it is killed.
    pub leaving: Vec<(u32, Duration)>,
    pub held: Vec<(u32, Counts)>,
    pub reload: bool,
    pub renew: bool,
    pub last_id: u32,
    pub restarts: Restarts,
}
