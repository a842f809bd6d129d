//! What the parent keeps and hands over: sockets, which stay bound from one child to the next, and files, opened each time.
//!
//! Only files are opened that root alone put where they are ([`root_only`]), and only where that holds for the configuration as
//! well: whoever may write to either would otherwise have root open any file of the host. The child opens the rest by its own
//! rights.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use becket_config::dialect::Parts;
use becket_config::file::File;
use becket_sys::fd_passing::InheritedListener;
use becket_sys::regular;
use becket_sys::root_only::{self, RootOnly};
use becket_sys::socket::{ListenOptions, bind, datagrams, probe, succeed};
use becket_sys::socket_file::SocketFile;

use super::needs::Needs;
use crate::files::{Files, LARGEST, part, reason};
use crate::handover::{FileFound, List, SocketKind};
use crate::prepare::source::Source;

/// Bound sockets by what they are for.
pub(super) type Held = BTreeMap<(SocketKind, SocketAddr), Vec<OwnedFd>>;

/// The configuration as the parent sees it.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) file: File,
    /// The configuration file, if it is one that only root can change.
    handed: Option<Result<std::fs::File, i32>>,
    /// Folders with parts of it.
    folders: Vec<PathBuf>,
    /// Nobody else chose what is in it.
    pub(super) is_roots: bool,
}

impl Seen {
    /// Reads the configuration file, if there is one. Nothing is handed over where there are no `rights` to give up.
    pub(super) fn by(source: &Source, rights: bool) -> Self {
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
                let written = source.written(&text(&file), &parts);
                let is_roots = !parts.is_of_others.get();
                Self {
                    file: written,
                    handed: is_roots.then_some(Ok(file)),
                    folders: parts.folders.into_inner(),
                    is_roots,
                }
            }
            Ok(None) => {
                // A pipe is for whoever serves.
                let is_file = path.metadata().is_ok_and(|found| found.is_file());
                let file = is_file.then(|| regular::open(&path).ok()).flatten();
                let text = file.map_or_else(Vec::new, |it| text(&it.0));
                Self {
                    file: source.written(&text, &Files::default()),
                    ..Self::default()
                }
            }
            Ok(Some(RootOnly::Folder(_))) => Self::default(),
            Err(error) => Self {
                handed: error.raw_os_error().map(Err),
                ..Self::default()
            },
        }
    }
}

/// Opens parts of a configuration that only root can change, and notes where they are. Others are read as anybody reads them.
#[derive(Debug, Default)]
struct PartsByRoot {
    folders: RefCell<Vec<PathBuf>>,
    /// There are parts that others can change.
    is_of_others: Cell<bool>,
}

impl PartsByRoot {
    fn open(&self, path: &Path) -> Result<Option<RootOnly>, String> {
        let found = root_only::open(path);
        if let Ok(None) = found {
            self.is_of_others.set(true);
        }
        found.map_err(|error| reason(&error))
    }
}

impl Parts for PartsByRoot {
    fn list(&self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        self.folders.borrow_mut().push(folder.to_owned());
        match self.open(folder)? {
            Some(RootOnly::Folder(names)) => Ok(paths_in(folder, &names)),
            Some(RootOnly::File(_)) => Err("no folder".to_owned()),
            None => Parts::list(&Files::default(), folder),
        }
    }

    fn text(&self, path: &Path, most: u64) -> Result<Option<Vec<u8>>, String> {
        match self.open(path) {
            Ok(Some(RootOnly::File(file))) => part(&file, most).map(Some),
            // What is wrong is said by the child.
            Ok(Some(RootOnly::Folder(_))) | Err(_) => Ok(None),
            Ok(None) => Files::default().text(path, most),
        }
    }
}

/// What is sent: a list, and its descriptors in their order.
#[derive(Debug, Default)]
pub(super) struct Parcel {
    pub(super) list: List,
    pub(super) fds: Vec<OwnedFd>,
}

