//! Reduces the privileges of the companion before it talks to an authority.
//!
//! The process changes to its user, can gain no privileges, and has no core dumps. Landlock permits
//! its folder, the CA file and the files for lookups of hosts. seccomp forbids other programs, new
//! Unix sockets and system administration. A hook needs files and programs that are not known, and inherits all
//! restrictions; so with a hook, neither is applied.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use becket_config::acme::Acme;
use becket_sys::identity::UnixIdentity;
use becket_sys::{call_filter, file_reach, privileges, rlimit};

use crate::error::Error;

/// Changes to the user, and forbids debuggers, core dumps and new privileges. Call it before threads
/// are started.
pub fn drop_privileges(user: Option<&UnixIdentity>) -> Result<(), Error> {
    // The ban on core dumps makes root the owner of this file, so the name is set first.
    std::fs::write("/proc/self/comm", "becket-acme").ok();
    let failed = |error| Error::os("drop privileges", error);
    if let Some(user) = user {
        privileges::drop_to(user).map_err(failed)?;
    }
    rlimit::forbid_core_dumps().map_err(failed)?;
    privileges::forbid_new_privileges().map_err(failed)
}

/// The sandbox of this process. The default value restricts nothing.
#[derive(Debug, Default)]
pub struct Sandbox {
    is_applied: bool,
    /// Permitted files with their device and inode. A replaced file is another file to Landlock.
    files: Vec<(PathBuf, Option<(u64, u64)>)>,
}

impl Sandbox {
    /// Restricts files and system calls, as far as the kernel can. Call it before threads are
    /// started.
    pub fn apply(section: &Acme, base: &Path) -> Self {
        if section.hook.is_some() {
            tracing::info!(name: "acme-not-sandboxed", "acme.hook is set; the companion runs without a sandbox");
            return Self::default();
        }
        let external = section.external_account.iter().map(|it| &it.key_file);
        let own = section.ca.iter().chain(external).map(|it| base.join(it));
        let variables = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter();
        let variables = variables.filter_map(std::env::var_os).map(PathBuf::from);
        let of_system = SYSTEM.iter().map(PathBuf::from);
        let read: Vec<PathBuf> = own.chain(variables).chain(of_system).collect();
        let files = read.iter().filter(|path| !path.is_dir());
        let files = files.map(|path| (path.clone(), inode(path))).collect();
        let confined = file_reach::confine(read, [section.folder(base)]);
        let confined = confined.and_then(|it| it.ok_or(io::ErrorKind::Unsupported.into()));
        report("files", confined.map(drop));
        report("system calls", call_filter::restrict_foreign_code());
        Self {
            is_applied: true,
            files,
        }
    }

    /// Forbids connections to Unix sockets, such as the admin socket of the serving process, which
    /// may have the same user.
    pub fn forbid_unix_sockets(&self) {
        if self.is_applied {
            report("Unix sockets", call_filter::forbid_unix_sockets());
        }
    }

    /// Returns a permitted file that was replaced, so that this process can no longer read it.
    pub fn replaced(&self) -> Option<&Path> {
        let mut files = self.files.iter();
        let found = files.find(|(path, before)| inode(path) != *before);
        found.map(|(path, _)| path.as_path())
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let found = path.metadata().ok()?;
    Some((found.dev(), found.ino()))
}

fn report(what: &str, done: io::Result<()>) {
    if let Err(error) = done {
        tracing::warn!(name: "acme-sandbox-failed", what, %error, "cannot apply this part of the sandbox; the companion runs without it");
    }
}

/// Certificates of authorities, and files and libraries for lookups of hosts. Not all of `/etc`, which
/// has the keys of the serving process.
const SYSTEM: [&str; 22] = [
    "/etc/ca-certificates",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/lib",
    "/lib64",
    "/usr",
    "/proc",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/var/lib/ca-certificates",
];
