//! Resources from the supervisor: files opened on request, and bound sockets.
//!
//! Without a supervisor, [`ProcessResources`] is empty or contains the sockets of the service
//! manager. The process then opens files and binds sockets itself.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use super::opener::Opener;
use crate::protocol::{FolderListing, ListedEntry, ListedPath, Resources, SocketKind};
use becket_keys::files::{FileAt, Files, ListedFolder};
use becket_keys::stamp::Stamp;
use becket_keys::watch::Changes;

#[derive(Debug, Default)]
pub struct ProcessResources {
    pub files: Files,
    /// Files of a check for changes.
    pub changes: Changes,
    pub sockets: BoundSockets,
    /// Unix socket for the admin pages, if the supervisor created it.
    pub admin_socket: Option<io::Result<OwnedFd>>,
    /// Sockets of agents, one for each token.
    pub tokens: Vec<OwnedFd>,
    /// Logs that root would create. Set only for a check.
    pub logs: Vec<PathBuf>,
    /// Number of reloads that this process had requested when the resources were opened.
    pub asked: u64,
}

impl ProcessResources {
    /// Creates the resources from a listing and its descriptors.
    ///
    /// # Errors
    /// Fails if there are fewer descriptors than the listing names.
    pub fn new(listing: Resources, fds: Vec<OwnedFd>, opener: &Arc<Opener>) -> io::Result<Self> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(io::ErrorKind::InvalidData);
        let files = listing.indexed().map(|(index, (path, listed))| {
            let at = match listed {
                ListedPath::File(stamp) => FileAt::Listed(index, stamp.map(Stamp)),
                ListedPath::Folder(folder) => FileAt::Folder(listed_folder(index + 1, folder)),
                ListedPath::Error(error) => FileAt::Error(*error),
            };
            (path.clone(), at)
        });
        let files = Files::new(files.collect());
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
            changes: *listing.changes,
            sockets: BoundSockets {
                sockets,
                listen_later: false,
            },
            admin_socket,
            logs: listing.logs,
            asked: listing.asked,
        })
    }

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

fn listed_folder(first: u32, folder: &FolderListing) -> ListedFolder {
    let entries = folder.entries.iter().zip(first..);
    let entries = entries.map(|((name, entry), index)| {
        let at = match entry {
            ListedEntry::File(stamp) => FileAt::Listed(index, stamp.map(Stamp)),
            ListedEntry::Folder => FileAt::Folder(ListedFolder::default()),
            ListedEntry::Own => FileAt::Own,
            ListedEntry::Error(error) => FileAt::Error(*error),
        };
        (name.clone(), at)
    });
    ListedFolder {
        entries: entries.collect(),
        is_part: folder.is_part,
    }
}

/// Sockets by kind and address. Each can be taken once.
#[derive(Debug, Default)]
pub struct BoundSockets {
    sockets: BTreeMap<(SocketKind, SocketAddr), Result<Vec<OwnedFd>, i32>>,
    /// `true` if the old process still serves: a new socket must not listen before this process
    /// serves.
    pub listen_later: bool,
}

impl BoundSockets {
    /// Takes the sockets of an address. Returns `None` if none was passed; this process then binds
    /// the address itself.
    pub fn take(
        &mut self,
        kind: SocketKind,
        address: SocketAddr,
    ) -> Option<io::Result<Vec<OwnedFd>>> {
        let found = self.sockets.remove(&(kind, address))?;
        Some(found.map_err(io::Error::from_raw_os_error))
    }

    pub fn take_one(
        &mut self,
        kind: SocketKind,
        address: SocketAddr,
    ) -> Option<io::Result<OwnedFd>> {
        let found = self.take(kind, address)?;
        found.map(|mut sockets| sockets.pop()).transpose()
    }

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

    /// Returns the addresses of passed sockets that no listener took.
    pub fn unused(&self) -> impl Iterator<Item = SocketAddr> {
        let passed = self
            .sockets
            .keys()
            .filter(|(kind, _)| *kind == SocketKind::Passed);
        passed.map(|(_, address)| *address)
    }
}
