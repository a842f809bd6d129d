//! The protocol between the supervisor and its processes: [`Command`] down, [`Event`] up.
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
use becket_sys::identity::UnixIdentity;
use serde::{Deserialize, Serialize};

/// Version of the frames, and of what a supervisor carries over to the program that it becomes.
pub const VERSION: &str = "4";
/// Environment variable that holds [`VERSION`] in a process that a supervisor started.
pub const IS_STARTED: &str = "BECKET_CHILD";
/// Environment variable that holds [`VERSION`] in a program that a supervisor became.
pub(crate) const IS_CONTINUED: &str = "BECKET_CONTINUED";
/// Bytes of the longest event: what is held of 20 000 limits.
pub const LONGEST_EVENT: usize = 1024 * 1024;
/// Bytes of the longest command: paths of 200 000 certificates.
pub const LONGEST_COMMAND: usize = 64 * 1024 * 1024;
/// Files that are open at a time for one process.
pub const MOST_OPENED: usize = 16;

/// An instruction for a process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
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
    /// Raise the share of this leaving process by these counts.
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

/// A report of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Open these files of that listing.
    Open {
        /// Number of the listing.
        listing: u32,
        /// Places in it, at most [`MOST_OPENED`].
        files: Vec<u32>,
    },
    /// Loading makes progress.
    Loading,
    /// Loaded and ready to serve.
    Ready,
    /// The start failed, for this reason.
    Failed(String),
    /// The process accepts clients.
    Serving,
    /// Periodic sign of life.
    Alive,
    /// The agent of the token with this index has failed.
    Token(usize),
    /// The configuration was loaded again.
    Reloaded,
    /// The configuration was refused, and nothing changed.
    Refused,
    /// Files that it opens itself have changed.
    Changed,
    /// Files were checked for changes.
    Renewed,
    /// Accepting stopped in favor of the process with this number. The counts are the held shares of limits.
    Yielded(u32, Counts),
    /// A leaving process returns these shares.
    Released(Counts),
    /// Clients of a leaving process wait for these shares.
    Wanted(Counts),
    /// The serving process lends these shares to the leaving process with this number.
    Granted(u32, Counts),
    /// A client of its admin pages asks for this.
    Asked(OperatorRequest),
}

/// A request of an operator, by a signal or through the admin API.
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

/// Parameters of a start.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProcessStart {
    /// Process ID of the supervisor.
    pub supervisor: u32,
    /// The user to become; absent where the supervisor has no rights to give up.
    pub user: Option<RunAs>,
    pub restarts: Restarts,
    /// Another process serves. The last descriptor is a socket on which that one sends its state.
    pub replaces: bool,
    pub listing: Resources,
}

/// The user that a process becomes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunAs {
    pub identity: UnixIdentity,
    /// The folder that is to be its file system.
    pub chroot: Option<PathBuf>,
    /// Logs. A log that the user cannot reach is opened before the change of user.
    pub logs: Vec<PathBuf>,
}

/// Restarts and upgrades under one supervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// Serving processes that died.
    pub deaths: u64,
    /// Upgrades.
    pub upgrades: u64,
}

/// Resources for a configuration. The descriptors of sockets, of the admin socket and of tokens follow, in this order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Resources {
    /// Number of this listing.
    pub number: u32,
    /// Files that the supervisor opens when it is asked, and folders with what is in them.
    pub files: Vec<(PathBuf, ListedPath)>,
    /// Sockets of an address, or the number of the error.
    pub sockets: Vec<(SocketKind, SocketAddr, Result<usize, i32>)>,
    /// A listening unix socket for the admin pages, or the number of the error.
    pub admin_socket: Option<Result<(), i32>>,
    /// Number of agents of tokens.
    #[serde(default)]
    pub tokens: usize,
    /// Logs that the supervisor would create, for a process that only checks.
    pub logs: Vec<PathBuf>,
    /// The process finds no other file than these.
    pub is_all: bool,
    /// Reloads that the process had asked for when this was made.
    pub asked: u64,
}

/// The kind of a listed path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedPath {
    File,
    Folder(Vec<PathBuf>),
    Error(i32),
}

/// The result of opening a listed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenResult {
    /// The descriptor of the open file comes with this.
    Open,
    /// Others than root can change it: the process opens it itself.
    Own,
    /// The number of the error.
    Error(i32),
}

/// The purpose of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SocketKind {
    /// Clients: bound, one for each worker.
    Clients,
    /// Clients: passed by the service manager, one for all workers.
    Passed,
    /// The admin pages: it listens.
    Admin,
    /// Datagrams of other hosts.
    Datagrams,
}

/// Times of a configuration that concern the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTimes {
    /// `timeouts.drain`
    pub drain: Duration,
    /// `timeouts.upgrade`
    pub upgrade: Duration,
}
