//! Files of a docroot that one worker found recently: they stay open for further requests.
//!
//! When an entry is older than [`FRESH`], its path is opened again, and an unchanged file is kept. Entries without a
//! request for [`KEPT`] are closed gradually while other files are requested, so that a deleted file does not occupy
//! disk space. The number of entries never exceeds `open-files`: the least recently requested entry is closed.

use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;

use super::{FileKey, OpenFile};

/// Open files by the [`FileKey`] of the request.
#[derive(Debug)]
pub struct Cache(LruCache<FileKey, CachedFile, RandomState>);

#[derive(Debug)]
struct CachedFile {
    file: Arc<OpenFile>,
    looked: Duration,
    asked: Duration,
}

impl Default for Cache {
    fn default() -> Self {
        Self(LruCache::unbounded_with_hasher(RandomState::new()))
    }
}

impl Cache {
    /// Returns the cached file for a request, unless the entry is too old.
    pub fn get(&mut self, wanted: &FileKey, now: Duration) -> Option<Arc<OpenFile>> {
        let is_fresh = |entry: &CachedFile| now.saturating_sub(entry.looked) < FRESH;
        self.0.peek(wanted).filter(|entry| is_fresh(entry))?;
        let entry = self.0.get_mut(wanted)?;
        entry.asked = now;
        Some(Arc::clone(&entry.file))
    }

    /// Stores a newly found file in a cache of at most `most` entries. Returns the file to serve:
    /// the file that is already open, if it is unchanged.
    pub fn keep(
        &mut self,
        wanted: &FileKey,
        file: Arc<OpenFile>,
        (now, most): (Duration, usize),
    ) -> Arc<OpenFile> {
        let old = self.0.pop(wanted).map(|old| old.file);
        let file = old.filter(|old| old.is(&file)).unwrap_or(file);
        for _ in 0..MOST_CLOSED {
            let oldest = self.0.peek_lru().map(|(_, entry)| entry.asked);
            let is_old = oldest.is_some_and(|asked| now.saturating_sub(asked) >= KEPT);
            if !is_old && self.0.len() < most {
                break;
            }
            self.0.pop_lru();
        }
        if most > 0 {
            let entry = CachedFile {
                file: Arc::clone(&file),
                looked: now,
                asked: now,
            };
            self.0.put(wanted.clone(), entry);
        }
        file
    }
}

/// Time for which a path is assumed to refer to the same file.
const FRESH: Duration = Duration::from_secs(1);
/// Time for which a file stays open without a request.
const KEPT: Duration = Duration::from_secs(60);
/// Maximum number of least recently requested files that one call closes, so that a request is not
/// delayed.
const MOST_CLOSED: usize = 4;

#[cfg(test)]
mod tests {
    use std::fs::{self, File, FileTimes};
    use std::io::Write;
    use std::time::UNIX_EPOCH;

    use crate::coding::Codings;
    use becket_config::backend::Files;

    use super::*;
    use crate::docroot::{AtPath, Docroot};

    const SECOND: Duration = Duration::from_secs(1);

    fn wanted(name: &str) -> FileKey {
        FileKey {
            path: crate::path::decode(&format!("/{name}")).unwrap(),
            codings: Codings::default(),
        }
    }

    fn open(docroot: &Docroot, name: &str) -> Arc<OpenFile> {
        match docroot.find(&wanted(name), true) {
            Some(AtPath::File(file)) => file,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_cache_entry_is_valid_for_a_second_and_an_unchanged_file_for_longer() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "a").unwrap();
        let docroot = Docroot::open(folder.path().into(), Files::default()).unwrap();
        let (mut cache, a) = (Cache::default(), wanted("a"));
        let first = cache.keep(&a, open(&docroot, "a"), (Duration::ZERO, 2));
        assert!(Arc::ptr_eq(&cache.get(&a, SECOND / 2).unwrap(), &first));
        assert!(cache.get(&a, SECOND).is_none());
        let second = cache.keep(&a, open(&docroot, "a"), (SECOND, 2));
        assert!(Arc::ptr_eq(&second, &first), "the same file");
        fs::write(folder.path().join("a"), "longer").unwrap();
        let third = cache.keep(&a, open(&docroot, "a"), (2 * SECOND, 2));
        assert!(!Arc::ptr_eq(&third, &first) && third.len == 6);
    }

    #[test]
    fn a_file_of_equal_length_and_time_that_replaces_another_is_served_under_a_tag_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            let mut file = File::create(folder.path().join(name)).unwrap();
            file.write_all(name.as_bytes()).unwrap();
            let times = FileTimes::new().set_modified(UNIX_EPOCH + SECOND);
            file.set_times(times).unwrap();
        }
        let docroot = Docroot::open(folder.path().into(), Files::default()).unwrap();
        let (mut cache, a) = (Cache::default(), wanted("a"));
        let old = cache.keep(&a, open(&docroot, "a"), (Duration::ZERO, 2));
        fs::rename(folder.path().join("b"), folder.path().join("a")).unwrap();
        let new = cache.keep(&a, open(&docroot, "a"), (SECOND, 2));
        assert_eq!(new.read(0, 1).unwrap(), b"b");
        assert_ne!(new.representation().etag, old.representation().etag);
    }

    #[test]
    fn least_recently_used_and_idle_entries_are_evicted() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c", "d"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let docroot = Docroot::open(folder.path().into(), Files::default()).unwrap();
        let mut cache = Cache::default();
        let keep = |cache: &mut Cache, name: &str, now| {
            cache.keep(&wanted(name), open(&docroot, name), (now, 2));
        };
        keep(&mut cache, "a", Duration::ZERO);
        keep(&mut cache, "b", Duration::ZERO);
        assert!(cache.get(&wanted("a"), Duration::ZERO).is_some());
        keep(&mut cache, "c", Duration::ZERO);
        let has = |cache: &Cache, name: &str| cache.0.contains(&wanted(name));
        assert!(has(&cache, "a") && !has(&cache, "b") && has(&cache, "c"));
        keep(&mut cache, "d", 2 * KEPT);
        assert_eq!(cache.0.len(), 1);
        let mut none = Cache::default();
        none.keep(&wanted("a"), open(&docroot, "a"), (Duration::ZERO, 0));
        assert!(none.0.is_empty());
    }
}
