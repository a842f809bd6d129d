//! The folder of the companion: accounts, unfinished orders, certificates, and a lock.
//!
//! The directories are opened once, and files are opened below them without following links. A file
//! is written under a temporary name, synced and renamed, so that a full disk or a killed process
//! leaves the old file.
//!
//! ```text
//! lock                   held while a companion runs
//! control                socket of `control.rs`
//! state.json             orders of the last day, and the authority of each certificate
//! accounts/LABEL.json    account and its key
//! orders/STEM.json       unfinished order and its private key
//! certificates/STEM.pem  chain and private key
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, fchmod, flock, fstat, fsync, mkdirat, openat,
    renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::error::Error;

#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    root: OwnedFd,
    accounts: OwnedFd,
    orders: OwnedFd,
    certificates: OwnedFd,
    _lock: OwnedFd,
}

/// A directory of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Root,
    Accounts,
    Orders,
    Certificates,
}

/// Contents of `state.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Times of orders, in seconds since 1970.
    pub orders: Vec<u64>,
    /// As `orders`, for on-demand certificates.
    pub on_demand_orders: Vec<u64>,
    /// Directory URL of the authority that issued a certificate, by the stem of its file.
    pub authorities: BTreeMap<String, String>,
}

impl State {
    pub fn begun(&mut self, is_on_demand: bool) -> &mut Vec<u64> {
        if is_on_demand {
            &mut self.on_demand_orders
        } else {
            &mut self.orders
        }
    }
}

