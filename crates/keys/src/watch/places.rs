//! The folders on the way to files: where a change can lead a path to something else.
//!
//! A path is followed part by part. Each folder on the way is watched for the name by which the way goes on, then the name is
//! looked at: whatever changes after that is told. Links are read and followed like the rest of the path, so what they lead to
//! is watched, and so are they: certbot replaces the links in `live/`, Kubernetes the link `..data`. A folder that is not
//! there is waited for in the one above it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use becket_sys::folder_watch::{FolderChange, FolderWatch, WatchedFolder};
use becket_sys::root_only::names_to_walk;

/// Folders that are watched, and for what.
#[derive(Debug)]
pub struct Places {
    watch: FolderWatch,
    names: BTreeMap<WatchedFolder, Names>,
    known: BTreeMap<PathBuf, WatchedFolder>,
    /// Why a folder is not watched, where one is not.
    error: Option<(PathBuf, io::Error)>,
}

/// Entries of a folder that matter.
#[derive(Debug, Default)]
struct Names {
    all: bool,
    listed: BTreeSet<OsString>,
}

impl Names {
    fn matter(&self, name: &OsStr) -> bool {
        self.all || self.listed.contains(name)
    }
}

/// What is in a folder that matters.
#[derive(Clone, Copy)]
enum Entry<'a> {
    /// The next part of a path.
    OnTheWay(&'a OsStr),
    /// A file.
    File(&'a OsStr),
    /// Everything.
    Any,
}

impl Places {
    /// Watches the ways to these files and folders. Blocks.
    ///
    /// # Errors
    /// When there is no inotify.
    pub fn of(paths: &[PathBuf]) -> io::Result<Self> {
        let mut places = Self {
            watch: FolderWatch::new()?,
            names: BTreeMap::new(),
            known: BTreeMap::new(),
            error: None,
        };
        for path in paths {
            let Some(folder) = places.follow(path) else {
                continue;
            };
            places.add_or_lack(&folder, Entry::Any);
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                    places.follow(&entry.path());
                }
            }
        }
        Ok(places)
    }

    /// A folder that could not be watched, and why.
    pub fn error(&self) -> Option<&(PathBuf, io::Error)> {
        self.error.as_ref()
    }

    /// Returns the number of watched folders.
    pub fn folders(&self) -> usize {
        self.names.len()
    }

    /// Reads what has changed since the last time, some thousand changes at most. Whether any of it matters.
    ///
    /// # Errors
    /// What the system says.
    pub fn changed(&self) -> io::Result<bool> {
        let mut matters = false;
        for _ in 0..READS {
            let more = self.watch.read(|change| {
                matters |= match change {
                    FolderChange::Other => true,
                    FolderChange::Entry(folder, name) => {
                        let names = self.names.get(&folder);
                        names.is_some_and(|names| names.matter(name))
                    }
                };
            })?;
            if !more {
                break;
            }
        }
        Ok(matters)
    }

    /// Follows a path. Returns the folder that it leads to, if it is one.
    fn follow(&mut self, path: &Path) -> Option<PathBuf> {
        let mut at = PathBuf::from("/");
        let mut ahead = names_to_walk(path);
        for _ in 0..LONGEST {
            let Some(name) = ahead.pop() else {
                return Some(at);
            };
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let added = self.add(&at, Entry::OnTheWay(&name));
            let kind = fs::symlink_metadata(&next).ok()?.file_type();
            // Folders above may be closed to us, and seldom change.
            let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
            if let Err(error) = added.or_else(|error| {
                if kind.is_dir() && is_closed(&error) {
                    Ok(())
                } else {
                    Err(error)
                }
            }) {
                self.error.get_or_insert((at.clone(), error));
            }
            if kind.is_symlink() {
                let target = fs::read_link(&next).ok()?;
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                ahead.extend(names_to_walk(&target));
            } else if kind.is_dir() {
                at = next;
            } else {
                self.add_or_lack(&at, Entry::File(&name));
                return None;
            }
        }
        None
    }

    fn add_or_lack(&mut self, folder: &Path, entry: Entry<'_>) {
        if let Err(error) = self.add(folder, entry) {
            self.error.get_or_insert((folder.to_owned(), error));
        }
    }

    /// Watches a folder for an entry.
    fn add(&mut self, folder: &Path, entry: Entry<'_>) -> io::Result<()> {
        if let (Some(known), Entry::OnTheWay(name)) = (self.known.get(folder), entry)
            && self.names.get(known).is_some_and(|it| it.matter(name))
        {
            return Ok(());
        }
        let contents = !matches!(entry, Entry::OnTheWay(_));
        let watched = self.watch.add(folder, contents)?;
        self.known.insert(folder.to_owned(), watched);
        let names = self.names.entry(watched).or_default();
        match entry {
            Entry::OnTheWay(name) | Entry::File(name) => {
                names.listed.insert(name.to_owned());
            }
            Entry::Any => names.all = true,
        }
        Ok(())
    }
}

