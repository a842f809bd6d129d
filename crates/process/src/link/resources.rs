//! Resources from the supervisor: files that it opens on request, and bound sockets.
//!
//! Without a supervisor, [`ProcessResources`] is empty or has the sockets of the service manager, and the process opens and binds with its own rights.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::opener::Opener;
use crate::protocol::{ListedPath, Resources, SocketKind};
use becket_keys::files::{FileAt, Files};

/// Resources of a start or a reload.
#[derive(Debug, Default)]
pub struct ProcessResources {
    /// Files that the configuration names.
    pub files: Files,
    /// Bound sockets.
    pub sockets: BoundSockets,
    /// The unix socket for the admin pages, where the supervisor made it.
    pub admin_socket: Option<io::Result<OwnedFd>>,
    /// Sockets of agents, one for each token.
    pub tokens: Vec<OwnedFd>,
    /// Logs that root would make, where there is only a check.
    pub logs: Vec<PathBuf>,
    /// Reloads that this process had asked for when these were opened.
    pub asked: u64,
}

impl ProcessResources {
    /// Sorts the descriptors that came with a listing.
    ///
    /// # Errors
    /// Fails if there are fewer descriptors than the listing names.
    pub fn new(listing: Resources, fds: Vec<OwnedFd>, opener: &Arc<Opener>) -> io::Result<Self> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(io::ErrorKind::InvalidData);
        let files = listing
            .files
            .into_iter()
            .enumerate()
            .map(|(number, (path, listed))| {
                let at = match listed {
                    ListedPath::File => FileAt::Listed(number as u32),
                    ListedPath::Folder(paths) => FileAt::Folder(paths),
                    ListedPath::Error(error) => FileAt::Error(error),
                };
                (path, at)
            });
        let files = Files::new(files.collect(), listing.is_all);
        let (opener, number) = (Arc::clone(opener), listing.number);
        let reporter = Arc::clone(&opener);
        let files = files.reported_by(Arc::new(move || reporter.report_progress()));
        let files = files.opened_by(Arc::new(move |file| opener.open(number, file)));
        let mut sockets = BTreeMap::new();
        for (kind, address, count) in listing.sockets {
            let found = match count {
                Ok(count) => Ok((0..count).map(|_| next()).collect::<Result<_, _>>()?),
                Err(error) => Err(error),
            };
            sockets.insert((kind, address), found);
        }
        let admin_socket = match listing.admin_socket {
            Some(Ok(())) => Some(Ok(next()?)),
            Some(Err(error)) => Some(Err(io::Error::from_raw_os_error(error))),
            None => None,
        };
        let tokens = (0..listing.tokens).map(|_| next());
        Ok(Self {
            tokens: tokens.collect::<Result<_, _>>()?,
            files,
            sockets: BoundSockets {
                sockets,
                listen_later: false,
            },
            admin_socket,
            logs: listing.logs,
            asked: listing.asked,
        })
    }

    /// Takes sockets that the service manager passed to this process.
    pub(crate) fn passed(sockets: BTreeMap<(SocketKind, SocketAddr), Vec<OwnedFd>>) -> Self {
        let sockets = sockets.into_iter().map(|(at, all)| (at, Ok(all)));
        Self {
            sockets: BoundSockets {
                sockets: sockets.collect(),
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
    pub listen_later: bool,
}

impl BoundSockets {
    /// Takes the sockets of an address; nothing where none was handed over, and this process binds for itself.
    pub fn take(
        &mut self,
        kind: SocketKind,
        address: SocketAddr,
    ) -> Option<io::Result<Vec<OwnedFd>>> {
        let found = self.sockets.remove(&(kind, address))?;
        Some(found.map_err(io::Error::from_raw_os_error))
    }

    /// Takes the one socket of an address.
    pub fn take_one(
        &mut self,
        kind: SocketKind,
        address: SocketAddr,
    ) -> Option<io::Result<OwnedFd>> {
        let found = self.take(kind, address)?;
        found.map(|mut sockets| sockets.pop()).transpose()
    }

    /// Takes the socket for datagrams of an address.
    pub fn take_datagrams(&mut self, address: SocketAddr) -> Option<io::Result<UdpSocket>> {
        let found = self.take_one(SocketKind::Datagrams, address)?;
        Some(found.map(UdpSocket::from))
    }

    /// Returns the result of binding an address; `None` if the supervisor did not bind it.
    pub fn probed(&self, address: SocketAddr) -> Option<io::Result<()>> {
        let tried =
            [SocketKind::Clients, SocketKind::Admin].map(|kind| self.sockets.get(&(kind, address)));
        let found = tried.into_iter().flatten().next()?;
        Some(match found {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::from_raw_os_error(*error)),
        })
    }

    /// Addresses of sockets that the service manager passed and nobody took.
    pub fn unused(&self) -> impl Iterator<Item = SocketAddr> {
        let passed = self
            .sockets
            .keys()
            .filter(|(kind, _)| *kind == SocketKind::Passed);
        passed.map(|(_, address)| *address)
    }
}
