//! Resources that the supervisor holds for a configuration: bound sockets, which outlive a process,
//! and files that it may open.
//!
//! As root, the supervisor opens a file only if root alone controls its path ([`root_only`]) and
//! the configuration. Otherwise another owner could make root open any file of the host. The
//! process opens all other files itself.
//!
//! A [`Resources`] lists files and their kinds. The process requests their descriptors later, a
//! limited number at a time, so that the limit of open files does not limit the number of
//! certificates.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use becket_config::acme::Acme;
use becket_config::file::File;
use becket_config::parts::IncludedFiles;
use becket_config::process::Process;
use becket_sys::fd_passing::inherited_listeners;
use becket_sys::identity::UnixIdentity;
use becket_sys::port_holder::port_holder;
use becket_sys::privileges::is_root;
use becket_sys::root_only::{self, RootOnly};
use becket_sys::socket::{ListenOptions, bind, datagrams, probe, succeed};
use becket_sys::socket_file::SocketFile;

use super::listing::{error_number, names_of};
use super::needs::Needs;
use crate::protocol::{ListedPath, ProcessTimes, Resources, SocketKind};
use becket_keys::files::{Files, LARGEST, part};
use becket_keys::signing::token::agents::Agents;
use becket_keys::watch::WatchedPlaces;
use becket_prepare::source::ConfigSource;

pub(super) type HeldSockets = BTreeMap<(SocketKind, SocketAddr), Vec<OwnedFd>>;

/// Takes the sockets that the service manager passed to this process.
pub(super) fn passed() -> io::Result<HeldSockets> {
    let by_address = |it: TcpListener| {
        let address = it.local_addr()?;
        Ok(((SocketKind::Passed, address), vec![it.into()]))
    };
    inherited_listeners()?.into_iter().map(by_address).collect()
}

/// The parts of the configuration that the supervisor uses.
#[derive(Debug, Default)]
pub(super) struct FoundConfig {
    pub(super) file: File,
    /// Error number if the configuration file cannot be opened.
    error: Option<i32>,
    /// Folders with parts of the configuration.
    folders: Vec<PathBuf>,
    /// `true` if only root can change the configuration.
    pub(super) is_roots: bool,
}

impl FoundConfig {
    /// Reads the configuration file, if there is one. `rights` is `true` if the supervisor has
    /// privileges; otherwise no file is listed.
    pub(super) fn by(source: &ConfigSource, rights: bool) -> Self {
        let Some(path) = source.file() else {
            return Self {
                file: source.written(b"", &Files::default()),
                is_roots: rights,
                ..Self::default()
            };
        };
        let found = if rights {
            root_only::open(&path)
        } else {
            Ok(None)
        };
        match found {
            Ok(Some(RootOnly::File(file))) => {
                let parts = PartsByRoot::default();
                let written = source.written(&part(&file, LARGEST).unwrap_or_default(), &parts);
                Self {
                    file: written,
                    is_roots: !parts.is_of_others.get(),
                    folders: parts.folders.into_inner(),
                    error: None,
                }
            }
            Ok(None) => {
                // A pipe can be read only once, by the serving process.
                let is_file = path.metadata().is_ok_and(|found| found.is_file());
                let files = Files::default();
                let text = is_file.then(|| files.text(&path, LARGEST).ok()?);
                Self {
                    file: source.written(&text.flatten().unwrap_or_default(), &files),
                    ..Self::default()
                }
            }
            Ok(Some(RootOnly::Folder(_))) => Self::default(),
            Err(error) => Self {
                error: error.raw_os_error(),
                ..Self::default()
            },
        }
    }
}

/// Opens parts of a configuration that only root can change, and records their folders. Opens other
/// parts by path.
#[derive(Debug, Default)]
struct PartsByRoot {
    folders: RefCell<Vec<PathBuf>>,
    /// `true` if another user can change a part of the configuration.
    is_of_others: Cell<bool>,
}

impl PartsByRoot {
    fn open(&self, path: &Path) -> io::Result<Option<RootOnly>> {
        let found = root_only::open(path);
        if let Ok(None) = found {
            self.is_of_others.set(true);
        }
        found
    }
}

