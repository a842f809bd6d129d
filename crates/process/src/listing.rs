//! Files that the supervisor lists for a process, and opens by their indices.
//!
//! A listing has paths that only root can change. The process requests a file by its index, and never
//! by a path. A check for changes lists only changed files, with the files that are loaded together
//! with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use becket_keys::files::SMALL_FOLDER;
use becket_keys::watch::{Changes, WatchedPlaces};
use becket_sys::root_only::{self, FolderEntry, RootFolder, RootOnly};

use crate::protocol::{FolderListing, ListedEntry, ListedPath, OpenResult, Resources};

/// Changed files of the running configuration.
#[derive(Debug, Default)]
pub(super) struct PendingRenewal {
    /// Changes that were not sent to the serving process yet.
    changes: Changes,
    /// `true` if any file may have changed since the serving process read it.
    is_unknown: bool,
    /// Changes that were sent. Kept until no changed file is rejected, because the next check reads
    /// rejected files again.
    sent: Changes,
    /// `true` if all files were sent.
    has_sent_all: bool,
}

impl PendingRenewal {
    /// Returns the state in which any file may have changed.
    pub(super) fn unknown() -> Self {
        Self {
            is_unknown: true,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, changes: Changes) {
        self.changes.add(changes);
        if self.changes.len() > MOST_CHANGES {
            *self = Self::unknown();
        }
    }

    /// Lists the changed files of the watched groups for the serving process.
    pub(super) fn listing(&mut self, watched: (&WatchedPlaces, &[Vec<PathBuf>])) -> Resources {
        self.sent.add(std::mem::take(&mut self.changes));
        self.has_sent_all |= std::mem::take(&mut self.is_unknown);
        if self.has_sent_all || self.sent.len() > MOST_CHANGES {
            (self.sent, self.has_sent_all) = (Changes::default(), true);
        }
        let mut listing = Resources::default();
        if self.has_sent_all {
            listing.list_all(watched.0);
        } else {
            listing.list_changes(&self.sent, watched);
        }
        listing
    }

    /// Forgets the changes that were sent, because the process has rejected none.
    pub(super) fn finish(&mut self) {
        (self.sent, self.has_sent_all) = (Changes::default(), false);
    }
}

impl Resources {
    /// Lists all watched files as changed.
    fn list_all(&mut self, places: &WatchedPlaces) {
        for (path, _) in places.sizes() {
            self.list(path, places);
        }
        let paths = self.files.iter().map(|(path, _)| path.clone());
        self.changes.paths = paths.collect();
    }

    /// Lists the changed files, and the files that are loaded together with them or with files that
    /// the process watches. Lists only the changed files of a folder with many.
    fn list_changes(
        &mut self,
        changes: &Changes,
        (places, groups): (&WatchedPlaces, &[Vec<PathBuf>]),
    ) {
        let sizes: BTreeMap<_, _> = places.sizes().collect();
        let is_needed = |group: &&Vec<PathBuf>| {
            let watched = group.iter().filter(|path| sizes.contains_key(path));
            let is_mixed = (1..group.len()).contains(&watched.count());
            is_mixed || group.iter().any(|path| changes.touches(path))
        };
        let needed: BTreeSet<_> = groups.iter().filter(is_needed).flatten().collect();
        for path in needed {
            if sizes.get(path).is_none_or(|size| *size <= SMALL_FOLDER) {
                self.list(path, places);
                continue;
            }
            let changed = changes.below(path).filter(|it| it.parent() == Some(path));
            let changed = changed.filter_map(|path| {
                let name = path.file_name()?.to_str()?;
                Some((name.into(), entry(path, places)?))
            });
            let folder = FolderListing {
                entries: changed.collect(),
                is_part: true,
            };
            self.add(path.clone(), ListedPath::Folder(folder));
        }
        *self.changes = changes.clone();
        // Paths that are not UTF-8 are not listed.
        self.changes.paths.retain(|path| path.to_str().is_some());
    }

    pub(super) fn list(&mut self, path: &Path, places: &WatchedPlaces) {
        let stamp = |path: &Path| places.stamp(path).map(|stamp| stamp.0);
        match root_only::open(path) {
            Ok(None) => {}
            Ok(Some(RootOnly::File(_))) => {
                self.add(path.to_owned(), ListedPath::File(stamp(path)));
            }
            Ok(Some(RootOnly::Folder(entries))) => {
                let entries = names_of(entries).into_iter().filter_map(|(name, is_file)| {
                    let path = path.join(&*name);
                    // The type is enough, because only root can change the folder.
                    let listed = if is_file {
                        ListedEntry::File(stamp(&path))
                    } else {
                        entry(&path, places)?
                    };
                    Some((name, listed))
                });
                let folder = FolderListing {
                    entries: entries.collect(),
                    is_part: false,
                };
                self.add(path.to_owned(), ListedPath::Folder(folder));
            }
            Err(error) => {
                if let Some(error) = error.raw_os_error() {
                    self.add(path.to_owned(), ListedPath::Error(error));
                }
            }
        }
    }

