//! Reduces the privileges of the companion before it talks to an authority.
//!
//! The process changes to its user, can gain no privileges, and has no core dumps. Landlock permits
//! its folder, the CA file and the files for lookups of hosts. seccomp forbids other programs and
//! system administration. A hook needs files and programs that are not known, and inherits all
//! restrictions; so with a hook, neither is applied.

use std::io;
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

/// Restricts files and system calls, as far as the kernel can. Call it before threads are started.
pub fn confine(section: &Acme, base: &Path) {
    if section.hook.is_some() {
        tracing::info!(name: "acme-not-sandboxed", "acme.hook is set; the companion runs without a sandbox");
        return;
    }
    let external = section.external_account.as_ref().map(|it| &it.key_file);
    let files = section
        .ca
        .iter()
        .chain(external)
        .map(|path| base.join(path));
    // A replaced file is another file to Landlock, so its folder is permitted.
    let folders = files.filter_map(|path| path.parent().map(Path::to_owned));
    let of_system = SYSTEM.iter().map(PathBuf::from);
    let variables = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
        .into_iter()
        .filter_map(std::env::var_os);
    let read = folders.chain(of_system).chain(variables.map(PathBuf::from));
    let confined = file_reach::confine(read, [section.folder(base)]);
    let confined = confined.and_then(|it| it.ok_or(io::ErrorKind::Unsupported.into()));
    for (what, done) in [
        ("files", confined.map(drop)),
        ("system calls", call_filter::restrict_foreign_code()),
    ] {
        if let Err(error) = done {
            tracing::warn!(name: "acme-sandbox-failed", what, %error, "cannot apply this part of the sandbox; the companion runs without it");
        }
    }
}

/// Certificates of authorities, and files and libraries for lookups of hosts.
const SYSTEM: [&str; 8] = [
    "/etc",
    "/lib",
    "/lib64",
    "/usr",
    "/proc",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/var/lib/ca-certificates",
];
