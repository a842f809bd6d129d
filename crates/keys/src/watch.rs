//! Watches files for changes.
//!
//! A [`Watch`] reads the metadata of the files every second, on a thread that may block on a disk.
//! It does not read their contents. It keeps a hash of each path with a [`Stamp`] of its file, 16
//! bytes for each, so it knows which files have changed. A change has settled when a second check
//! returns the same result; with many files the second check covers only the changed ones. The
//! owner then acts: the control thread renews objects built from the files, a supervisor lists the
//! files again.
//!
//! This detects every kind of change on every file system: a rename over the file, a write in
//! place, a changed link on the path, a folder that appears or disappears.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, Metadata};
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use becket_sys::process::without_signals;
use serde::{Deserialize, Serialize};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use super::stamp::{Stamp, path_hash};

/// Files that have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Changed and new files, and folders whose list of files has changed.
    pub paths: BTreeSet<PathBuf>,
    /// Hashes of the paths of files that were removed from a watched folder.
    pub gone: BTreeSet<u64>,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.gone.is_empty()
    }

    pub fn len(&self) -> usize {
        self.paths.len() + self.gone.len()
    }

    pub fn add(&mut self, other: Self) {
        self.paths.extend(other.paths);
        self.gone.extend(other.gone);
    }

    /// Returns `true` if a path or a file in it has changed.
    pub fn touches(&self, place: &Path) -> bool {
        self.below(place).next().is_some()
    }

    /// Returns the changed paths that are equal to `place` or in it.
    pub fn below<'a>(&'a self, place: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        let all = self.paths.range(place.to_owned()..);
        all.take_while(move |path| path.starts_with(place))
    }
}

/// Watched files and folders, and the stamps of their files.
#[derive(Clone, Debug, Default)]
pub struct WatchedPlaces {
    paths: Arc<[PathBuf]>,
    /// Number of files in each folder.
    sizes: Arc<[usize]>,
    /// Hashes of paths with stamps, sorted.
    seen: Arc<Vec<(u64, Stamp)>>,
    took: Duration,
}

impl WatchedPlaces {
    /// Reads the metadata of the paths. May block on a disk.
    pub fn of(paths: Vec<PathBuf>) -> Self {
        let places = Self {
            paths: paths.into(),
            ..Self::default()
        };
        places.look(|_, _| {})
    }

    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns the stamp of a file when it was last looked at.
    pub fn stamp(&self, path: &Path) -> Option<Stamp> {
        self.stamp_of(path_hash(path))
    }

    /// Returns the watched paths, each with the number of files in it.
    pub fn sizes(&self) -> impl Iterator<Item = (&PathBuf, usize)> {
        self.paths.iter().zip(self.sizes.iter().copied())
    }

    fn stamp_of(&self, hash: u64) -> Option<Stamp> {
        let at = self.seen.binary_search_by_key(&hash, |(hash, _)| *hash);
        Some(self.seen.get(at.ok()?)?.1)
    }

    /// Reads the metadata again, and passes each file with its stamp to `note`.
    fn look(&self, mut note: impl FnMut(&Path, (u64, Stamp))) -> Self {
        let began = Instant::now();
        let mut seen = Vec::with_capacity(self.seen.len());
        let mut sizes = Vec::with_capacity(self.paths.len());
        let mut add = |path: &Path, file: io::Result<Metadata>| {
            let stamp = match file {
                Ok(file) => Stamp::of(path, &file),
                Err(error) => Stamp::of_error(path, &error),
            };
            let found = (path_hash(path), stamp);
            note(path, found);
            seen.push(found);
        };
        for path in &*self.paths {
            add(path, fs::metadata(path));
            let mut size = 0;
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                add(&entry.path(), metadata(&entry));
                size += 1;
            }
            sizes.push(size);
        }
        seen.sort_unstable_by_key(|(hash, _)| *hash);
        seen.dedup_by_key(|(hash, _)| *hash);
        seen.shrink_to_fit();
        Self {
            paths: Arc::clone(&self.paths),
            sizes: sizes.into(),
            seen: seen.into(),
            took: began.elapsed(),
        }
    }

    /// Looks at all files.
    fn again(&self) -> FoundChanges {
        let mut changes = Changes::default();
        let places = self.look(|path, (hash, stamp)| {
            if self.stamp_of(hash) != Some(stamp) {
                changes.paths.insert(path.to_owned());
            }
        });
        let known = self.seen.iter().map(|(hash, _)| *hash);
        changes
            .gone
            .extend(known.filter(|hash| places.stamp_of(*hash).is_none()));
        FoundChanges { places, changes }
    }

    /// Looks only at files that have changed before.
    fn again_at(&self, before: &Changes) -> FoundChanges {
        let mut changes = Changes::default();
        let mut places = self.clone();
        for path in &before.paths {
            let stamp = match fs::metadata(path) {
                Ok(file) => Stamp::of(path, &file),
                Err(error) => Stamp::of_error(path, &error),
            };
            let hash = path_hash(path);
            let at = self.seen.binary_search_by_key(&hash, |(hash, _)| *hash);
            let Ok(at) = at else { continue };
            if self.seen.get(at) != Some(&(hash, stamp)) {
                changes.paths.insert(path.clone());
                if let Some(seen) = Arc::make_mut(&mut places.seen).get_mut(at) {
                    seen.1 = stamp;
                }
            }
        }
        FoundChanges { places, changes }
    }
}

