//! The files that a configuration names: opened by their paths, or by a supervisor that may read more.
//!
//! Everything that a start, a reload or a check reads goes through [`Files`]. A path that the supervisor did not list is
//! opened here, with the rights of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use becket_config::error::reason;
use becket_config::parts::{IncludedFiles, TOO_LARGE};
use becket_sys::identity::user_name;
use becket_sys::privileges::effective_user;
use becket_sys::regular;

/// Source of files. The default is the file system alone.
#[derive(Clone, Default)]
pub struct Files {
    listed: Arc<BTreeMap<PathBuf, FileAt>>,
    /// Called for each file that this process opens itself.
    reporter: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Opens listed files.
    opener: Option<Arc<OpenListed>>,
    is_all: bool,
    /// Logs that were opened before their paths led nowhere.
    logs: Arc<BTreeMap<PathBuf, io::Result<File>>>,
    /// Paths that were looked for here, found or not.
    opened: Arc<Mutex<BTreeSet<PathBuf>>>,
    reach: Option<Arc<Reach>>,
}

/// Paths that a sandboxed process can open, without links, and everything below them.
#[derive(Debug, Default)]
pub struct Reach {
    /// Paths that can be read.
    pub read: BTreeSet<PathBuf>,
    /// Paths at which files can be created and written.
    pub write: BTreeSet<PathBuf>,
}

impl Reach {
    fn has(&self, path: &Path) -> bool {
        let Ok(whole) = fs::canonicalize(path) else {
            return true;
        };
        let mut places = self.read.iter().chain(&self.write);
        places.any(|place| whole.starts_with(place))
    }
}

/// Opens a file by its number in the listing. Absent where this process is to open it by its path.
pub type OpenListed = dyn Fn(u32) -> io::Result<Option<File>> + Send + Sync;

impl fmt::Debug for Files {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Files").finish_non_exhaustive()
    }
}

/// A path as the supervisor found it.
#[derive(Debug)]
pub enum FileAt {
    /// A regular file, by its number in the listing.
    Listed(u32),
    /// A folder, and what is in it.
    Folder(Vec<PathBuf>),
    /// Error number: the path cannot be opened.
    Error(i32),
}

impl Files {
    /// Takes what the supervisor listed, and whether this process finds nothing else by a path.
    pub fn new(listed: BTreeMap<PathBuf, FileAt>, is_all: bool) -> Self {
        Self {
            listed: Arc::new(listed),
            is_all,
            ..Self::default()
        }
    }

    /// Calls `report` for each file that this process opens itself.
    pub fn reported_by(self, report: Arc<dyn Fn() + Send + Sync>) -> Self {
        let reporter = Some(report);
        Self { reporter, ..self }
    }

    /// Opens listed files by `open`.
    pub fn opened_by(self, open: Arc<OpenListed>) -> Self {
        let opener = Some(open);
        Self { opener, ..self }
    }

    /// Adds logs that were opened before the change of user.
    pub fn with_logs(self, logs: BTreeMap<PathBuf, io::Result<File>>) -> Self {
        let logs = Arc::new(logs);
        Self { logs, ..self }
    }

    /// A log that was opened before; nothing where it is to be opened by its path.
    ///
    /// # Errors
    /// Returns the error of opening it.
    pub fn log(&self, path: &Path) -> io::Result<Option<File>> {
        match self.logs.get(path) {
            None => Ok(None),
            Some(Ok(file)) => file.try_clone().map(Some),
            Some(Err(error)) => Err(match error.raw_os_error() {
                Some(number) => io::Error::from_raw_os_error(number),
                None => error.kind().into(),
            }),
        }
    }

    /// Restricts paths to a sandbox, if there is one.
    pub fn within(self, reach: Option<&Arc<Reach>>) -> Self {
        let reach = reach.cloned();
        Self { reach, ..self }
    }

