//! Folders in which something changes: inotify.
//!
//! A watch is on a folder, by its inode: it sees that an entry is written, replaced, renamed, made or deleted, and that the folder
//! itself goes. It sees nothing that another host does to a network file system.
//!
//! Source: inotify(7).

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use rustix::io::Errno;

/// Watches folders.
#[derive(Debug)]
pub struct FolderWatch(OwnedFd);

/// A folder that is watched, by whichever path: one folder has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchedFolder(i32);

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderChange<'a> {
    /// An entry of a folder.
    Entry(WatchedFolder, &'a OsStr),
    /// A folder itself is gone, or more has changed than the kernel kept.
    Other,
}

impl FolderWatch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// What inotify_init1(2) returns: there may be 128 for each user.
    pub fn new() -> io::Result<Self> {
        Ok(Self(init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?))
    }

    /// Watches a folder from now on: which entries it has, and their contents.
    ///
    /// # Errors
    /// What inotify_add_watch(2) returns: the folder must be readable, and there is a limit for each user.
    pub fn add(&self, folder: &Path) -> io::Result<WatchedFolder> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ATTRIB
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ONLYDIR;
        Ok(WatchedFolder(add_watch(&self.0, folder, flags)?))
    }

    /// Tells what has changed, some hundred changes at most. Whether there may be more.
    ///
    /// # Errors
    /// What read(2) returns.
    pub fn read(&self, mut tell: impl FnMut(FolderChange<'_>)) -> io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(&self.0, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            tell(match event.file_name() {
                Some(name) => {
                    let name = OsStr::from_bytes(name.to_bytes());
                    FolderChange::Entry(WatchedFolder(event.wd()), name)
                }
                // A change of a folder's own attributes is none of what is in it.
                None if event.events() == ReadFlags::ATTRIB | ReadFlags::ISDIR => continue,
                None => FolderChange::Other,
            });
            if reader.is_buffer_empty() {
                return Ok(true);
            }
        }
    }
}

/// An event has 16 bytes and a name.
const BUFFER: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn changes(watch: &FolderWatch) -> Vec<String> {
        let mut all = Vec::new();
        while watch
            .read(|change| {
                all.push(match change {
                    FolderChange::Entry(_, name) => name.to_str().unwrap().to_owned(),
                    FolderChange::Other => "other".to_owned(),
                });
            })
            .unwrap()
        {}
        all.dedup();
        all
    }

    #[test]
    fn what_happens_in_a_folder_is_told_by_name_and_that_it_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let watch = FolderWatch::new().unwrap();
        let outer = watch.add(place.path()).unwrap();
        let inner = watch.add(&folder).unwrap();
        assert_ne!(outer, inner);
        assert_eq!(watch.add(&folder).unwrap(), inner);
        assert_eq!(changes(&watch), [""; 0]);
        fs::write(folder.join("a"), "1").unwrap();
        fs::rename(folder.join("a"), folder.join("b")).unwrap();
        assert_eq!(changes(&watch), ["a", "b"]);
        fs::write(place.path().join("c"), "1").unwrap();
        assert_eq!(changes(&watch), ["c"]);
        fs::remove_dir_all(&folder).unwrap();
        let gone = changes(&watch);
        assert!(gone.contains(&"other".to_owned()), "{gone:?}");
        assert!(gone.contains(&"folder".to_owned()), "{gone:?}");
        assert!(watch.add(&folder).is_err());
        assert!(watch.add(&place.path().join("c")).is_err());
    }
}
