//! The sandbox of the serving process, which restricts its files and system calls from the start.
//!
//! Landlock ([`becket_sys::file_reach`]) permits access to the folders of the configured files and
//! logs, and to the files for lookups of hosts and users. Files that the supervisor opens need no
//! permission. seccomp ([`becket_sys::call_filter`]) permits only the system calls that a running
//! server needs. Refused calls are counted and logged once.
//!
//! The restrictions cannot be removed later, so a reload that names a file in a different folder is
//! rejected ([`Reach`]).
//!
//! If the kernel supports only one of the two mechanisms, that one is still used. See
//! `docs/decisions/0037-a-sandbox-that-answers.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use becket_config::choices::SandboxMode;
use becket_sys::{call_filter, file_reach};
use serde::{Deserialize, Serialize};

use becket_keys::files::{Files, Reach};
use becket_log::Output;
use becket_tls::config::Config;

#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    pub status: SandboxStatus,
    /// Files and folders that the process may access; `None` if files are not restricted.
    pub reach: Option<Arc<Reach>>,
    /// Numbers of the refused system calls that were already logged.
    said: BTreeSet<usize>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxStatus {
    pub mode: SandboxMode,
    /// Description of the file restriction; `None` if files are not restricted.
    pub files: Option<String>,
    /// Description of the system call filter; `None` if system calls are not filtered.
    pub calls: Option<String>,
}

impl Sandbox {
    /// Enters the configured sandbox. File restrictions apply to this thread and to threads that it
    /// starts later; the system call filter applies to all threads. Relative paths are resolved
    /// against `folder`.
    pub fn enter(config: &Config, files: &Files, folder: &Path) -> Self {
        let mode = config.file.process.sandbox;
        let mut sandbox = Self::default();
        sandbox.status.mode = mode;
        if mode == SandboxMode::On {
            sandbox.confine_files(reach(config, files, folder));
            let filtered = call_filter::restrict().map(|()| "filtered");
            sandbox.status.calls = in_force("system calls", filtered);
        }
        sandbox
    }

    fn confine_files(&mut self, reach: Reach) {
        let confined = file_reach::confine(&reach.read, &reach.write);
        let confined =
            confined.and_then(|version| version.ok_or(io::ErrorKind::Unsupported.into()));
        self.status.files = in_force(
            "files",
            confined.map(|version| format!("Landlock {version}")),
        );
        self.reach = self.status.files.is_some().then(|| Arc::new(reach));
    }

    /// Logs each refused system call the first time that it is refused.
    pub fn tell(&mut self) {
        for number in call_filter::refused().into_keys() {
            if self.said.insert(number) {
                let call = call_name(number);
                tracing::warn!(name: "system-call-refused", call, number, "system call refused by process.sandbox");
            }
        }
    }

    /// Returns how often each system call was refused since the start, by name.
    pub fn refused() -> BTreeMap<String, u64> {
        let refused = call_filter::refused().into_iter();
        refused
            .map(|(number, count)| (call_name(number), count))
            .collect()
    }
}

fn call_name(number: usize) -> String {
    match call_filter::name(number) {
        Some(name) => name.to_owned(),
        None => number.to_string(),
    }
}

/// Logs whether a restriction was applied. Returns its description, or `None` if it was not
/// applied.
fn in_force(what: &str, done: io::Result<impl Into<String>>) -> Option<String> {
    match done {
        Ok(how) => {
            let how = how.into();
            tracing::info!(name: "sandboxed", what, how, "sandbox active");
            Some(how)
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            tracing::warn!(name: "sandbox-unsupported", what, "the kernel does not support this part of the sandbox; the process runs without it");
            None
        }
        Err(error) => {
            tracing::warn!(name: "sandbox-failed", what, %error, "cannot apply this part of the sandbox; the process runs without it");
            None
        }
    }
}

