//! Watches files for changes.
//!
//! A [`Watch`] reads the metadata of the files every second, on a thread that may block on a disk.
//! It does not read their contents. A change has settled when two consecutive checks return the
//! same result. The owner then acts: the control thread renews objects built from the files, a
//! supervisor lists the files again.
//!
//! This detects every kind of change on every file system: a rename over the file, a write in
//! place, a changed link on the path, a folder that appears or disappears.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use becket_sys::process::without_signals;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};

/// Watched files and folders, and a hash of their metadata.
#[derive(Clone, Debug, Default)]
pub struct WatchedPlaces {
    paths: Arc<[PathBuf]>,
    seen: u64,
    took: Duration,
}

impl WatchedPlaces {
    /// Reads the metadata of the paths. May block on a disk.
    pub fn of(paths: Vec<PathBuf>) -> Self {
        let places = Self {
            paths: paths.into(),
            ..Self::default()
        };
        places.again()
    }

    fn again(&self) -> Self {
        let began = Instant::now();
        let mut hasher = DefaultHasher::new();
        for path in &*self.paths {
            note(path, &mut hasher);
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            let entries: BTreeSet<PathBuf> = entries.map(|entry| entry.path()).collect();
            entries.iter().for_each(|entry| note(entry, &mut hasher));
        }
        Self {
            paths: Arc::clone(&self.paths),
            seen: hasher.finish(),
            took: began.elapsed(),
        }
    }
}

/// Hashes the metadata that identifies a file's contents. Includes the change time (ctime), which
/// programs cannot set.
fn note(path: &Path, hasher: &mut DefaultHasher) {
    path.hash(hasher);
    match fs::metadata(path) {
        Ok(file) => {
            let times = [
                file.mtime(),
                file.mtime_nsec(),
                file.ctime(),
                file.ctime_nsec(),
            ];
            (file.dev(), file.ino(), file.len(), times).hash(hasher);
        }
        Err(error) => error.raw_os_error().hash(hasher),
    }
}

/// A watch for file changes. The default value watches nothing and waits forever.
#[derive(Debug, Default)]
pub struct Watch {
    places: WatchedPlaces,
    /// Time of the first unreported change.
    changed: Option<Instant>,
    looks_at: Option<Instant>,
    look: Option<JoinHandle<WatchedPlaces>>,
}

impl Watch {
    /// Replaces the watched places. An unreported change stays pending.
    pub fn replace(&mut self, places: WatchedPlaces) {
        *self = Self {
            looks_at: Some(Instant::now() + pause(&places)),
            places,
            changed: self.changed,
            look: None,
        };
    }

    pub fn stop(&mut self) {
        *self = Self::default();
    }

    /// Records that files may have changed.
    pub fn note(&mut self) {
        let now = Instant::now();
        self.changed.get_or_insert(now);
        self.looks_at = Some(now + BETWEEN_LOOKS);
    }

    /// Waits until a change has settled. Cancel-safe.
    pub async fn settled(&mut self) {
        loop {
            if let Some(look) = &mut self.look {
                let found = look.await;
                self.look = None;
                if self.has_settled(found.ok()) {
                    return;
                }
            } else if let Some(at) = self.looks_at {
                sleep_until(at).await;
                let places = self.places.clone();
                // Blocks signals on the new thread, because a signal received by this thread would
                // be lost when a supervisor executes another program.
                let look = without_signals(|| spawn_blocking(move || places.again()));
                self.look = look.ok();
                self.looks_at = Some(Instant::now() + BETWEEN_LOOKS);
            } else {
                std::future::pending().await
            }
        }
    }

    fn has_settled(&mut self, found: Option<WatchedPlaces>) -> bool {
        // A failed check counts as unchanged.
        let found = found.unwrap_or_else(|| self.places.clone());
        let now = Instant::now();
        self.looks_at = Some(now + pause(&found));
        let is_same = found.seen == self.places.seen;
        self.places = found;
        if !is_same {
            self.changed.get_or_insert(now);
        }
        let settles = |first: &mut Instant| is_same || now >= *first + LONGEST;
        self.changed.take_if(settles).is_some()
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
        let places = WatchedPlaces::of(watched.map(at).into());
        let seen = std::cell::Cell::new(places.seen);
        let matters = || seen.replace(places.again().seen) != seen.get();
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
    fn a_change_settles_after_two_equal_checks_or_ten_seconds() {
        let found = |seen| {
            let places = WatchedPlaces::default();
            Some(WatchedPlaces { seen, ..places })
        };
        let mut watch = Watch::default();
        assert!(!watch.has_settled(found(0)));
        assert!(!watch.has_settled(found(1)));
        assert!(watch.has_settled(found(1)));
        assert!(!watch.has_settled(found(1)));
        watch.note();
        assert!(watch.has_settled(found(1)), "noted by another process");
        assert!(!watch.has_settled(found(2)));
        watch.changed = watch.changed.map(|first| first - LONGEST);
        assert!(watch.has_settled(found(3)));
    }
}
