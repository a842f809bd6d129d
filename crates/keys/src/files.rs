//! Opens the files of a configuration, by path or through a supervisor with more privileges.
//!
//! All files of a start, a reload or a check for changed certificates are read through [`Files`].
//! This process opens a path with its own privileges if the supervisor did not list it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use becket_config::error::Problem;
pub use becket_config::error::reason;
use becket_config::parts::{IncludedFiles, TOO_LARGE};
use becket_sys::identity::user_name;
use becket_sys::privileges::effective_user;
use becket_sys::regular;

use super::stamp::Stamp;

#[derive(Clone, Default)]
pub struct Files {
    listed: Arc<BTreeMap<PathBuf, FileAt>>,
    /// Callback for each file that this process opens itself.
    reporter: Option<Arc<dyn Fn() + Send + Sync>>,
    opener: Option<Arc<OpenListed>>,
    /// Log files that were opened early, because the change of user makes their paths inaccessible.
    logs: Arc<BTreeMap<PathBuf, File>>,
    opened: Arc<Mutex<OpenedPaths>>,
    reach: Option<Arc<Reach>>,
}

/// Paths that this process has tried to open. Has only the first of regular files in one folder that
/// are opened one after the other, because a folder may have a hundred thousand.
#[derive(Debug, Default)]
struct OpenedPaths {
    paths: BTreeSet<PathBuf>,
    /// Folder of the last regular file.
    folder: PathBuf,
}

/// Paths that the sandbox permits, including everything below them. Symbolic links are not
/// followed.
#[derive(Debug, Default)]
pub struct Reach {
    pub read: BTreeSet<PathBuf>,
    /// Paths at which files may be created and written.
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

/// Opens a file by its index in the supervisor's list. Returns `None` if this process must open the
/// path itself.
pub type OpenListed = dyn Fn(u32) -> io::Result<Option<File>> + Send + Sync;

impl fmt::Debug for Files {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Files").finish_non_exhaustive()
    }
}

/// State of a path when the supervisor listed it.
#[derive(Clone, Debug)]
pub enum FileAt {
    /// A regular file, with its index in the supervisor's list. The stamp is `None` if it is not
    /// known.
    Listed(u32, Option<Stamp>),
    Folder(ListedFolder),
    /// Error number (errno) from opening the path.
    Error(i32),
    /// A path that this process must open itself, because users other than root can change it.
    Own,
}

#[derive(Clone, Debug, Default)]
pub struct ListedFolder {
    /// Names and states, sorted by name. A folder in this folder has no entries.
    pub entries: Vec<(Box<str>, FileAt)>,
    /// `true` if only changed files are listed.
    pub is_part: bool,
}

impl ListedFolder {
    fn get(&self, name: &OsStr) -> Option<&FileAt> {
        let name = name.to_str()?;
        let at = self
            .entries
            .binary_search_by(|(other, _)| (**other).cmp(name));
        Some(&self.entries.get(at.ok()?)?.1)
    }
}

impl Files {
    /// Creates a source from the supervisor's list.
    pub fn new(listed: BTreeMap<PathBuf, FileAt>) -> Self {
        Self {
            listed: Arc::new(listed),
            ..Self::default()
        }
    }

    pub fn reported_by(self, report: Arc<dyn Fn() + Send + Sync>) -> Self {
        let reporter = Some(report);
        Self { reporter, ..self }
    }

    pub fn opened_by(self, open: Arc<OpenListed>) -> Self {
        let opener = Some(open);
        Self { opener, ..self }
    }

    pub fn with_logs(self, logs: BTreeMap<PathBuf, File>) -> Self {
        let logs = Arc::new(logs);
        Self { logs, ..self }
    }

    /// Returns a log file that was opened earlier. Returns `None` if the file must be opened by
    /// path.
    pub fn log(&self, path: &Path) -> Option<&File> {
        self.logs.get(path)
    }

    pub fn within(self, reach: Option<&Arc<Reach>>) -> Self {
        let reach = reach.cloned();
        Self { reach, ..self }
    }

    /// Returns the paths that this process has tried to open so far; of regular files in one
    /// folder, perhaps only some.
    pub fn opened(&self) -> BTreeSet<PathBuf> {
        self.opened_paths().paths.clone()
    }