/// Returns the files and folders that the configuration needs while it runs and when it is
/// reloaded.
fn reach(config: &Config, files: &Files, folder: &Path) -> Reach {
    let mut reach = Reach::default();
    let opened = files.opened();
    let opened = opened.iter().map(PathBuf::as_path);
    for path in opened.chain(FIXED.map(Path::new)) {
        reach.read.extend(places(path));
    }
    let docroots = config
        .backends
        .iter()
        .filter_map(|backend| backend.docroot.as_ref());
    for docroot in docroots {
        reach.read.extend(places(&docroot.path));
    }
    if let Some(acme) = &config.file.acme {
        reach.read.extend(places(&acme.folder(folder)));
    }
    let process = &config.file.process;
    let below = |path: &String| folder.join(path);
    let pid_file = process.pid_file.as_ref().map(below);
    let cache = process.certificate_cache.as_ref().map(below);
    let socket = config
        .admin
        .socket
        .as_ref()
        .map(|socket| socket.path.clone());
    let key_log = std::env::var_os("SSLKEYLOGFILE").map(PathBuf::from);
    let logs = [&config.log.file, &config.log.access].map(|log| {
        let opened = log.file().filter(|path| !Output::is_stream(path));
        opened.map(Path::to_owned)
    });
    let null = Some("/dev/null".into());
    for path in [pid_file, cache, socket, key_log, null]
        .into_iter()
        .chain(logs)
        .flatten()
    {
        reach.write.extend(places(&path));
    }
    reach
}

/// Returns the folders that must be accessible to open `path`, even after it was replaced: its
/// parent, and the parent of its target if it is a symbolic link. A folder is itself included. A
/// device, or a file directly below `/`, is returned instead of its parent.
fn places(path: &Path) -> Vec<PathBuf> {
    let whole = fs::canonicalize(path).ok();
    let found = whole.as_deref().and_then(|path| fs::metadata(path).ok());
    let is_folder = found.as_ref().is_some_and(fs::Metadata::is_dir);
    let is_link = path.is_symlink();
    let around = |path: &Path| {
        let folder = fs::canonicalize(path.parent()?).ok()?;
        (folder != Path::new("/")).then_some(folder)
    };
    match (whole, found) {
        (Some(whole), Some(found)) if found.file_type().is_char_device() => vec![whole],
        (Some(whole), _) => {
            let written = around(path).filter(|_| !is_folder);
            let led = around(&whole).filter(|_| is_link || !is_folder);
            let own = (is_folder || written.is_none()).then(|| whole.clone());
            written.into_iter().chain(led).chain(own).collect()
        }
        (None, _) => around(path).into_iter().collect(),
    }
}

/// Paths that the process needs under every configuration: the files and libraries for lookups of
/// hosts and users, and the kernel's files about the process, its cores and its memory.
const FIXED: [&str; 8] = [
    "/etc",
    "/etc/resolv.conf",
    "/lib",
    "/lib64",
    "/usr",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_file_lies_in_the_folder_of_its_name_and_in_that_of_its_content() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        for folder in ["live", "archive", "..7", "releases/7"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("archive/1.pem"), "").unwrap();
        symlink("../archive/1.pem", root.join("live/site.pem")).unwrap();
        symlink("..7", root.join("..data")).unwrap();
        symlink("releases/7", root.join("current")).unwrap();
        let of = |path: &str| places(&root.join(path));
        assert_eq!(
            of("archive/1.pem"),
            [root.join("archive"), root.join("archive")]
        );
        assert_eq!(
            of("live/site.pem"),
            [root.join("live"), root.join("archive")]
        );
        assert_eq!(of("live/none.pem"), [root.join("live")]);
        assert_eq!(of("live"), [root.join("live")]);
        assert_eq!(of("..data"), [root.clone(), root.join("..7")]);
        assert_eq!(
            of("current"),
            [root.join("releases"), root.join("releases/7")]
        );
        assert_eq!(of("nowhere/1.pem"), [""; 0].map(PathBuf::from));
        let _socket = UnixListener::bind(root.join("live/admin.sock")).unwrap();
        assert_eq!(
            of("live/admin.sock"),
            [root.join("live"), root.join("live")]
        );
        assert_eq!(places(Path::new("/dev/null")), [Path::new("/dev/null")]);
        assert_eq!(places(Path::new("/")), [Path::new("/")]);
    }
}