impl Parcel {
    /// Opens the files that a configuration names.
    pub(super) fn of_files(source: &Source, seen: Seen, needs: &Needs) -> Self {
        let mut parcel = Self::default();
        parcel.list.has_tokens = needs.has_tokens;
        match (source.file(), seen.handed) {
            (Some(path), Some(Ok(file))) => parcel.add_file(path, file),
            (Some(path), Some(Err(error))) => parcel.add(path, FileFound::Error(error)),
            _ => {}
        }
        if seen.is_roots {
            seen.folders.iter().for_each(|path| parcel.open(path, true));
            parcel.open_all(&needs.files);
        }
        parcel
    }

    /// Opens files, and those in folders.
    pub(super) fn open_all(&mut self, files: &[PathBuf]) {
        files.iter().for_each(|path| self.open(path, true));
    }

    fn open(&mut self, path: &Path, is_named: bool) {
        match root_only::open(path) {
            Ok(None) => {}
            Ok(Some(RootOnly::File(file))) => self.add_file(path.to_owned(), file),
            Ok(Some(RootOnly::Folder(names))) => {
                let paths = paths_in(path, &names);
                if is_named {
                    paths.iter().for_each(|path| self.open(path, false));
                }
                self.add(path.to_owned(), FileFound::Folder(paths));
            }
            Err(error) => {
                let error = error.raw_os_error().map(FileFound::Error);
                error
                    .into_iter()
                    .for_each(|found| self.add(path.to_owned(), found));
            }
        }
    }

    fn add_file(&mut self, path: PathBuf, file: std::fs::File) {
        if path.to_str().is_some() {
            self.fds.push(file.into());
            self.add(path, FileFound::File);
        }
    }

    fn add(&mut self, path: PathBuf, found: FileFound) {
        self.list.files.push((path, found));
    }

    /// Binds what is needed and not held yet. Returns what is to be held from now on.
    pub(super) fn bind(
        &mut self,
        needs: &Needs,
        before: &Held,
        passed: &[InheritedListener],
    ) -> Held {
        let mut held = Held::new();
        for (kind, address) in needs.addresses() {
            let is_at =
                |it: &&InheritedListener| it.listener.local_addr().is_ok_and(|at| at == address);
            let passed = passed
                .iter()
                .find(is_at)
                .filter(|_| kind == SocketKind::Clients);
            if let Some(passed) = passed {
                let socket = passed
                    .listener
                    .try_clone()
                    .map(|socket| vec![socket.into()]);
                self.add_sockets(SocketKind::Passed, address, socket);
                continue;
            }
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
            Err(error) => Err(number(error)),
        };
        self.list.sockets.push((kind, address, count));
        self.fds.extend(found.into_iter().flatten());
    }

    /// Adds the unix socket for the admin pages, behind all other descriptors. It is made once, and only where nobody but root
    /// can put something at its path; elsewhere the child makes it by its own rights.
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
                    self.list.admin_socket = Some(Err(number(&error)));
                    return;
                }
            }
        }
        let listener = held.as_ref().map(|held| held.listener().try_clone());
        self.list.admin_socket = listener.map(|listener| match listener {
            Ok(listener) => {
                self.fds.push(listener.into());
                Ok(())
            }
            Err(error) => Err(number(&error)),
        });
    }

    /// Says of each address whether it could be bound.
    pub(super) fn probe(&mut self, needs: &Needs) {
        for (kind, address) in needs.addresses() {
            if kind != SocketKind::Datagrams {
                let free = probe(address).map(|()| Vec::new());
                self.add_sockets(kind, address, free);
            }
        }
    }
}

/// The paths of what is in a folder, those that are text, sorted.
fn paths_in(folder: &Path, names: &[OsString]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    paths.retain(|path| path.to_str().is_some());
    paths.sort();
    paths
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or_default()
}

/// The sockets of an address: those that are held, all of them, since clients may wait there, and as many more as there must be.
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

/// The text of a file, of at most 16 MiB; empty where it is none.
fn text(mut file: &std::fs::File) -> Vec<u8> {
    let mut text = Vec::new();
    match file.by_ref().take(LARGEST).read_to_end(&mut text) {
        Ok(_) => text,
        Err(_) => Vec::new(),
    }
}

/// Bytes of datagrams that may wait, which is more than a process without rights could have.
const BUFFER: usize = 4 * 1024 * 1024;