    pub(super) fn add(&mut self, path: PathBuf, listed: ListedPath) {
        if path.to_str().is_some() {
            self.files.push((path, listed));
        }
    }
}

/// Paths of a [`Resources`] listing. The process requests a file by its index in this list.
#[derive(Debug, Default)]
pub(super) struct ListedFiles {
    pub(super) number: u32,
    /// Paths with their indices, each with the names in it.
    paths: Vec<(u32, PathBuf, Vec<Box<str>>)>,
}

impl ListedFiles {
    pub(super) fn of(listing: &Resources) -> Self {
        let paths = listing.indexed().map(|(index, (path, listed))| {
            let names = match listed {
                ListedPath::Folder(folder) => {
                    let names = folder.entries.iter().map(|(name, _)| name.clone());
                    names.collect()
                }
                ListedPath::File(_) | ListedPath::Error(_) => Vec::new(),
            };
            (index, path.clone(), names)
        });
        Self {
            number: listing.number,
            paths: paths.collect(),
        }
    }

    /// Returns the path with this index.
    pub(super) fn path(&self, index: u32) -> Option<PathBuf> {
        let at = self.paths.partition_point(|(first, ..)| *first <= index);
        let (first, path, names) = self.paths.get(at.checked_sub(1)?)?;
        match (index - first).checked_sub(1) {
            None => Some(path.clone()),
            Some(inside) => Some(path.join(&**names.get(inside as usize)?)),
        }
    }
}

/// Files that were opened for a process.
#[derive(Debug, Default)]
pub(super) struct OpenedFiles {
    pub(super) results: Vec<OpenResult>,
    pub(super) fds: Vec<OwnedFd>,
    /// Number of paths that were walked.
    pub(super) walks: usize,
}

/// Opens listed files, `count` from index `first` on. An index outside the listing is an error.
/// Walks the path of a folder once for all its files.
pub(super) fn open_listed(listed: &ListedFiles, (first, count): (u32, u32)) -> OpenedFiles {
    let mut opened = OpenedFiles::default();
    let mut folder: Option<(PathBuf, Option<RootFolder>)> = None;
    for number in 0..count {
        let path = first.checked_add(number);
        let result = match path.and_then(|index| listed.path(index)) {
            Some(path) => opened.open(&path, &mut folder),
            None => Err(io::ErrorKind::InvalidInput.into()),
        };
        opened.results.push(match result {
            Ok(Some(file)) => {
                opened.fds.push(file.into());
                OpenResult::Open
            }
            Ok(None) => OpenResult::Own,
            Err(error) => OpenResult::Error(error_number(&error)),
        });
    }
    opened
}

impl OpenedFiles {
    fn open(
        &mut self,
        path: &Path,
        folder: &mut Option<(PathBuf, Option<RootFolder>)>,
    ) -> io::Result<Option<File>> {
        let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let is_other = |known: &mut (PathBuf, _)| known.0 != parent;
        if folder.take_if(is_other).is_some() || folder.is_none() {
            self.walks += 1;
            let opened = RootFolder::open(parent).ok().flatten();
            *folder = Some((parent.to_owned(), opened));
        }
        let of_folder = folder.as_ref().and_then(|(_, folder)| folder.as_ref());
        if let Some((folder, name)) = of_folder.zip(path.file_name())
            && let Some(file) = folder.file(name)?
        {
            return Ok(Some(file));
        }
        self.walks += 1;
        root_only::open_file(path)
    }
}

/// Returns the state of a path in a listed folder. Returns `None` if it cannot be listed.
fn entry(path: &Path, places: &WatchedPlaces) -> Option<ListedEntry> {
    match root_only::open(path) {
        Ok(None) => Some(ListedEntry::Own),
        Ok(Some(RootOnly::File(_))) => {
            let stamp = places.stamp(path);
            Some(ListedEntry::File(stamp.map(|stamp| stamp.0)))
        }
        Ok(Some(RootOnly::Folder(_))) => Some(ListedEntry::Folder),
        Err(error) => error.raw_os_error().map(ListedEntry::Error),
    }
}

/// Returns the sorted names in a folder, without names that are not UTF-8. `true` marks regular
/// files.
pub(super) fn names_of(entries: Vec<FolderEntry>) -> Vec<(Box<str>, bool)> {
    let names = entries.into_iter().filter_map(|entry| {
        let name = entry.name.into_string().ok()?;
        Some((name.into_boxed_str(), entry.is_file))
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

/// Returns the watched files that only root can change.
pub(super) fn places_of(groups: &[Vec<PathBuf>]) -> WatchedPlaces {
    let paths = groups.iter().flatten().filter(|path| is_roots(path));
    let paths: BTreeSet<_> = paths.cloned().collect();
    WatchedPlaces::of(paths.into_iter().collect())
}

/// Returns `true` if only root can change the existing part of a path.
fn is_roots(path: &Path) -> bool {
    let mut found = path.ancestors().map(root_only::is_roots);
    found.find_map(Result::ok).unwrap_or(false)
}

pub(super) fn error_number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(EINVAL)
}

/// Number of changes above which all files are listed: with a rejected file, changes accumulate.
const MOST_CHANGES: usize = 10_000;
const EINVAL: i32 = 22;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_counts_paths_and_the_names_in_folders() {
        let folder = FolderListing {
            entries: ["a", "b"]
                .map(|name| (name.into(), ListedEntry::Own))
                .into(),
            is_part: false,
        };
        let files = [
            ("/one", ListedPath::File(None)),
            ("/two", ListedPath::Folder(folder)),
            ("/three", ListedPath::Error(2)),
        ];
        let listing = Resources {
            files: files.map(|(path, listed)| (path.into(), listed)).into(),
            ..Resources::default()
        };
        let listed = ListedFiles::of(&listing);
        let paths = (0..6).map_while(|index| listed.path(index));
        let paths: Vec<PathBuf> = paths.collect();
        assert_eq!(
            paths,
            ["/one", "/two", "/two/a", "/two/b", "/three"].map(PathBuf::from)
        );
    }

    /// Lists changes in a folder that only root can change. Skipped without root.
    #[test]
    fn a_changed_file_is_listed_with_those_that_are_loaded_together_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let names = ["chain", "key", "other", "many"];
        let [chain, key, other, many] = names.map(at);
        for file in [&chain, &key, &other] {
            std::fs::write(file, "1").unwrap();
        }
        std::fs::create_dir(&many).unwrap();
        for number in 0..=SMALL_FOLDER {
            std::fs::write(many.join(number.to_string()), "1").unwrap();
        }
        let groups = [
            vec![chain.clone(), key.clone()],
            vec![other, many.clone()],
            vec![many.clone()],
        ];
        let places = places_of(&groups);
        if places.is_empty() {
            return;
        }
        let listed = |changed: &[&PathBuf]| {
            let mut renewing = PendingRenewal::default();
            renewing.add(Changes {
                paths: changed.iter().map(|path| (*path).clone()).collect(),
                ..Changes::default()
            });
            let listing = renewing.listing((&places, &groups));
            assert!(listing.changes.paths.iter().eq(changed.iter().copied()));
            listing.files
        };
        let files = listed(&[&chain]);
        assert!(files.iter().map(|(path, _)| path).eq([&chain, &key]));
        let one = many.join("7");
        let files = listed(&[&many, &one]);
        let (_, folder) = files.iter().find(|(path, _)| *path == many).unwrap();
        let ListedPath::Folder(folder) = folder else {
            panic!("not a folder")
        };
        assert!(folder.is_part && folder.entries.len() == 1);
        assert_eq!(files.len(), 2);
    }

    #[test]
    fn changes_are_bounded_and_none_is_lost() {
        let (places, groups) = (WatchedPlaces::default(), []);
        let change = |number: usize| Changes {
            gone: [number as u64].into(),
            ..Changes::default()
        };
        let is_all = |renewing: &mut PendingRenewal| {
            let listing = renewing.listing((&places, &groups));
            assert!(renewing.sent.len() <= MOST_CHANGES);
            listing.changes.is_empty()
        };
        let mut renewing = PendingRenewal::default();
        // A rejected file keeps what was sent.
        for number in 0..MOST_CHANGES {
            renewing.add(change(number));
            assert!(number % 1000 != 0 || !is_all(&mut renewing));
        }
        renewing.add(change(MOST_CHANGES));
        assert!(is_all(&mut renewing));
        renewing.add(change(0));
        assert!(is_all(&mut renewing));
        renewing.finish();
        renewing.add(change(0));
        assert!(!is_all(&mut renewing));
        // Changes while the process checks others.
        for number in 0..2 * MOST_CHANGES {
            renewing.add(change(number));
            assert!(renewing.changes.len() <= MOST_CHANGES);
        }
        renewing.finish();
        assert!(is_all(&mut renewing));
    }

    #[test]
    fn an_index_outside_the_listing_is_an_error() {
        let opened = open_listed(&ListedFiles::default(), (u32::MAX, 2));
        assert_eq!(opened.results, [OpenResult::Error(EINVAL); 2]);
    }
}