/// Returns the metadata of a file in a folder; of the target, if it is a link.
fn metadata(entry: &DirEntry) -> io::Result<Metadata> {
    if entry.file_type()?.is_symlink() {
        fs::metadata(entry.path())
    } else {
        entry.metadata()
    }
}

/// Result of a check, and the changes since the previous one.
#[derive(Debug)]
struct FoundChanges {
    places: WatchedPlaces,
    changes: Changes,
}

/// A watch for file changes. The default value watches nothing and waits forever.
#[derive(Debug, Default)]
pub struct Watch {
    places: WatchedPlaces,
    /// Unreported changes.
    changes: Changes,
    /// Time of the first unreported change.
    changed: Option<Instant>,
    looks_at: Option<Instant>,
    look: Option<JoinHandle<FoundChanges>>,
}

impl Watch {
    /// Replaces the watched places. Unreported changes stay pending.
    pub fn replace(&mut self, places: WatchedPlaces) {
        *self = Self {
            looks_at: Some(Instant::now() + pause(&places)),
            places,
            changes: mem::take(&mut self.changes),
            changed: self.changed,
            look: None,
        };
    }

    pub fn stop(&mut self) {
        *self = Self::default();
    }

    pub fn places(&self) -> &WatchedPlaces {
        &self.places
    }

    /// Records that files may have changed.
    pub fn note(&mut self) {
        let now = Instant::now();
        self.changed.get_or_insert(now);
        self.looks_at = Some(now + BETWEEN_LOOKS);
    }

    /// Waits until changes have settled, and returns them. They are empty if only
    /// [`Self::note`] reported a change. Cancel-safe.
    pub async fn settled(&mut self) -> Changes {
        loop {
            if let Some(look) = &mut self.look {
                let found = look.await;
                self.look = None;
                if let Some(changes) = self.has_settled(found.ok()) {
                    return changes;
                }
            } else if let Some(at) = self.looks_at {
                sleep_until(at).await;
                let places = self.places.clone();
                let is_quick = self.changes.is_empty() || places.took <= QUICK;
                let changes = self.changes.clone();
                // Blocks signals on the new thread, because a signal received by this thread would
                // be lost when a supervisor executes another program.
                let look = without_signals(|| {
                    spawn_blocking(move || {
                        if is_quick {
                            places.again()
                        } else {
                            places.again_at(&changes)
                        }
                    })
                });
                self.look = look.ok();
                self.looks_at = Some(Instant::now() + BETWEEN_LOOKS);
            } else {
                std::future::pending().await
            }
        }
    }

    fn has_settled(&mut self, found: Option<FoundChanges>) -> Option<Changes> {
        let now = Instant::now();
        // A failed check counts as unchanged.
        let is_same = found.as_ref().is_none_or(|found| found.changes.is_empty());
        if let Some(found) = found {
            self.places = found.places;
            self.changes.add(found.changes);
        }
        if !is_same {
            self.changed.get_or_insert(now);
        }
        let settles = |first: &mut Instant| is_same || now >= *first + LONGEST;
        let has_settled = self.changed.take_if(settles).is_some();
        let soon = self.changed.is_some();
        let pause = if soon {
            BETWEEN_LOOKS
        } else {
            pause(&self.places)
        };
        self.looks_at = Some(now + pause);
        has_settled.then(|| mem::take(&mut self.changes))
    }
}

/// Returns the time until the next check. The time is long enough that checks use at most 1 % of a
/// core, unless a disk is slow.
fn pause(places: &WatchedPlaces) -> Duration {
    (places.took * 100).clamp(BETWEEN_LOOKS, LONGEST_PAUSE)
}

