//! What a parent that kept root's rights hands to its child, which serves without any: open files and bound sockets.
//!
//! Both are processes of this program ([`crate::parent`]). The parent sends an [`Order`] with descriptors, the child answers
//! with single bytes ([`Reply`]). The child asks for nothing but what a signal to the parent would do, without a word of how.
//! Where there is no parent, [`Handed`] is empty, or has what the service manager passed, and everything is opened and bound
//! by the rights of the process itself.

pub mod link;
pub(crate) mod rows;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use becket_sys::fd_passing::InheritedListener;
use becket_sys::identity::Identity;
use serde::{Deserialize, Serialize};

use crate::files::{self, Files};

/// What the parent tells the child to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// The first one: become this user, and start with these.
    Begin(Begin),
    /// Reload with these.
    Load(List),
    /// Look at these: the configuration is the one that runs, what they hold may have changed.
    Renew(List),
    /// Open the log files anew.
    Reopen,
    /// Another process is to replace this one: tell it what it is to know, on the socket that comes with this.
    Upgrade,
    /// It could serve now: accept nobody any more, and tell it the rest.
    Yield,
    /// It serves: finish and end. It has the sockets of these addresses.
    Leave(Vec<SocketAddr>),
    /// It does not, for this reason: go on.
    NotUpgraded(String),
    /// Take no new clients, finish, end.
    Drain,
    /// End now.
    Stop,
}

/// What a child begins with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// Whom to become; nothing where the parent has no rights to give up.
    pub(crate) user: Option<RunAs>,
    pub(crate) past: Past,
    /// Which row it has of the memory that is shared with other processes of this parent; its descriptor comes behind those of the list.
    #[serde(default)]
    pub(crate) row: Option<usize>,
    /// Another process serves still. The last descriptor is a socket on which it tells what there is to know.
    pub(crate) replaces: bool,
    pub(crate) list: List,
}

/// A user by numbers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunAs {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// The folder that is to be its file system.
    pub(crate) chroot: Option<PathBuf>,
    /// Logs outside of it, to be opened before.
    #[serde(default)]
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

/// What was before a child, under one parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Children that died.
    pub(crate) restarts: u64,
    /// Upgrades.
    pub(crate) upgrades: u64,
}

/// What the descriptors of a message are, in their order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct List {
    pub(crate) files: Vec<(PathBuf, FileFound)>,
    /// How many sockets there are for an address, or the number of the error.
    pub(crate) sockets: Vec<(SocketKind, SocketAddr, Result<usize, i32>)>,
    /// Whether there is a unix socket for the admin pages, which listens, or the number of the error.
    #[serde(default)]
    pub(crate) admin_socket: Option<Result<(), i32>>,
    /// Logs that root would make for the child, for one that only checks.
    #[serde(default)]
    pub(crate) logs: Vec<PathBuf>,
    /// The child has no other files than these.
    pub(crate) is_all: bool,
    /// Reloads that the child had asked for when these were opened.
    #[serde(default)]
    pub(crate) asked: u64,
    /// Keys are on tokens.
    #[serde(default)]
    pub(crate) has_tokens: bool,
}

/// What is at a path.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FileFound {
    File,
    Folder(Vec<PathBuf>),
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

/// What the child says to the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reply {
    /// It could serve, once the process that it replaces does not any more.
    Prepared = b'p',
    /// It serves.
    Ready = b'r',
    /// The reload was done.
    Loaded = b'l',
    /// The reload was refused, and nothing changed.
    Refused = b'n',
    /// Files that it opens by itself have changed.
    Changed = b'c',
    /// It has looked at the files that it was told to.
    Renewed = b'w',
    /// It lives.
    Alive = b'a',
    /// It asks for what SIGHUP does.
    AskReload = b'h',
    /// It asks for what SIGUSR2 does.
    AskUpgrade = b'u',
    /// It asks for what SIGTERM does.
    AskDrain = b't',
}

impl Reply {
    /// Reads a byte of a child.
    pub(crate) fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Prepared,
            Self::Ready,
            Self::Loaded,
            Self::Refused,
            Self::Changed,
            Self::Renewed,
            Self::Alive,
            Self::AskReload,
            Self::AskUpgrade,
            Self::AskDrain,
        ];
        all.into_iter().find(|reply| *reply as u8 == byte)
    }
}

