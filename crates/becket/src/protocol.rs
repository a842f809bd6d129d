//! What the supervisor and a process of its own say to each other: [`Command`] down, [`Event`] up.
//!
//! Each is a frame on a socket pair: a length, JSON, and with a command the descriptors that belong to it
//! ([`becket_sys::fd_messages`]). A field that a reader does not know is ignored. [`VERSION`] rises when a meaning changes: a process of
//! another version refuses to start, which changes nothing.
//!
//! The supervisor has rights that the other process lacks, so an event carries numbers of what the supervisor gave: never a path, a
//! name or an address. The text of [`Event::Failed`] is shown and nothing else.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use becket_proto::limits::Counts;
use becket_sys::identity::Identity;
use serde::{Deserialize, Serialize};

/// Version of the frames, and of what a supervisor carries over to the program that it becomes.
pub(crate) const VERSION: &str = "3";
/// Environment variable that holds [`VERSION`] in a process that a supervisor started.
pub(crate) const IS_STARTED: &str = "BECKET_CHILD";
/// Bytes of the longest event: what is held of 20 000 limits.
pub(crate) const LONGEST_EVENT: usize = 1024 * 1024;
/// Bytes of the longest command: paths of 200 000 certificates.
pub(crate) const LONGEST_COMMAND: usize = 64 * 1024 * 1024;
/// Files that are open at a time for one process.
pub(crate) const MOST_OPENED: usize = 16;

/// What a process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// The first one: become this user, load the configuration, report [`Event::Ready`].
    Start(ProcessStart),
    /// Load the configuration again.
    Reload(Resources),
    /// Look for changes in the files of certificates.
    Renew(Resources),
    /// The answer to [`Event::Open`]: the listing, the first file, and what came of each, with the descriptors of those that are open.
    Opened(u32, u32, Vec<OpenResult>),
    /// Accept clients. Other processes hold this much of the limits.
    Serve(Counts),
    /// Send state to the process at the other end of the socket that comes with this: it is to replace this one.
    Upgrade,
    /// Stop accepting, send the rest of the state, report [`Event::Yielded`]. The next process has this number, and the sockets of these
    /// addresses.
    Yield(u32, Vec<SocketAddr>),
    /// The next process serves: finish the connections and end.
    Leave,
    /// There is no next process, for this reason: continue. Other processes hold this much of the limits.
    Resume(String, Counts),
    /// A leaving process gave this back.
    Released(Counts),
    /// A leaving process's clients wait for this much.
    Wanted(u32, Counts),
    /// This process, which is leaving, may use so much more.
    Granted(Counts),
    /// Use another agent of the token with this index. Its socket comes with this.
    Token(usize),
    /// Open the log files again.
    Reopen,
    /// Stop accepting, finish the connections and end.
    Drain,
    /// End now.
    Stop,
}

/// What a process reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Event {
    /// Open these files of that listing.
    Open {
        /// Number of the listing.
        listing: u32,
        /// Places in it, at most [`MOST_OPENED`].
        files: Vec<u32>,
    },
    /// It is loading.
    Loading,
    /// It is loaded and could serve.
    Ready,
    /// It does not start, for this reason.
    Failed(String),
    /// It accepts clients.
    Serving,
    /// It is alive.
    Alive,
    /// The agent of the token with this index has failed.
    Token(usize),
    /// The configuration was loaded again.
    Reloaded,
    /// The configuration was refused, and nothing changed.
    Refused,
    /// Files that it opens itself have changed.
    Changed,
    /// It has looked for changes.
    Renewed,
    /// It does not accept any more, for the sake of this process, and holds this much of the limits.
    Yielded(u32, Counts),
    /// It is leaving and gives this back.
    Released(Counts),
    /// It is leaving, and its clients wait for this much.
    Wanted(Counts),
    /// It serves, and lets a leaving process use so much more.
    Granted(u32, Counts),
    /// A client of its admin pages asks for this.
    Asked(OperatorRequest),
}

/// What an operator asks for: by a signal, or by the admin pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatorRequest {
    /// SIGHUP: load the configuration again.
    Reload,
    /// SIGUSR2: become the program as it is now.
    Upgrade,
    /// SIGUSR1: open the log files again.
    Reopen,
    /// SIGTERM: stop accepting, finish the connections and end.
    Drain,
    /// SIGINT: end now.
    Stop,
}

/// What a process starts with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ProcessStart {
    /// Process ID of the supervisor.
    pub(crate) supervisor: u32,
    /// The user to become; absent where the supervisor has no rights to give up.
    pub(crate) user: Option<RunAs>,
    pub(crate) restarts: Restarts,
    /// Another process serves. The last descriptor is a socket on which that one sends its state.
    pub(crate) replaces: bool,
    pub(crate) listing: Resources,
}

/// A user by numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RunAs {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// The folder that is to be its file system.
    pub(crate) chroot: Option<PathBuf>,
    /// Logs. A log that the user cannot reach is opened before the change of user.
    pub(crate) logs: Vec<PathBuf>,
}

impl RunAs {
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
        }
    }
}

/// Restarts and upgrades under one supervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// Serving processes that died.
    pub(crate) deaths: u64,
    /// Upgrades.
    pub(crate) upgrades: u64,
}

/// What the supervisor has for a configuration. Descriptors of sockets, of the admin socket and of tokens come with it, in this order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Resources {
    /// Number of this listing.
    pub(crate) number: u32,
    /// Files that the supervisor opens when it is asked, and folders with what is in them.
    pub(crate) files: Vec<(PathBuf, Listed)>,
    /// Sockets of an address, or the number of the error.
    pub(crate) sockets: Vec<(SocketKind, SocketAddr, Result<usize, i32>)>,
    /// A listening unix socket for the admin pages, or the number of the error.
    pub(crate) admin_socket: Option<Result<(), i32>>,
    /// Number of agents of tokens.
    #[serde(default)]
    pub(crate) tokens: usize,
    /// Logs that the supervisor would create, for a process that only checks.
    pub(crate) logs: Vec<PathBuf>,
    /// The process finds no other file than these.
    pub(crate) is_all: bool,
    /// Reloads that the process had asked for when this was made.
    pub(crate) asked: u64,
}

/// What is at a listed path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Listed {
    File,
    Folder(Vec<PathBuf>),
    Error(i32),
}

/// What came of opening a listed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OpenResult {
    /// It is open: its descriptor comes with this.
    Open,
    /// Others than root can change it: the process opens it itself.
    Own,
    /// The number of the error.
    Error(i32),
}

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum SocketKind {
    /// Clients: bound, one for each worker.
    Clients,
    /// Clients: passed by the service manager, one for all workers.
    Passed,
    /// The admin pages: it listens.
    Admin,
    /// Datagrams of other hosts.
    Datagrams,
}

/// ProcessTimes of a configuration that concern the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessTimes {
    /// `timeouts.drain`
    pub(crate) drain: Duration,
    /// `timeouts.upgrade`
    pub(crate) upgrade: Duration,
}
