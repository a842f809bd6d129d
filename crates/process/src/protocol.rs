//! The protocol between the supervisor and its processes: the supervisor sends [`Command`]s, a
//! process sends [`Event`]s.
//!
//! Each message is a frame on a socket pair: a length, JSON, and the descriptors of a command
//! ([`becket_sys::fd_messages`]). A receiver ignores unknown fields. [`VERSION`] increases when a
//! meaning changes. A process of another version refuses to start, and the running process
//! continues.
//!
//! A *listing* is a [`Resources`]: its files have a fixed order, and [`Event::Open`] refers to them
//! by index. [`Counts`] are numbers of connections, by limit: the part of the shared limits that a
//! process holds ([`becket_proto::limits`]).
//!
//! The supervisor has privileges that the other process lacks. So an event contains only numbers
//! that the supervisor assigned: never a path, a name or an address. The text of [`Event::Failed`]
//! is only displayed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use becket_config::acme::Acme;
use becket_keys::watch::Changes;
use becket_proto::limits::Counts;
use becket_sys::identity::UnixIdentity;
use serde::{Deserialize, Serialize};

/// Version of the frames and of the state that a supervisor carries over an exec.
pub const VERSION: &str = "7";
/// Environment variable with [`VERSION`], set in a process that a supervisor started.
pub const IS_STARTED: &str = "BECKET_CHILD";
/// Environment variable with [`VERSION`], set for a program that a supervisor executed to replace
/// itself.
pub(crate) const IS_CONTINUED: &str = "BECKET_CONTINUED";
/// Maximum size of an event in bytes; fits the [`Counts`] of 20 000 limits.
pub const LONGEST_EVENT: usize = 1024 * 1024;
/// Maximum size of a command in bytes; fits the paths of 200 000 certificates.
pub const LONGEST_COMMAND: usize = 64 * 1024 * 1024;
/// Maximum number of files opened for a process at a time.
pub const MOST_OPENED: u32 = 64;

#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// First command: change to this user, load the configuration, report [`Event::Ready`].
    Start(ProcessStart),
    Reload(Resources),
    /// Check the listed files for changes, and the changed files that the process opens itself.
    Renew(Resources),
    /// Answers [`Event::Open`]: number of the listing, index of the first file, and a result per
    /// file. The descriptors of open files follow.
    Opened(u32, u32, Vec<OpenResult>),
    /// Accept clients. The counts are the connections that leaving processes still hold.
    Serve(Counts),
    /// Send state over the attached socket to the process that replaces this process.
    Upgrade,
    /// Stop accepting, send the remaining state, and report [`Event::Yielded`]. The arguments are
    /// the number of the next process and the addresses of its sockets.
    Yield(u32, Vec<SocketAddr>),
    /// The next process serves: finish the connections and exit.
    Leave,
    /// The upgrade failed for this reason, so continue to serve. The counts are the connections
    /// that leaving processes still hold.
    Resume(String, Counts),
    /// Reclaim this share of the limits, which a leaving process released.
    Released(Counts),
    /// Clients of the leaving process with this number wait for connections. The counts are the
    /// connections that these clients need.
    Wanted(u32, Counts),
    /// Use this additional share of the limits, which the serving process granted.
    Granted(Counts),
    /// Use the attached socket of a new agent for the token with this index.
    Token(usize),
    /// First command to the ACME companion: change to the user and order certificates.
    Acme(Box<AcmeStart>),
    /// The attached socket connects the serving process and the ACME companion
    /// ([`crate::companion_link`]), instead of an earlier one.
    Companion,
    /// Open the log files again.
    Reopen,
    /// Stop accepting, finish the connections and exit.
    Drain,
    Stop,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Open files of a listing: the index of the first one, and their number, at most
    /// [`MOST_OPENED`].
    Open {
        listing: u32,
        first: u32,
        count: u32,
    },
    /// Loading makes progress; the supervisor extends its deadline.
    Loading,
    /// The configuration is loaded; the process can serve.
    Ready,
    /// The start failed, for this reason.
    Failed(String),
    /// The process accepts clients.
    Serving,
    /// Periodic heartbeat.
    Alive,
    /// The agent of the token with this index has failed.
    Token(usize),
    Reloaded,
    /// The configuration was rejected, and nothing changed.
    Refused,
    /// Files that the process opens itself have changed.
    Changed,
    /// The check of files for changes has finished. `true` if a changed file was rejected: the next
    /// check must list it again.
    Renewed(bool),
    /// The process stopped accepting in favor of the process with this number. The counts are the
    /// connections that it still holds.
    Yielded(u32, Counts),
    /// A leaving process no longer needs this share of the limits.
    Released(Counts),
    /// Clients of a leaving process wait for connections. The counts are the connections that these
    /// clients need.
    Wanted(Counts),
    /// The serving process grants this share of the limits to the leaving process with this number.
    Granted(u32, Counts),
    /// An operator sent this request through the admin API.
    Asked(OperatorRequest),
}