/// What a process was handed to start or reload with.
#[derive(Debug, Default)]
pub struct Handed {
    /// What the configuration names.
    pub files: Files,
    /// What is bound for it.
    pub sockets: BoundSockets,
    /// The unix socket for the admin pages, where the parent made it.
    pub admin_socket: Option<io::Result<OwnedFd>>,
    /// Logs that root would make, where there is only a check.
    pub logs: Vec<PathBuf>,
    /// Reloads that this process had asked for when these were opened.
    pub(crate) asked: u64,
}

impl Handed {
    /// Sorts the descriptors of a message.
    ///
    /// # Errors
    /// When there are not as many as the list says.
    pub(crate) fn new(list: List, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(io::ErrorKind::InvalidData);
        let mut files = BTreeMap::new();
        for (path, found) in list.files {
            let handed = match found {
                FileFound::File => files::FileAt::File(next()?.into()),
                FileFound::Folder(paths) => files::FileAt::Folder(paths),
                FileFound::Error(error) => files::FileAt::Error(error),
            };
            files.insert(path, handed);
        }
        let mut sockets = BTreeMap::new();
        for (kind, address, count) in list.sockets {
            let found = match count {
                Ok(count) => Ok((0..count).map(|_| next()).collect::<Result<_, _>>()?),
                Err(error) => Err(error),
            };
            sockets.insert((kind, address), found);
        }
        let admin_socket = match list.admin_socket {
            Some(Ok(())) => Some(Ok(next()?)),
            Some(Err(error)) => Some(Err(io::Error::from_raw_os_error(error))),
            None => None,
        };
        Ok(Self {
            files: Files::new(files, list.is_all),
            sockets: BoundSockets {
                sockets,
                listen_later: false,
            },
            admin_socket,
            logs: list.logs,
            asked: list.asked,
        })
    }

    /// Takes what the service manager passed to this process.
    pub(crate) fn passed(listeners: Vec<InheritedListener>) -> Self {
        let mut sockets = BTreeMap::new();
        for passed in listeners {
            if let Ok(address) = passed.listener.local_addr() {
                sockets.insert(
                    (SocketKind::Passed, address),
                    Ok(vec![passed.listener.into()]),
                );
            }
        }
        Self {
            sockets: BoundSockets {
                sockets,
                listen_later: false,
            },
            ..Self::default()
        }
    }
}

/// Sockets by what they are for and where they are bound, each to be taken once.
#[derive(Debug, Default)]
pub struct BoundSockets {
    sockets: BTreeMap<(SocketKind, SocketAddr), Result<Vec<OwnedFd>, i32>>,
    /// Another process serves still: a socket that does not listen yet is not to begin before that has ended.
    pub(crate) listen_later: bool,
}

impl BoundSockets {
    /// Takes the sockets of an address; nothing where none was handed over, and this process binds for itself.
    pub(crate) fn take(
        &mut self,
        kind: SocketKind,
        address: SocketAddr,
    ) -> Option<io::Result<Vec<OwnedFd>>> {
        let found = self.sockets.remove(&(kind, address))?;
        Some(found.map_err(io::Error::from_raw_os_error))
    }

    /// Takes the one socket of an address.
    pub(crate) fn take_one(
        &mut self,
        kind: SocketKind,
        address: SocketAddr,
    ) -> Option<io::Result<OwnedFd>> {
        let found = self.take(kind, address)?;
        found.map(|mut sockets| sockets.pop()).transpose()
    }

    /// Takes the socket for datagrams of an address.
    pub(crate) fn take_datagrams(&mut self, address: SocketAddr) -> Option<io::Result<UdpSocket>> {
        let found = self.take_one(SocketKind::Datagrams, address)?;
        Some(found.map(UdpSocket::from))
    }

    /// Whether an address could be bound; nothing where nobody has tried.
    pub(crate) fn probed(&self, address: SocketAddr) -> Option<io::Result<()>> {
        let tried =
            [SocketKind::Clients, SocketKind::Admin].map(|kind| self.sockets.get(&(kind, address)));
        let found = tried.into_iter().flatten().next()?;
        Some(match found {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::from_raw_os_error(*error)),
        })
    }

    /// Addresses of sockets that the service manager passed and nobody took.
    pub(crate) fn unused(&self) -> impl Iterator<Item = SocketAddr> {
        let passed = self
            .sockets
            .keys()
            .filter(|(kind, _)| *kind == SocketKind::Passed);
        passed.map(|(_, address)| *address)
    }
}