impl Store {
    /// Opens the folder for the only companion, and creates what is missing. Fails if another
    /// companion uses the folder, or if another user may write to it.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        // The error of opening the folder shows why it is missing.
        mkdirat(CWD, folder, Mode::from_raw_mode(SHARED_FOLDER)).ok();
        let open = || {
            let root = openat(CWD, folder, FOLDER, Mode::empty())?;
            let stat = fstat(&root)?;
            if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
                let text =
                    "it must belong to the user of the companion, and no other may write to it";
                return Err(io::Error::other(text));
            }
            let flags = OFlags::RDWR | OFlags::CREATE | NO_LINK;
            let lock = openat(&root, "lock", flags, Mode::from_raw_mode(SECRET))?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => Err(io::Error::other("another companion uses it")),
                locked => Ok(Self {
                    folder: folder.to_owned(),
                    accounts: part(&root, "accounts", 0o700)?,
                    orders: part(&root, "orders", 0o700)?,
                    certificates: part(&root, "certificates", SHARED_FOLDER)?,
                    root,
                    _lock: locked.map(|()| lock)?,
                }),
            }
        };
        open().map_err(|error| Error::os(format!("use {}", folder.display()), error))
    }

    /// Returns the path of a file, independent of the directories above the folder. It can be used
    /// only in this process.
    pub fn path(&self, part: Part, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.at(part).as_raw_fd()).into()
    }

    /// Returns the content of a file, or `None` if it does not exist.
    pub fn load(&self, part: Part, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        let read = || {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | NO_LINK;
            let file = match openat(self.at(part), name, flags, Mode::empty()) {
                Err(Errno::NOENT) => return Ok(None),
                file => File::from(file?),
            };
            let metadata = file.metadata()?;
            if !metadata.is_file() || metadata.len() > LARGEST {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            // The buffer is never reallocated, because a freed buffer would still contain a key.
            let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len() as usize + 1));
            file.take(metadata.len()).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        };
        read().map_err(|error| Error::os(format!("read {}", self.shown(part, name)), error))
    }

    /// Parses a file. Returns `None` if it does not exist.
    pub fn load_json<T: DeserializeOwned>(
        &self,
        part: Part,
        name: &str,
    ) -> Result<Option<T>, Error> {
        let Some(text) = self.load(part, name)? else {
            return Ok(None);
        };
        let action = || format!("parse {}", self.shown(part, name));
        let parsed = serde_json::from_slice(&text);
        parsed
            .map(Some)
            .map_err(|error| Error::os(action(), error.into()))
    }

    /// Writes a file. After an error, the old file is unchanged.
    pub fn save(&self, part: Part, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.stage(part, name, bytes)?.commit()
    }

    pub fn save_json(&self, part: Part, name: &str, value: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_vec(value);
        let text = text.map_err(|error| Error::os(format!("write {name}"), error.into()))?;
        self.save(part, name, &Zeroizing::new(text))
    }

    /// Writes a file under a temporary name.
    pub fn stage(&self, part: Part, name: &str, bytes: &[u8]) -> Result<Staged<'_>, Error> {
        let staged = Staged {
            store: self,
            part,
            name: name.to_owned(),
            temporary: format!(".{name}.new"),
        };
        let write = || -> io::Result<()> {
            // A killed process may have left this file.
            unlinkat(self.at(part), &staged.temporary, AtFlags::empty()).ok();
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | NO_LINK;
            let mode = Mode::from_raw_mode(match part {
                Part::Certificates => SHARED,
                _ => SECRET,
            });
            let mut file = File::from(openat(self.at(part), &staged.temporary, flags, mode)?);
            // The umask has reduced the mode.
            fchmod(&file, mode)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map_err(|error| Error::os(format!("write {}", self.shown(part, name)), error))?;
        Ok(staged)
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, part: Part, name: &str) -> Result<(), Error> {
        match unlinkat(self.at(part), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Error::os(
                format!("remove {}", self.shown(part, name)),
                error.into(),
            )),
        }
    }

    /// Returns the names of files without their extension, sorted.
    pub fn stems(&self, part: Part, extension: &str) -> Vec<String> {
        let names = Dir::read_from(self.at(part)).into_iter().flatten();
        let stems = names.filter_map(|entry| {
            let name = entry.ok()?.file_name().to_str().ok()?.to_owned();
            name.strip_suffix(extension).map(str::to_owned)
        });
        let mut stems: Vec<String> = stems.take(MOST_FILES).collect();
        stems.sort();
        stems
    }

    /// Returns the state; empty if it cannot be read.
    pub fn state(&self) -> State {
        let state = self.load_json(Part::Root, STATE);
        state.ok().flatten().unwrap_or_default()
    }

    /// Changes the state. Drops orders that are older than a day.
    pub fn change_state(
        &self,
        now: Duration,
        change: impl FnOnce(&mut State),
    ) -> Result<(), Error> {
        let mut state = self.state();
        let oldest = now.as_secs().saturating_sub(DAY);
        for is_on_demand in [false, true] {
            state.begun(is_on_demand).retain(|at| *at > oldest);
        }
        change(&mut state);
        self.save_json(Part::Root, STATE, &state)
    }

    fn at(&self, part: Part) -> &OwnedFd {
        match part {
            Part::Root => &self.root,
            Part::Accounts => &self.accounts,
            Part::Orders => &self.orders,
            Part::Certificates => &self.certificates,
        }
    }

    /// Returns the path of a file for messages.
    fn shown(&self, part: Part, name: &str) -> String {
        let folder = match part {
            Part::Root => "",
            Part::Accounts => "accounts",
            Part::Orders => "orders",
            Part::Certificates => "certificates",
        };
        let path = self.folder.join(folder).join(name);
        path.display().to_string()
    }
}

/// A complete file under a temporary name. It is removed if it is not committed.
#[derive(Debug)]
pub struct Staged<'a> {
    store: &'a Store,
    part: Part,
    name: String,
    temporary: String,
}

impl Staged<'_> {
    /// Returns the path of the temporary file, as [`Store::path`].
    pub fn path(&self) -> PathBuf {
        self.store.path(self.part, &self.temporary)
    }

    /// Replaces the old file.
    pub fn commit(self) -> Result<(), Error> {
        let folder = self.store.at(self.part);
        let renamed = renameat(folder, &self.temporary, folder, &self.name);
        let done = renamed.and_then(|()| fsync(folder));
        let shown = self.store.shown(self.part, &self.name);
        done.map_err(|error| Error::os(format!("write {shown}"), error.into()))
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        let folder = self.store.at(self.part);
        // Fails after a commit, because the file has its final name.
        unlinkat(folder, &self.temporary, AtFlags::empty()).ok();
    }
}

/// Opens a directory of the folder, and creates it if it is missing.
fn part(root: &OwnedFd, name: &str, mode: u32) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(mode);
    let made = mkdirat(root, name, mode);
    let opened = openat(root, name, FOLDER | NO_LINK, Mode::empty())?;
    // The umask has reduced the mode of a new directory.
    match made.and_then(|()| fchmod(&opened, mode)) {
        Ok(()) | Err(Errno::EXIST) => Ok(opened),
        Err(error) => Err(error.into()),
    }
}