impl IncludedFiles for PartsByRoot {
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        self.folders.borrow_mut().push(folder.to_owned());
        match self.open(folder)? {
            Some(RootOnly::Folder(entries)) => {
                let names = names_of(entries).into_iter();
                Ok(names.map(|(name, _)| folder.join(&*name)).collect())
            }
            Some(RootOnly::File(_)) => Err(io::Error::other("not a folder")),
            None => IncludedFiles::list(&Files::default(), folder),
        }
    }

    fn text(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        match self.open(path) {
            Ok(Some(RootOnly::File(file))) => part(&file, most).map(Some),
            // The serving process reports the error.
            Ok(Some(RootOnly::Folder(_))) | Err(_) => Ok(None),
            Ok(None) => Files::default().text(path, most),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Holdings {
    pub(super) sockets: HeldSockets,
    pub(super) workers: usize,
    /// Logs that root creates for the user.
    pub(super) logs: Vec<PathBuf>,
    /// Files whose changes are applied without a reload, in groups that are loaded together.
    pub(super) watched: Vec<Vec<PathBuf>>,
    /// Watched files that only root can change, and their stamps before the process reads them.
    pub(super) places: WatchedPlaces,
    /// Files whose changes cause a reload, with their stamps before the process reads them.
    pub(super) reloaded: WatchedPlaces,
    pub(super) keys: Process,
    pub(super) acme: Option<Acme>,
    pub(super) agents: Agents,
}

/// Resources of the configuration in use, and of configurations that are being loaded.
#[derive(Default)]
pub(super) struct Configurations {
    pub(super) current: Holdings,
    /// Configurations that are being loaded, each with the number of the process that loads it.
    offered: Vec<(u32, Holdings)>,
    /// Token agents of unused configurations, until they have exited.
    pub(super) unused_agents: Vec<Agents>,
    /// `true` after a process has served with a configuration that this supervisor opened.
    pub(super) has_committed: bool,
    last_listing: u32,
}

impl Configurations {
    pub(super) fn offer(&mut self, process: u32, holdings: Holdings) {
        self.offered.push((process, holdings));
    }

    /// Returns the client-facing addresses in the configuration that was offered to a process.
    pub(super) fn addresses(&self, process: u32) -> Vec<SocketAddr> {
        let offered = self.offered.iter().find(|(of, _)| *of == process);
        let bound = offered.into_iter().flat_map(|(_, it)| it.sockets.keys());
        let bound = bound.filter(|(kind, _)| *kind == SocketKind::Clients);
        let passed = self.current.sockets.keys();
        let passed = passed.filter(|(kind, _)| *kind == SocketKind::Passed);
        bound.chain(passed).map(|(_, address)| *address).collect()
    }

    fn take(&mut self, process: u32) -> Option<Holdings> {
        let at = self.offered.iter().position(|(of, _)| *of == process)?;
        Some(self.offered.remove(at).1)
    }

    pub(super) fn discard(&mut self, process: u32) {
        let unused = self.take(process).map(|unused| unused.agents);
        self.unused_agents.extend(unused);
    }

    /// Makes the configuration that was offered to a process the current configuration.
    pub(super) fn commit(&mut self, process: u32) {
        self.has_committed = true;
        if let Some(holdings) = self.take(process) {
            let mut unused = std::mem::replace(&mut self.current, holdings);
            self.unused_agents.push(unused.agents);
            // Keep the sockets that the service manager passed, because a later configuration may
            // use them again.
            unused
                .sockets
                .retain(|(kind, _), _| *kind == SocketKind::Passed);
            self.current.sockets.append(&mut unused.sockets);
        }
    }

    pub(super) fn release(&mut self) {
        self.current.sockets.clear();
        let offered = self.offered.drain(..);
        self.unused_agents.extend(offered.map(|(_, it)| it.agents));
    }

    pub(super) fn listing_number(&mut self) -> u32 {
        self.last_listing = self.last_listing.wrapping_add(1);
        self.last_listing
    }
}

#[derive(Debug, Default)]
pub(super) struct ResourceOffer {
    pub(super) listing: Resources,
    pub(super) fds: Vec<OwnedFd>,
}

impl ResourceOffer {
    pub(super) fn of_files(
        source: &ConfigSource,
        (seen, needs): (&FoundConfig, &Needs),
        places: &WatchedPlaces,
    ) -> Self {
        let mut offer = Self::default();
        match (source.file(), seen.error) {
            (Some(path), Some(error)) => offer.listing.add(path, ListedPath::Error(error)),
            (Some(path), None) if seen.is_roots => offer.listing.add(path, ListedPath::File(None)),
            _ => {}
        }
        if seen.is_roots {
            let files = seen.folders.iter().chain(&needs.files);
            files.for_each(|path| offer.listing.list(path, places));
        }
        offer
    }

    /// Binds the needed addresses that are not bound yet. Returns the sockets that stay open in the
    /// supervisor.
    pub(super) fn bind(&mut self, needs: &Needs, before: &HeldSockets) -> HeldSockets {
        let mut held = HeldSockets::new();
        for &(wanted, address) in &needs.addresses {
            let passed = (SocketKind::Passed, address);
            let is_passed = wanted == SocketKind::Clients && before.contains_key(&passed);
            let kind = if is_passed {
                SocketKind::Passed
            } else {
                wanted
            };
            let before = before.get(&(kind, address));
            let bound = sockets(kind, address, needs.workers, before).and_then(|sockets| {
                let sent = sockets.iter().map(OwnedFd::try_clone);
                let sent = sent.collect::<io::Result<Vec<_>>>()?;
                held.insert((kind, address), sockets);
                Ok(sent)
            });
            self.add_sockets(kind, address, bound);
        }
        held
    }

    fn add_sockets(
        &mut self,
        kind: SocketKind,
        address: SocketAddr,
        found: io::Result<Vec<OwnedFd>>,
    ) {
        let count = match &found {
            Ok(sockets) => Ok(sockets.len()),
            Err(error) => Err(error_number(error)),
        };
        self.listing.sockets.push((kind, address, count));
        self.fds.extend(found.into_iter().flatten());
    }

    /// Returns `true` if an address is in use by another socket.
    pub(super) fn finds_addresses_taken(&self) -> bool {
        let mut sockets = self.listing.sockets.iter();
        sockets.any(|(.., found)| *found == Err(EADDRINUSE))
    }

    /// Logs which processes hold the addresses that are in use. The serving process may not see
    /// processes of other users.
    pub(super) fn log_holders(&self) {
        let taken = self.listing.sockets.iter();
        for (_, address, _) in taken.filter(|(.., found)| *found == Err(EADDRINUSE)) {
            if is_root()
                && let Some(holder) = port_holder(*address)
            {
                tracing::warn!(name: "address-in-use", %address, "address in use by {holder}");
            }
        }
    }

    /// Adds the unix socket for the admin pages after all other descriptors. Creates it once, and
    /// only if root alone controls its path. Otherwise the process creates it with its own
    /// privileges.
    pub(super) fn add_admin_socket(&mut self, needs: &Needs, held: &mut Option<SocketFile>) {
        let Some(wanted) = &needs.admin_socket else {
            return;
        };
        if held.is_none() {
            let bound = match root_only::is_roots(&wanted.path) {
                Ok(false) => return,
                Ok(true) => SocketFile::bind(&wanted.path, &wanted.access),
                Err(error) => Err(error),
            };
            match bound {
                Ok(socket) => *held = Some(socket),
                Err(error) => {
                    self.listing.admin_socket = Some(Err(error_number(&error)));
                    return;
                }
            }
        }
        let listener = held.as_ref().map(|held| held.listener().try_clone());
        self.listing.admin_socket = listener.map(|listener| match listener {
            Ok(listener) => {
                self.fds.push(listener.into());
                Ok(())
            }
            Err(error) => Err(error_number(&error)),
        });
    }

    /// Starts the token agents as processes of `program`, and adds their sockets after all other
    /// descriptors.
    pub(super) fn start_agents(
        &mut self,
        seen: &FoundConfig,
        needs: &Needs,
        user: Option<&UnixIdentity>,
        program: Option<&Path>,
    ) -> Agents {
        match Agents::start(needs.tokens.clone(), user, seen.is_roots, program) {
            Ok((agents, sockets)) => {
                self.listing.tokens = sockets.len();
                self.fds.extend(sockets);
                agents
            }
            Err(error) => {
                tracing::error!(name: "token-agents-failed", %error, "cannot start the agents of the PKCS#11 tokens");
                Agents::default()
            }
        }
    }

    /// Records for each TCP address whether it can be bound.
    pub(super) fn probe(&mut self, needs: &Needs) {
        for &(kind, address) in &needs.addresses {
            if kind != SocketKind::Datagrams {
                let free = probe(address).map(|()| Vec::new());
                self.add_sockets(kind, address, free);
            }
        }
    }
}

/// Returns the sockets of an address: all held sockets, because clients may be queued on them, and
/// new ones up to the required number.
fn sockets(
    kind: SocketKind,
    address: SocketAddr,
    workers: usize,
    before: Option<&Vec<OwnedFd>>,
) -> io::Result<Vec<OwnedFd>> {
    let count = if kind == SocketKind::Clients {
        workers
    } else {
        1
    };
    let held = before.into_iter().flatten();
    let mut sockets = held
        .map(OwnedFd::try_clone)
        .collect::<io::Result<Vec<_>>>()?;
    if kind == SocketKind::Clients && sockets.is_empty() {
        probe(address)?;
    }
    while sockets.len() < count {
        sockets.push(match kind {
            SocketKind::Clients | SocketKind::Passed => bind(address, &ListenOptions::default())?,
            SocketKind::Admin => succeed(address)?.into(),
            SocketKind::Datagrams => datagrams(address, BUFFER)?.into(),
        });
    }
    Ok(sockets)
}

pub(super) fn times(seen: &FoundConfig) -> ProcessTimes {
    let timeouts = &seen.file.timeouts;
    ProcessTimes {
        drain: timeouts.drain,
        upgrade: timeouts.upgrade,
    }
}

/// Rejects a file that execvp would run as a shell script.
pub(super) fn check_program(program: &Path) -> io::Result<()> {
    let mut head = [0; 2];
    std::fs::File::open(program)?.read_exact(&mut head)?;
    match &head {
        [0x7f, b'E'] | b"#!" => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not a program: expected an ELF file or a script with #!",
        )),
    }
}

const EADDRINUSE: i32 = 98;
/// Receive buffer of a datagram socket in bytes. An unprivileged process cannot set this size.
const BUFFER: usize = 4 * 1024 * 1024;