/// Steps, of links as well: the kernel follows 40 links.
const LONGEST: usize = 4096;
/// Of some hundred changes each. What is left is read the next time; the kernel keeps 16384, and says when there were more.
const READS: usize = 16;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn write(&self, path: &str, text: &str) {
            fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
            fs::write(self.at(path), text).unwrap();
        }

        fn places(&self, paths: &[&str]) -> Places {
            let paths: Vec<PathBuf> = paths.iter().map(|path| self.at(path)).collect();
            let places = Places::of(&paths).unwrap();
            assert!(places.error().is_none());
            assert!(!matters(&places));
            places
        }
    }

    fn matters(places: &Places) -> bool {
        places.changed().unwrap()
    }

    #[test]
    fn a_file_is_seen_to_be_written_renamed_over_deleted_and_made_again_and_its_neighbours_are_not()
    {
        let tree = Tree::new();
        tree.write("certs/a.pem", "1");
        let places = tree.places(&["certs/a.pem"]);
        tree.write("certs/b.pem", "1");
        tree.write("c", "1");
        assert!(!matters(&places));
        tree.write("certs/a.pem", "2");
        assert!(matters(&places));
        fs::rename(tree.at("certs/b.pem"), tree.at("certs/a.pem")).unwrap();
        assert!(matters(&places));
        fs::remove_file(tree.at("certs/a.pem")).unwrap();
        assert!(matters(&places));
        tree.write("certs/a.pem", "3");
        assert!(matters(&places));
    }

    #[test]
    fn links_are_watched_where_they_are_and_where_they_lead() {
        let tree = Tree::new();
        tree.write("archive/key1.pem", "1");
        tree.write("archive/key2.pem", "2");
        fs::create_dir(tree.at("live")).unwrap();
        symlink("../archive/key1.pem", tree.at("live/key.pem")).unwrap();
        for path in ["live/key.pem", "live"] {
            let places = tree.places(&[path]);
            tree.write("archive/key1.pem", "3");
            assert!(matters(&places), "{path}");
            tree.write("archive/key2.pem", "4");
            assert!(!matters(&places), "{path}");
            symlink("../archive/key2.pem", tree.at("live/new")).unwrap();
            matters(&places);
            fs::rename(tree.at("live/new"), tree.at("live/key.pem")).unwrap();
            assert!(matters(&places), "{path}");
            symlink("../archive/key1.pem", tree.at("live/new")).unwrap();
            fs::rename(tree.at("live/new"), tree.at("live/key.pem")).unwrap();
        }
    }

    #[test]
    fn a_link_to_a_folder_that_is_flipped_is_seen() {
        let tree = Tree::new();
        tree.write("..one/tls.crt", "1");
        tree.write("..two/tls.crt", "2");
        symlink("..one", tree.at("..data")).unwrap();
        symlink("..data/tls.crt", tree.at("tls.crt")).unwrap();
        let places = tree.places(&["tls.crt"]);
        tree.write("..two/tls.crt", "3");
        assert!(!matters(&places));
        symlink("..two", tree.at("..tmp")).unwrap();
        fs::rename(tree.at("..tmp"), tree.at("..data")).unwrap();
        assert!(matters(&places));
    }

    #[test]
    fn what_is_not_there_is_waited_for_where_it_will_be() {
        let tree = Tree::new();
        let places = tree.places(&["some/where/a.pem"]);
        fs::create_dir(tree.at("any")).unwrap();
        assert!(!matters(&places));
        fs::create_dir(tree.at("some")).unwrap();
        assert!(matters(&places));
        let places = tree.places(&["some/where/a.pem"]);
        fs::create_dir(tree.at("some/where")).unwrap();
        assert!(matters(&places));
        let places = tree.places(&["some/where/a.pem"]);
        fs::remove_dir_all(tree.at("some")).unwrap();
        assert!(matters(&places));
    }

    #[test]
    fn links_in_a_circle_end() {
        let tree = Tree::new();
        symlink("b", tree.at("a")).unwrap();
        symlink("a", tree.at("b")).unwrap();
        let places = tree.places(&["a/x", "a"]);
        fs::remove_file(tree.at("b")).unwrap();
        assert!(matters(&places));
    }
}
