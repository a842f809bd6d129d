//! The folders on the way to files: a change there can lead a path to something else.
//!
//! A path is followed part by part. Each folder on the way is watched for the name of the next part before that name is read, so no later change is
//! missed. Links are read and followed like the rest of the path, so the links and their targets are watched: certbot replaces the links in `live/`,
//! Kubernetes the link `..data`. If a folder does not exist, the one above it is watched for its name.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use becket_sys::folder_watch::{FolderChange, FolderWatch, WatchedFolder};
use becket_sys::root_only::names_to_walk;

/// Watched folders, and the names in them that matter.
#[derive(Debug)]
pub struct WatchedPlaces {
    /// `None` if the system has no inotify for this process.
    watch: Option<FolderWatch>,
    /// `None` for all names.
    names: BTreeMap<WatchedFolder, Option<BTreeSet<OsString>>>,
    fault: Option<String>,
}

impl WatchedPlaces {
    /// Watches the ways to these files and folders. Blocks.
    pub fn of(paths: &[PathBuf]) -> Self {
        let watch = FolderWatch::new();
        let mut places = Self {
            fault: watch.as_ref().err().map(ToString::to_string),
            watch: watch.ok(),
            names: BTreeMap::new(),
        };
        for path in paths {
            let Some(folder) = places.follow(path) else {
                continue;
            };
            if let Err(error) = places.add(&folder, None) {
                places.note_fault(&folder, &error);
            }
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                    places.follow(&entry.path());
                }
            }
        }
        places
    }

    /// Returns why a folder is not watched, if there is one.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Returns the number of watched folders.
    pub fn folders(&self) -> usize {
        self.names.len()
    }

    /// Reads the changes since the last call, some thousand at most, and returns whether one of them matters.
    ///
    /// # Errors
    /// The error of read(2).
    pub fn changed(&self) -> io::Result<bool> {
        let Some(watch) = &self.watch else {
            return Ok(false);
        };
        let mut matters = false;
        for _ in 0..READS {
            let more = watch.read(|change| {
                matters |= match change {
                    FolderChange::Other => true,
                    FolderChange::Entry(folder, name) => {
                        self.names.get(&folder).is_some_and(|names| {
                            names.as_ref().is_none_or(|names| names.contains(name))
                        })
                    }
                };
            })?;
            if !more {
                break;
            }
        }
        Ok(matters)
    }

    /// Follows a path. Returns its target if that is a folder.
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
            let added = self.add(&at, Some(&name));
            let kind = fs::symlink_metadata(&next).ok()?.file_type();
            if let Err(error) = added {
                // A folder on the way may be closed to this user; it seldom changes.
                if !kind.is_dir() || error.kind() != io::ErrorKind::PermissionDenied {
                    self.note_fault(&at, &error);
                }
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
                return None;
            }
        }
        None
    }

    /// Watches a folder for a name, or for all.
    fn add(&mut self, folder: &Path, name: Option<&OsStr>) -> io::Result<()> {
        let Some(watch) = &self.watch else {
            return Ok(());
        };
        let watched = watch.add(folder)?;
        let names = self.names.entry(watched).or_insert(Some(BTreeSet::new()));
        match (&mut *names, name) {
            (Some(names), Some(name)) => {
                names.insert(name.to_owned());
            }
            (_, None) => *names = None,
            (None, _) => {}
        }
        Ok(())
    }

    fn note_fault(&mut self, folder: &Path, error: &io::Error) {
        self.fault
            .get_or_insert_with(|| format!("{}: {error}", folder.display()));
    }
}

/// Maximum steps of a path, links included; the kernel follows 40 links.
const LONGEST: usize = 4096;
/// Maximum reads, each of some hundred changes. The kernel keeps 16384, and reports when there were more.
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

        fn places(&self, paths: &[&str]) -> WatchedPlaces {
            let paths: Vec<PathBuf> = paths.iter().map(|path| self.at(path)).collect();
            let places = WatchedPlaces::of(&paths);
            assert_eq!(places.fault(), None);
            assert!(!matters(&places));
            places
        }
    }

    fn matters(places: &WatchedPlaces) -> bool {
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