    /// Every path that was looked for here so far.
    pub fn opened(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        // A set is one also where its owner has panicked.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the sandbox allows a path, which need not exist.
    ///
    /// # Errors
    /// Fails if it does not.
    pub fn check_reach(&self, path: &Path) -> io::Result<()> {
        match &self.reach {
            Some(reach) if !reach.has(path) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "outside of process.sandbox, which has the folders that becket started with: restart or upgrade it",
            )),
            _ => Ok(()),
        }
    }

    /// Opens a path in this process, and explains a denied permission.
    fn here<T>(&self, path: &Path, open: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        self.opened().insert(path.to_owned());
        if let Some(reporter) = &self.reporter {
            reporter();
        }
        open(path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                let beyond = self.check_reach(path).err();
                beyond.or_else(|| denied(path)).unwrap_or(error)
            }
            _ => error,
        })
    }

    /// Files that the supervisor opens, and this process may not.
    pub fn closed(&self) -> Vec<PathBuf> {
        let is_closed = |path: &&PathBuf| {
            regular::open(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        self.listed.keys().filter(is_closed).cloned().collect()
    }

    /// Returns `true` if this process sees no paths of the host.
    pub fn is_confined(&self) -> bool {
        self.is_all
    }

    /// Returns `true` if this process opens a path with its own rights.
    pub fn is_own(&self, path: &Path) -> bool {
        !self.is_all && !self.listed.contains_key(path)
    }

    /// Returns the listed entry of a path; `None` if this process opens the path itself.
    fn listed(&self, path: &Path) -> io::Result<Option<&FileAt>> {
        match self.listed.get(path) {
            None if self.is_all => Err(io::Error::other(
                "out of reach in process.chroot, as root opens only files that nobody else can change",
            )),
            listed => Ok(listed),
        }
    }

    /// Opens a regular file for reading from its beginning, and never waits. Two at a time of one path would share
    /// their place in it.
    ///
    /// # Errors
    /// Returns the error of a system call; `InvalidInput` if the path is not a regular file.
    pub fn open(&self, path: &Path) -> io::Result<(File, Metadata)> {
        match self.listed(path)? {
            None => self.here(path, regular::open),
            Some(FileAt::Listed(number)) => {
                let opener = self.opener.as_ref().ok_or(io::ErrorKind::NotFound)?;
                match opener(*number)? {
                    Some(file) => {
                        let metadata = file.metadata()?;
                        Ok((file, metadata))
                    }
                    None => self.here(path, regular::open),
                }
            }
            Some(FileAt::Folder(_)) => Err(io::ErrorKind::IsADirectory.into()),
            Some(FileAt::Error(error)) => Err(io::Error::from_raw_os_error(*error)),
        }
    }

    /// The contents of a file. Where it is opened by its path, it may be a pipe.
    ///
    /// # Errors
    /// Returns the error of a system call.
    pub fn bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        if self.listed(path)?.is_some() {
            let mut bytes = Vec::new();
            self.open(path)?.0.read_to_end(&mut bytes)?;
            Ok(bytes)
        } else {
            self.here(path, |path| fs::read(path))
        }
    }

    /// Returns `true` if the path is a folder.
    pub fn is_folder(&self, path: &Path) -> bool {
        match self.listed(path) {
            Ok(None) => path.is_dir(),
            Ok(Some(listed)) => matches!(listed, FileAt::Folder(_)),
            Err(_) => false,
        }
    }

    /// The paths of what is in a folder, sorted.
    ///
    /// # Errors
    /// Returns the error of a system call.
    pub fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        match self.listed(folder)? {
            None => {
                let entries = self.here(folder, |folder| fs::read_dir(folder))?;
                let mut paths: Vec<_> = entries.filter_map(|it| Some(it.ok()?.path())).collect();
                paths.sort();
                Ok(paths)
            }
            Some(FileAt::Folder(paths)) => Ok(paths.clone()),
            Some(FileAt::Listed(_)) => Err(io::ErrorKind::NotADirectory.into()),
            Some(FileAt::Error(error)) => Err(io::Error::from_raw_os_error(*error)),
        }
    }
}

impl IncludedFiles for Files {
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        Self::list(self, folder)
    }

    fn text(&self, path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        match self.open(path) {
            Ok((file, _)) => part(&file, most).map(Some),
            Err(error) if IS_NO_FILE.contains(&error.kind()) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the text of a part of at most `most` bytes; a larger one is not read.
pub fn part(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if file.metadata()?.len() > most {
        return Err(io::Error::other(TOO_LARGE));
    }
    file.take(most).read_to_end(&mut text)?;
    Ok(text)
}

/// Names the file, or the folder on the way to it, that is closed to the user of this process, and what helps.
fn denied(path: &Path) -> Option<io::Error> {
    let (place, metadata) = farthest(path)?;
    let text = format!(
        "permission denied: becket runs as {}, and {} belongs to {}, mode {:04o}; \
         let that user read it, or start becket as root with process.user",
        user_name(effective_user()),
        place.display(),
        user_name(metadata.uid()),
        metadata.mode() & 0o7777,
    );
    Some(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Follows a path as far as this process can: to its target, or to the folder that it cannot search.
fn farthest(path: &Path) -> Option<(PathBuf, Metadata)> {
    let mut path = path.to_owned();
    for _ in 0..MOST_STEPS {
        if let Ok(place) = fs::canonicalize(&path) {
            return Some((place.clone(), fs::metadata(place).ok()?));
        }
        let folder = path.parent()?;
        path = match fs::read_link(&path) {
            Ok(target) => folder.join(target),
            Err(_) => folder.to_owned(),
        };
    }
    None
}

/// Maximum bytes of a configuration file of another program.
pub const LARGEST: u64 = 16 * 1024 * 1024;
/// Maximum number of links and folders in a path.
const MOST_STEPS: usize = 100;
/// Errors of opening a folder, a socket or a dangling link.
const IS_NO_FILE: [io::ErrorKind; 3] = [
    io::ErrorKind::InvalidInput,
    io::ErrorKind::IsADirectory,
    io::ErrorKind::NotFound,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_followed_as_far_as_it_leads() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("gone/../away/file", &link).unwrap();
        let (place, metadata) = farthest(&link).unwrap();
        assert_eq!(place, fs::canonicalize(folder.path()).unwrap());
        assert!(metadata.is_dir());
    }

    #[test]
    fn a_listed_path_is_not_looked_for_here() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("site.pem");
        fs::write(&path, "text").unwrap();
        let listed = [
            (path.clone(), FileAt::Error(13)),
            (folder.path().to_owned(), FileAt::Folder(vec![path.clone()])),
        ];
        let files = Files::new(listed.into(), false);
        let error = files.open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(files.is_folder(folder.path()) && !files.is_folder(&path));
        assert_eq!(files.list(folder.path()).unwrap(), [path]);
    }
}
