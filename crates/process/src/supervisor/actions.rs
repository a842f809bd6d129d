//! Inputs and actions of the supervisor.

use std::io;
use std::time::Duration;

use becket_proto::limits::Counts;
use serde::{Deserialize, Serialize};

use crate::protocol::{Command, Event, OperatorRequest, ProcessTimes, Restarts};

/// An event that the supervisor handles.
#[derive(Debug)]
pub(crate) enum Input {
    /// An operator's request, by a signal.
    Requested(OperatorRequest),
    /// A report of a process.
    Event(u32, Event),
    /// A process was started with a configuration of these times, or not.
    Started(u32, io::Result<ProcessTimes>),
    /// A process was sent a configuration to load.
    Offered(u32, ProcessTimes),
    /// A process has ended.
    Exited(u32, ProcessEnd),
    /// A process violated the protocol.
    Broken(u32, String),
    /// Files that the supervisor watches have changed.
    FilesChanged,
    /// execve of the new program failed, for this reason.
    NotReplaced(String),
    /// Time has passed.
    Tick,
}

/// The end of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessEnd {
    /// Exit code; absent where a signal ended the process.
    pub code: Option<u8>,
    /// Text for logs.
    pub text: String,
}

/// A step for the runner. Steps are carried out in order.
#[derive(Debug)]
pub(crate) enum Action {
    /// Start a process. `is_new`: the program as it is now, otherwise the one that this process is. Answered by [`Input::Started`].
    Start {
        process: u32,
        is_new: bool,
        /// The process that is to send its state.
        replaces: Option<u32>,
    },
    /// Have a process load the configuration as it is now. Answered by [`Input::Offered`].
    Reload(u32),
    /// Have a process look for changes in files.
    Renew(u32),
    Send(u32, Command),
    /// Send [`Command::Yield`] for the sake of the second process.
    Yield(u32, u32),
    /// Files may have changed: check them when they have settled.
    Watch,
    /// A process serves by the configuration that it was last offered: keep its sockets, drop the others.
    Commit(u32),
    /// A configuration is not used: drop what was opened for it.
    Discard(u32),
    /// The service ends: drop all sockets.
    Release,
    Kill(u32),
    Notify(ServiceNotice),
    /// Become the program of the serving process.
    Replace,
    /// End with this exit code.
    Exit(u8),
}

/// A notification for the service manager.
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

/// State from which another program continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SupervisorState {
    pub serving: u32,
    pub times: ProcessTimes,
    /// Process, and how long it may still take to end.
    pub leaving: Vec<(u32, Duration)>,
    pub held: Vec<(u32, Counts)>,
    pub reload: bool,
    pub renew: bool,
    pub last_id: u32,
    pub restarts: Restarts,
}