    fn opened_paths(&self) -> MutexGuard<'_, OpenedPaths> {
        // The set stays valid if another lock holder panics.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the sandbox allows a path. The path need not exist.
    ///
    /// # Errors
    /// Fails if the sandbox forbids the path.
    pub fn check_reach(&self, path: &Path) -> io::Result<()> {
        match &self.reach {
            Some(reach) if !reach.has(path) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "outside of process.sandbox, which allows only the folders known at the start; restart or upgrade becket",
            )),
            _ => Ok(()),
        }
    }

    /// Opens a path with the privileges of this process. A permission error names the inaccessible
    /// file or folder.
    fn here<T>(&self, path: &Path, open: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        self.opened_paths().paths.insert(path.to_owned());
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

    /// Opens a regular file with the privileges of this process.
    fn open_here(&self, path: &Path) -> io::Result<(File, Metadata)> {
        let Ok(opened) = regular::open_unlinked(path) else {
            return self.here(path, regular::open);
        };
        let folder = path.parent().unwrap_or(path);
        let mut paths = self.opened_paths();
        if paths.folder.as_os_str() == folder.as_os_str() {
            if let Some(reporter) = &self.reporter {
                reporter();
            }
            return Ok(opened);
        }
        paths.folder = folder.to_owned();
        drop(paths);
        self.here(path, |_| Ok(opened))
    }

    /// Returns the listed files that this process has no permission to open.
    pub fn closed(&self) -> Vec<PathBuf> {
        let is_closed = |path: &PathBuf| {
            regular::open(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        };
        let mut paths = Vec::new();
        for (path, at) in &*self.listed {
            paths.push(path.clone());
            if let FileAt::Folder(folder) = at {
                paths.extend(folder.entries.iter().map(|(name, _)| path.join(&**name)));
            }
        }
        paths.retain(is_closed);
        paths
    }

    /// Returns `true` if this process must open the path itself, because the supervisor did not
    /// list it.
    pub fn is_own(&self, path: &Path) -> bool {
        matches!(self.at(path), FileAt::Own)
    }

    /// Returns `true` if the supervisor listed only the changed files of a folder.
    pub fn is_part(&self, folder: &Path) -> bool {
        matches!(self.at(folder), FileAt::Folder(folder) if folder.is_part)
    }

    fn at(&self, path: &Path) -> &FileAt {
        let inside = || match self.listed.get(path.parent()?)? {
            FileAt::Folder(folder) => folder.get(path.file_name()?),
            _ => None,
        };
        self.listed
            .get(path)
            .or_else(inside)
            .unwrap_or(&FileAt::Own)
    }

    /// Returns `true` if there is no file at this path.
    pub fn is_missing(&self, path: &Path) -> bool {
        match self.at(path) {
            FileAt::Own => fs::symlink_metadata(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound),
            FileAt::Error(error) => *error == ENOENT,
            FileAt::Listed(..) | FileAt::Folder(_) => false,
        }
    }

    /// Returns the stamp of a file. Returns `None` if it cannot be known without opening the file.
    pub fn stamp(&self, path: &Path) -> Option<Stamp> {
        match self.at(path) {
            FileAt::Own => Some(Stamp::of(path, &fs::metadata(path).ok()?)),
            FileAt::Listed(_, stamp) => *stamp,
            FileAt::Folder(_) | FileAt::Error(_) => None,
        }
    }

    /// Opens a regular file for reading from its start, without blocking on a FIFO. Two open copies
    /// of one path may share their file offset.
    ///
    /// # Errors
    /// Returns the error of a system call; `InvalidInput` if the path is not a regular file.
    pub fn open(&self, path: &Path) -> io::Result<(File, Metadata)> {
        match self.at(path) {
            FileAt::Own => self.open_here(path),
            FileAt::Listed(number, _) => {
                let opener = self.opener.as_ref().ok_or(io::ErrorKind::NotFound)?;
                match opener(*number)? {
                    Some(file) => {
                        let metadata = file.metadata()?;
                        Ok((file, metadata))
                    }
                    None => self.open_here(path),
                }
            }
            FileAt::Folder(_) => Err(io::ErrorKind::IsADirectory.into()),
            FileAt::Error(error) => Err(io::Error::from_raw_os_error(*error)),
        }
    }

    /// Returns the contents of a file. The path may be a pipe, unless the supervisor opens it.
    ///
    /// # Errors
    /// Returns the error of a system call.
    pub fn bytes(&self, path: &Path) -> io::Result<Vec<u8>> {
        if self.is_own(path) {
            return self.here(path, |path| fs::read(path));
        }
        let mut bytes = Vec::new();
        self.open(path)?.0.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub fn is_folder(&self, path: &Path) -> bool {
        match self.at(path) {
            FileAt::Own => path.is_dir(),
            listed => matches!(listed, FileAt::Folder(_)),
        }
    }

    /// Returns the sorted paths in a folder that are not folders.
    ///
    /// # Errors
    /// Returns the error of a system call.
    pub fn list_files(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut paths = match self.at(folder) {
            FileAt::Own => {
                let entries = self.here(folder, |folder| fs::read_dir(folder))?.flatten();
                let files = entries.filter_map(|entry| match entry.file_type() {
                    Ok(kind) if kind.is_dir() => None,
                    Ok(kind) if kind.is_file() => Some(entry.path()),
                    _ => Some(entry.path()).filter(|path| !path.is_dir()),
                });
                files.collect()
            }
            _ => {
                let mut paths = self.list(folder)?;
                paths.retain(|path| !self.is_folder(path));
                paths
            }
        };
        // Within a folder this is the order of paths, and faster.
        paths.sort_unstable_by(|a, b| a.as_os_str().cmp(b.as_os_str()));
        Ok(paths)
    }

    /// Returns the sorted paths in a folder.
    ///
    /// # Errors
    /// Returns the error of a system call.
    pub fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        match self.at(folder) {
            FileAt::Own => {
                let entries = self.here(folder, |folder| fs::read_dir(folder))?;
                let mut paths: Vec<_> = entries.filter_map(|it| Some(it.ok()?.path())).collect();
                paths.sort();
                Ok(paths)
            }
            FileAt::Folder(listed) => {
                let names = listed.entries.iter();
                Ok(names.map(|(name, _)| folder.join(&**name)).collect())
            }
            FileAt::Listed(..) => Err(io::ErrorKind::NotADirectory.into()),
            FileAt::Error(error) => Err(io::Error::from_raw_os_error(*error)),
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

/// Reads an included configuration file of at most `most` bytes. Fails if the file is larger.
pub fn part(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if file.metadata()?.len() > most {
        return Err(io::Error::other(TOO_LARGE));
    }
    file.take(most).read_to_end(&mut text)?;
    Ok(text)
}

/// Removes `.` and `..` from a path. Keeps `..` if the shorter path would lead to another file, for
/// example after a symbolic link.
pub fn clean(path: &Path) -> PathBuf {
    let plain: PathBuf = path.components().collect();
    let mut clean = PathBuf::new();
    for part in plain.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if clean.file_name().is_some() => {
                clean.pop();
            }
            part => clean.push(part),
        }
    }
    let leads_there = || fs::canonicalize(&clean).ok() == fs::canonicalize(&plain).ok();
    if clean == plain || leads_there() {
        clean
    } else {
        plain
    }
}

/// Returns a problem with a file, for the configuration key `path`.
pub fn shown(path: &str, file: &Path, fault: impl Into<String>) -> Problem {
    Problem::new(path, fault).text(&clean(file).to_string_lossy())
}

/// Returns a permission error that names the inaccessible file or folder, and a remedy.
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

/// Resolves a path. Returns the target with its metadata; if a folder on the path is inaccessible,
/// returns that folder.
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

/// Number of files up to which a change in a folder is looked for in all its files.
pub const SMALL_FOLDER: usize = 1000;
/// Maximum size of another program's configuration file in bytes.
pub const LARGEST: u64 = 16 * 1024 * 1024;
const ENOENT: i32 = 2;
/// Maximum number of symbolic links and folders that are followed on a path.
const MOST_STEPS: usize = 100;
/// Error kinds of open(2) for a folder, a socket or a dangling link.
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
    fn a_clean_path_has_no_dots_unless_they_follow_a_link() {
        for (path, expected) in [
            ("./a/../becket.toml", "becket.toml"),
            ("/etc/./becket/../keys/a.pem", "/etc/keys/a.pem"),
            ("../../a/./b/../c.pem", "../../a/c.pem"),
        ] {
            assert_eq!(clean(Path::new(path)), Path::new(expected));
        }
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/proc/self", &link).unwrap();
        let through = link.join("../version");
        assert_eq!(clean(&through), through);
    }

    #[test]
    fn a_listed_path_is_not_looked_for_here() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("site.pem");
        fs::write(&path, "text").unwrap();
        let entries = [("own.pem", FileAt::Own), ("site.pem", FileAt::Error(13))];
        let listed = ListedFolder {
            entries: entries.map(|(name, at)| (name.into(), at)).into(),
            is_part: false,
        };
        let listed = [(folder.path().to_owned(), FileAt::Folder(listed))];
        let files = Files::new(listed.into());
        let error = files.open(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(files.is_folder(folder.path()) && !files.is_folder(&path));
        assert!(files.stamp(&path).is_none());
        let own = folder.path().join("own.pem");
        fs::write(&own, "text").unwrap();
        assert!(files.is_own(&own) && files.stamp(&own).is_some());
        assert_eq!(files.list(folder.path()).unwrap(), [own, path]);
    }
}