/// An operator's request, by a signal or through the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OperatorRequest {
    /// SIGHUP: load the configuration again.
    Reload,
    /// SIGUSR2: replace the program with its current version on disk.
    Upgrade,
    /// SIGUSR1: open the log files again.
    Reopen,
    /// SIGTERM: stop accepting, finish the connections and exit.
    Drain,
    /// SIGINT: exit now.
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct AcmeStart {
    pub section: Acme,
    /// Folder of the configuration file. Relative paths start here.
    pub base: PathBuf,
    /// User to change to, with the group of the serving process; `None` if the supervisor has no
    /// privileges to drop.
    pub user: Option<UnixIdentity>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ProcessStart {
    pub supervisor: u32,
    /// The user to change to; `None` if the supervisor has no privileges to drop.
    pub user: Option<RunAs>,
    pub restarts: Restarts,
    /// `true` if another process serves and sends its state. The last descriptor is the socket for
    /// that state.
    pub replaces: bool,
    pub listing: Resources,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunAs {
    pub identity: UnixIdentity,
    /// Log files. A log that the user cannot open is opened before the change of user.
    pub logs: Vec<PathBuf>,
}

/// Counts of restarts and upgrades under one supervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// Number of serving processes that died.
    pub deaths: u64,
    pub upgrades: u64,
}

/// Resources for a configuration. The descriptors of the sockets, the admin socket and the tokens
/// follow in this order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Resources {
    pub number: u32,
    /// Files that the supervisor opens on request, and folders with their contents. In a check for
    /// changes, only changed files, and files that are loaded together with them. The index of a file
    /// counts the elements of this list and of the folders in it.
    pub files: Vec<(PathBuf, ListedPath)>,
    /// Changed files of a check for changes.
    #[serde(default)]
    pub changes: Box<Changes>,
    /// Addresses to bind, each with its number of sockets, or with the error number of the failed
    /// bind.
    pub sockets: Vec<(SocketKind, SocketAddr, Result<usize, i32>)>,
    /// The listening unix socket for the admin pages, or the error number of the failed bind.
    pub admin_socket: Option<Result<(), i32>>,
    #[serde(default)]
    pub tokens: usize,
    /// Logs that the supervisor would create. Set for a process that only checks.
    pub logs: Vec<PathBuf>,
    /// Number of reloads that the process had requested when this listing was made.
    pub asked: u64,
}

/// Stamps of files are `None` if the supervisor does not watch them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedPath {
    File(Option<u64>),
    Folder(FolderListing),
    Error(i32),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderListing {
    /// Names, sorted.
    pub entries: Vec<(Box<str>, ListedEntry)>,
    /// `true` if only changed files are listed.
    pub is_part: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedEntry {
    File(Option<u64>),
    Folder,
    /// A user other than root can change the file, so the process opens it itself.
    Own,
    Error(i32),
}

impl Resources {
    /// Returns the elements of `files`, each with the index of its path.
    pub fn indexed(&self) -> impl Iterator<Item = (u32, &(PathBuf, ListedPath))> {
        self.files.iter().scan(0, |next, listed| {
            let index = *next;
            *next += 1;
            if let ListedPath::Folder(folder) = &listed.1 {
                *next += folder.entries.len() as u32;
            }
            Some((index, listed))
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenResult {
    /// The file is open, and its descriptor follows.
    Open,
    /// A user other than root can change the file, so the process opens it itself.
    Own,
    /// Opening the file failed with this error number.
    Error(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SocketKind {
    /// Clients: bound sockets, one per worker.
    Clients,
    /// Clients: one socket from the service manager for all workers.
    Passed,
    /// The admin pages: a listening socket.
    Admin,
    /// Datagrams from other hosts.
    Datagrams,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTimes {
    pub drain: Duration,
    pub upgrade: Duration,
}