const STATE: &str = "state.json";
const NO_LINK: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);
const SECRET: u32 = 0o600;
/// Mode of files for the serving process, which has the same group.
const SHARED: u32 = 0o640;
const SHARED_FOLDER: u32 = 0o750;
/// Maximum size of a file in bytes. A chain is smaller than the longest response.
const LARGEST: u64 = 2 * 1024 * 1024;
/// Maximum number of listed orders.
const MOST_FILES: usize = 100_000;
const DAY: u64 = 24 * 3600;

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("acme")).unwrap();
        (folder, store)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_and_folders_have_the_documented_modes() {
        let (folder, store) = store();
        let at = |name: &str| folder.path().join("acme").join(name);
        store.save(Part::Certificates, "a.pem", b"chain").unwrap();
        store.save(Part::Orders, "a.json", b"{}").unwrap();
        for (name, expected) in [
            ("", 0o750),
            ("accounts", 0o700),
            ("orders", 0o700),
            ("certificates", 0o750),
            ("certificates/a.pem", 0o640),
            ("orders/a.json", 0o600),
        ] {
            assert_eq!(mode(&at(name)), expected, "{name}");
        }
        assert_eq!(store.stems(Part::Orders, ".json"), ["a"]);
        store.remove(Part::Orders, "a.json").unwrap();
        store.remove(Part::Orders, "a.json").unwrap();
        assert!(store.load(Part::Orders, "a.json").unwrap().is_none());
    }

    #[test]
    fn only_one_companion_uses_a_folder_that_no_other_user_can_change() {
        let (folder, store) = store();
        let path = folder.path().join("acme");
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains("another companion"), "{error}");
        drop(store);
        fs::set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains("no other may write"), "{error}");
    }

    #[test]
    fn links_are_not_followed_and_a_left_temporary_file_is_replaced() {
        let (folder, store) = store();
        let at = |name: &str| folder.path().join("acme/certificates").join(name);
        let other = folder.path().join("other");
        fs::write(&other, "other").unwrap();
        symlink(&other, at("a.pem")).unwrap();
        symlink(&other, at(".a.pem.new")).unwrap();
        assert!(store.load(Part::Certificates, "a.pem").is_err());
        store.save(Part::Certificates, "a.pem", b"chain").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        assert!(!at("a.pem").is_symlink());
        let staged = store.stage(Part::Certificates, "a.pem", b"new").unwrap();
        assert_eq!(fs::read(staged.path()).unwrap(), b"new");
        drop(staged);
        assert_eq!(fs::read_dir(at("")).unwrap().count(), 1);
        let found = store.load(Part::Certificates, "a.pem").unwrap().unwrap();
        assert_eq!(&**found, b"chain");
    }

    #[test]
    fn a_full_disk_is_an_error_and_keeps_the_old_file() {
        let (folder, store) = store();
        let orders = folder.path().join("acme/orders");
        store.save(Part::Orders, "a.json", b"old").unwrap();
        // Without the right to write, the file cannot be created, as on a full disk.
        fs::set_permissions(&orders, Permissions::from_mode(0o500)).unwrap();
        let saved = store.save(Part::Orders, "a.json", b"new");
        fs::set_permissions(&orders, Permissions::from_mode(0o700)).unwrap();
        if !geteuid().is_root() {
            let error = saved.unwrap_err().to_string();
            assert!(
                error.starts_with("cannot write ") && error.contains("a.json"),
                "{error}"
            );
            assert_eq!(fs::read(orders.join("a.json")).unwrap(), b"old");
        }
    }

    #[test]
    fn the_state_forgets_orders_after_a_day_and_survives_a_broken_file() {
        let (_folder, store) = store();
        let now = Duration::from_secs(1_000_000);
        store.save(Part::Root, STATE, b"{").unwrap();
        let orders = vec![1_000_000 - DAY, 1_000_000 - DAY + 1, 999_999];
        store
            .change_state(now, |state| state.orders = orders)
            .unwrap();
        store
            .change_state(now, |state| state.orders.push(1_000_000))
            .unwrap();
        assert_eq!(
            store.state().orders,
            [1_000_000 - DAY + 1, 999_999, 1_000_000]
        );
        store.save(Part::Orders, "a.json", b"{").unwrap();
        assert!(store.load_json::<State>(Part::Orders, "a.json").is_err());
    }
}
