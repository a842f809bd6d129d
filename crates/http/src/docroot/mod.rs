//! A folder whose files a backend serves: finds the file for a request, and its header fields.
//!
//! A [`Docroot`] is opened by the run user when the configuration is loaded, and shared by all workers. It never opens
//! anything outside its folder (`becket_sys::tree`), and serves only regular files. A worker first looks up a file
//! without waiting for a disk; if that is impossible, one of the [`readers`] looks the file up. Each worker has a
//! [`cache`] of recently found files.
//!
//! Module `select` selects the part of a file to send; `crates/proxy/src/connection/serving/` sends it.

pub mod cache;
mod open_file;
pub mod readers;

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

use crate::coding::{Coding, Codings};
use crate::path::RelativePath;
use crate::status::StatusCode;
use becket_config::backend::Files;
use becket_sys::tree::{OpenOptions, Tree};

pub use self::open_file::OpenFile;

#[derive(Debug)]
pub struct Docroot {
    pub keys: Files,
    pub path: PathBuf,
    tree: Tree,
}

#[derive(Clone, Debug)]
pub enum AtPath {
    File(Arc<OpenFile>),
    /// The path names a folder but lacks a trailing slash, so a redirect follows.
    Folder,
    /// No file can be sent; the response has this status code.
    Nothing(StatusCode),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    pub path: RelativePath,
    pub codings: Codings,
}

impl Docroot {
    /// Opens the served folder.
    ///
    /// # Errors
    /// Fails if the folder cannot be opened.
    pub fn open(path: PathBuf, keys: Files) -> io::Result<Self> {
        let tree = Tree::open(&path)?;
        Ok(Self { keys, path, tree })
    }

    /// Looks up a file. Returns `None` if that would wait for a disk and `waits` is `false`.
    pub fn find(&self, wanted: &FileKey, waits: bool) -> Option<AtPath> {
        let FileKey { path, codings } = wanted;
        let RelativePath {
            bytes: path,
            is_folder,
        } = path;
        if !is_folder {
            return self.best(path, *codings, waits);
        }
        for index in &self.keys.index {
            let mut name = path.clone();
            if !name.is_empty() {
                name.push(b'/');
            }
            name.extend(index.as_bytes());
            match self.best(&name, *codings, waits)? {
                AtPath::Folder | AtPath::Nothing(StatusCode::NotFound) => {}
                found => return Some(found),
            }
        }
        let folder: &[u8] = if path.is_empty() { b"." } else { path };
        match self.at(folder, None, waits)? {
            AtPath::Folder => Some(AtPath::Nothing(StatusCode::Forbidden)),
            AtPath::File(_) => Some(AtPath::Nothing(StatusCode::NotFound)),
            nothing => Some(nothing),
        }
    }

    pub fn page(&self, status: StatusCode) -> Option<FileKey> {
        let mut pages = self.keys.error_page.iter();
        let page = pages.find(|page| {
            page.status
                .is_some_and(|number| number.to_string() == status.number())
        })?;
        Some(FileKey {
            path: RelativePath {
                bytes: page.path.clone().into_bytes(),
                is_folder: false,
            },
            codings: Codings::default(),
        })
    }

    /// Returns the first variant in [`Coding::ALL`] that exists and that the client accepts, otherwise the file itself.
    /// A nonexistent path costs one lookup.
    fn best(&self, path: &[u8], codings: Codings, waits: bool) -> Option<AtPath> {
        let plain = self.at(path, None, waits)?;
        if self.keys.precompressed && matches!(plain, AtPath::File(_)) {
            for coding in Coding::ALL.into_iter().filter(|one| codings.has(*one)) {
                if let variant @ AtPath::File(_) = self.at(path, Some(coding), waits)? {
                    return Some(variant);
                }
            }
        }
        Some(plain)
    }

    fn at(&self, path: &[u8], coding: Option<Coding>, waits: bool) -> Option<AtPath> {
        let opened = match coding {
            None => self.file(path, waits),
            Some(coding) => self.file(&[path, coding.suffix().as_bytes()].concat(), waits),
        };
        Some(match opened {
            Ok((_, metadata)) if metadata.is_dir() => AtPath::Folder,
            Ok((file, metadata)) if metadata.is_file() => {
                let open = OpenFile::new((file, &metadata), path, coding, &self.keys);
                AtPath::File(Arc::new(open))
            }
            // The path leads to a FIFO, a socket or a device.
            Ok(_) => AtPath::Nothing(StatusCode::NotFound),
            Err(error) if error.kind() == ErrorKind::WouldBlock && !waits => return None,
            Err(error) => AtPath::Nothing(status_of(&error)),
        })
    }

    fn file(&self, path: &[u8], waits: bool) -> io::Result<(File, Metadata)> {
        let links = self.keys.symlinks;
        self.tree.file(path, OpenOptions { links, waits })
    }
}

/// Returns the status for a path that cannot be opened. Hides from clients that a path leads
/// outside the folder or through a symbolic link.
fn status_of(error: &io::Error) -> StatusCode {
    match error.kind() {
        ErrorKind::PermissionDenied => StatusCode::Forbidden,
        ErrorKind::NotFound
        | ErrorKind::NotADirectory
        | ErrorKind::CrossesDevices
        | ErrorKind::InvalidFilename => StatusCode::NotFound,
        _ if error.raw_os_error() == Some(LINK) => StatusCode::NotFound,
        _ if becket_sys::socket::is_local_shortage(error) => StatusCode::ServiceUnavailable,
        ErrorKind::WouldBlock | ErrorKind::OutOfMemory => StatusCode::ServiceUnavailable,
        _ => StatusCode::InternalServerError,
    }
}

/// ELOOP: the path contains a symbolic link, which is never followed.
const LINK: i32 = 40;