/// Maximum time between checks, which applies if a disk stalls.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Minimum time between checks. Certificate renewal programs write their files within milliseconds.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Maximum time from the first change to its report, if files change continuously.
const LONGEST: Duration = Duration::from_secs(10);
/// Time of a check of all files up to which a second check covers all files too.
const QUICK: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Makes changes of many kinds, one after the other, and changes of unrelated files.
    #[test]
    fn each_way_to_change_a_file_is_detected_and_neighbours_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let write = |path: &str, text: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), text).unwrap();
        };
        write("archive/key1.pem", "1");
        write("archive/key2.pem", "2");
        write("certs/a.pem", "1");
        write("..one/tls.crt", "1");
        symlink("..one", at("..data")).unwrap();
        symlink("..data/tls.crt", at("tls.crt")).unwrap();
        symlink("b", at("circle")).unwrap();
        symlink("circle", at("b")).unwrap();
        fs::create_dir(at("live")).unwrap();
        symlink("../archive/key1.pem", at("live/key.pem")).unwrap();
        let watched = [
            "certs/a.pem",
            "live",
            "tls.crt",
            "some/where/a.pem",
            "circle",
        ];
        let places = std::cell::RefCell::new(WatchedPlaces::of(watched.map(at).into()));
        let matters = || {
            let look = places.borrow().again();
            *places.borrow_mut() = look.places;
            !look.changes.is_empty()
        };
        assert!(!matters());
        write("certs/b.pem", "1");
        write("archive/key2.pem", "3");
        write("..two/tls.crt", "2");
        assert!(!matters());
        let relink = |target: &str, link: &str| {
            symlink(target, at("new")).unwrap();
            fs::rename(at("new"), at(link)).unwrap();
        };
        let changes: [&dyn Fn(); 9] = [
            &|| write("certs/a.pem", "longer"),
            &|| fs::rename(at("certs/b.pem"), at("certs/a.pem")).unwrap(),
            &|| fs::remove_file(at("certs/a.pem")).unwrap(),
            &|| write("certs/a.pem", "3"),
            &|| write("archive/key1.pem", "longer"),
            &|| relink("../archive/key2.pem", "live/key.pem"),
            &|| relink("..two", "..data"),
            &|| write("some/where/a.pem", "1"),
            &|| fs::remove_dir_all(at("some")).unwrap(),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            change();
            assert!(matters(), "{number}");
        }
    }

    #[test]
    fn changed_new_and_removed_files_of_a_folder_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a", "b", "c"] {
            fs::write(at(name), name).unwrap();
        }
        let places = WatchedPlaces::of(vec![folder.path().to_owned()]);
        assert_eq!(
            places.sizes().map(|(_, size)| size).collect::<Vec<_>>(),
            [3]
        );
        fs::write(at("a"), "longer").unwrap();
        fs::remove_file(at("b")).unwrap();
        fs::write(at("d"), "new").unwrap();
        let look = places.again();
        let paths = [folder.path().to_owned(), at("a"), at("d")];
        assert_eq!(look.changes.paths, paths.into());
        assert_eq!(look.changes.gone, [path_hash(&at("b"))].into());
        assert!(look.changes.touches(folder.path()) && !look.changes.touches(&at("c")));
        let below = look.changes.below(folder.path()).count();
        assert_eq!(below, 3);
        let meta = fs::metadata(at("c")).unwrap();
        assert_eq!(
            look.places.stamp(&at("c")),
            Some(Stamp::of(&at("c"), &meta))
        );
        assert!(look.places.again_at(&look.changes).changes.is_empty());
        fs::write(at("d"), "again longer").unwrap();
        fs::write(at("c"), "longer").unwrap();
        let second = look.places.again_at(&look.changes);
        assert_eq!(second.changes.paths, [at("d")].into());
        let third = second.places.again();
        assert_eq!(third.changes.paths, [at("c")].into());
    }

    #[test]
    fn a_change_settles_after_two_equal_checks_or_ten_seconds() {
        let found = |paths: &[&str]| {
            let paths = paths.iter().map(PathBuf::from).collect();
            Some(FoundChanges {
                places: WatchedPlaces::default(),
                changes: Changes {
                    paths,
                    ..Changes::default()
                },
            })
        };
        let mut watch = Watch::default();
        let mut settled = |paths: &[&str]| {
            let changes = watch.has_settled(found(paths))?;
            Some(changes.paths.len())
        };
        assert_eq!(settled(&[]), None);
        assert_eq!(settled(&["a"]), None);
        assert_eq!(settled(&["b"]), None);
        assert_eq!(settled(&[]), Some(2));
        assert_eq!(settled(&[]), None);
        watch.note();
        assert_eq!(watch.has_settled(found(&[])), Some(Changes::default()));
        assert_eq!(watch.has_settled(found(&["a"])), None);
        watch.changed = watch.changed.map(|first| first - LONGEST);
        assert!(watch.has_settled(found(&["a"])).is_some());
    }
}
