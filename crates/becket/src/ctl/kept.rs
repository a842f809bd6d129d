//! `becket ctl --keep`: writes a change to the file of kept edits, which is read with the configuration.
//!
//! The command writes the file with its own rights, once the running becket has confirmed the change. So a serving process that was taken
//! over cannot change what its successors do. The path comes from the configuration file; the path that the running becket reports is only
//! compared. The new text is written to a second file in the same folder, under a lock, and renamed: two commands that run at once lose
//! nothing, and a link is replaced and not followed. Owner, group and read permissions are those of the configuration file, because the
//! same process reads both.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use becket_config::address::{FixedAddress, NamePattern, SectionName, ServerAddress};
use becket_config::choices::ServerMode;
use becket_config::edits::{CertificateEdit, Edits, ServerAction, ServerEdit};
use becket_config::error::ValueError;
use becket_config::file::File as Config;
use becket_config::notation::Text;
use becket_control::status::Status;
use becket_log::Timestamp;
use becket_sys::identity::user_name;
use becket_sys::{privileges, regular, root_only};

use super::request::NotDone;
use super::tasks::{CertificateTask, CtlTask, ServerPath, ServerTask};
use crate::admin::AdminAddress;
use becket_keys::files::{Files, reason};
use becket_keys::keys::CertificateFacts;
use becket_keys::pem::Pem;
use becket_prepare::edits::edits;

/// The file of kept edits, locked.
pub(super) struct Kept {
    path: PathBuf,
    /// The second file; absent once it is renamed.
    fresh: Option<PathBuf>,
    file: File,
    edits: Edits,
    config: Config,
    /// The configuration that the running becket had before the change.
    pub(super) loaded: (Timestamp, u64),
}

impl Kept {
    /// Locks and reads the file that belongs to the becket at a place.
    pub(super) fn open(place: &AdminAddress) -> Result<Self, NotDone> {
        if !place.is_socket()? {
            let text = "--keep writes a file on the host of becket, so it needs becket's admin.socket: --socket PATH, \
                or --config FILE with that key";
            return Err(NotDone::Refused(text.to_owned()));
        }
        let (config_path, config) = place.configuration()?;
        let path = config.edits_path(&config_path);
        let status = place.status()?;
        let used = status.changes.edits.file.as_deref();
        if !used.is_some_and(|used| is_same(used, &path)) {
            let used = used.map_or_else(|| "none".to_owned(), |used| used.display().to_string());
            return Err(NotDone::Refused(format!(
                "{} is not the file of kept edits that the running becket reads, which is {used}; \
                accepted: --config with the configuration file of that becket",
                path.display()
            )));
        }
        let refused = |why: &str| NotDone::Refused(format!("{}: {why}", path.display()));
        let failed = |error: io::Error| refused(&reason(&error));
        if privileges::is_root() && !root_only::is_roots(&path).map_err(failed)? {
            let why = "another user can change this path; accepted: ask as the owner of the configuration";
            return Err(refused(why));
        }
        let found = regular::open(&config_path).map_err(failed)?.1;
        if ![0, found.uid()].contains(&privileges::effective_user()) {
            let owner = user_name(found.uid());
            let why = format!(
                "the configuration belongs to {owner}; accepted: ask as {owner} or as root"
            );
            return Err(refused(&why));
        }
        let fresh = second_file(&path);
        let mut kept = Self {
            file: locked(&fresh).map_err(failed)?,
            path: path.clone(),
            fresh: Some(fresh),
            edits: Edits::default(),
            config,
            loaded: Self::loaded(&status),
        };
        let read = edits(&Files::default(), &config_path, &path);
        if !read.problems.is_empty() {
            let problems: Vec<String> = read.problems.iter().map(ToString::to_string).collect();
            return Err(NotDone::Refused(problems.join("; ")));
        }
        kept.edits = read.file.unwrap_or_default();
        fchown(&kept.file, Some(found.uid()), Some(found.gid())).map_err(failed)?;
        let mode = Permissions::from_mode(found.mode() & 0o644);
        kept.file.set_permissions(mode).map_err(failed)?;
        Ok(kept)
    }

    /// Identifies the loaded configuration in a status: the start of the process, and the number of its reloads.
    pub(super) fn loaded(status: &Status) -> (Timestamp, u64) {
        (status.process.started, status.changes.reloads.done)
    }

    /// Writes the change of a task. Returns the path of the file.
    pub(super) fn write(mut self, task: &CtlTask) -> Result<PathBuf, NotDone> {
        let path = self.path.clone();
        let edited = task.edit(&mut self.edits, &self.config);
        let written = edited.map_err(io::Error::other);
        match written.and_then(|()| self.replace()) {
            Ok(()) => Ok(path),
            Err(error) => Err(NotDone::NotKept { path, error }),
        }
    }

    fn replace(&mut self) -> io::Result<()> {
        let edits = toml::to_string(&self.edits).map_err(io::Error::other)?;
        self.file.set_len(0)?;
        self.file.write_all(format!("{HEAD}{edits}").as_bytes())?;
        self.file.sync_all()?;
        if let Some(fresh) = &self.fresh {
            fs::rename(fresh, &self.path)?;
        }
        // From here on another command may create its own.
        self.fresh = None;
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        File::open(folder)?.sync_all()
    }

    /// Returns whether the file has a certificate for this name.
    pub(super) fn has_certificate(&self, listener: &str, name: &str) -> bool {
        let mut all = self.edits.certificate.iter();
        all.any(|edit| is_certificate(edit, listener, name))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Still locked: another command that waits for this file creates its own.
        if let Some(fresh) = &self.fresh {
            let _left_behind = fs::remove_file(fresh);
        }
    }
}

/// Creates the second file, and waits until no other command has it.
fn locked(fresh: &Path) -> io::Result<File> {
    loop {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(regular::NO_LINK)
            .open(fresh)?;
        file.lock()?;
        let own = file.metadata()?;
        // Another command may have renamed or removed it meanwhile.
        if fs::symlink_metadata(fresh)
            .is_ok_and(|it| (it.dev(), it.ino()) == (own.dev(), own.ino()))
        {
            return Ok(file);
        }
    }
}

fn second_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn is_same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| {
        let folder = fs::canonicalize(path.parent()?).ok()?;
        Some(folder.join(path.file_name()?))
    };
    one == other || whole(one).is_some_and(|one| Some(one) == whole(other))
}

impl CtlTask {
    fn edit(&self, edits: &mut Edits, config: &Config) -> Result<(), ValueError> {
        match self {
            Self::Servers { change: Some(task) } => task.edit(edits, config)?,
            Self::Certificates {
                change:
                    Some(CertificateTask::Set {
                        listener,
                        chain,
                        key,
                        ..
                    }),
            } => {
                let edit = CertificateEdit {
                    listener: SectionName::parse(listener)?,
                    chain: path_of(chain)?,
                    key: path_of(key)?,
                };
                let is_same = |it: &CertificateEdit| {
                    (&it.listener, &it.chain) == (&edit.listener, &edit.chain)
                };
                edits.certificate.retain(|it| !is_same(it));
                edits.certificate.push(edit);
            }
            Self::Certificates {
                change: Some(CertificateTask::Remove { listener, name, .. }),
            } => {
                edits
                    .certificate
                    .retain(|edit| !is_certificate(edit, listener, name));
            }
            Self::Log { level, .. } => edits.log_level.clone_from(level),
            _ => {}
        }
        Ok(())
    }
}

/// Returns a path that leads to the same file wherever becket starts.
pub(super) fn path_of(path: &Path) -> Result<String, ValueError> {
    let whole = std::path::absolute(path).map_err(|error| reason(&error))?;
    let text = whole.into_os_string().into_string();
    text.map_err(|_| format!("{}: not UTF-8", path.display()).into())
}

fn is_certificate(edit: &CertificateEdit, listener: &str, name: &str) -> bool {
    let names = || -> Option<Vec<NamePattern>> {
        let pem = Pem::read(&Files::default(), Path::new(&edit.chain)).ok()?;
        Some(CertificateFacts::of(pem.certificates.first()?).ok()?.names)
    };
    *edit.listener == *listener
        && names().is_some_and(|names| names.iter().any(|one| one.to_string() == name))
}

impl ServerTask {
    fn edit(&self, edits: &mut Edits, config: &Config) -> Result<(), ValueError> {
        let (ServerPath { backend, server }, _) = self.target();
        let blank = ServerEdit {
            backend: SectionName::parse(backend)?,
            address: Some(ServerAddress::parse(server)?),
            ..ServerEdit::default()
        };
        let mut known = edits.server.iter();
        let at = known.position(|edit| edit.is_of(backend, server));
        let at = at.unwrap_or_else(|| {
            edits.server.push(blank.clone());
            edits.server.len() - 1
        });
        let edit = &mut edits.server[at];
        match self {
            Self::Add(flags) => {
                *edit = ServerEdit {
                    action: ServerAction::Add,
                    weight: flags.weight,
                    maxconn: flags.maxconn,
                    backup: flags.backup,
                    mode: flags.disabled.then_some(ServerMode::Maintenance),
                    ..blank.clone()
                };
            }
            Self::Remove { .. } => {
                *edit = ServerEdit {
                    action: ServerAction::Remove,
                    ..blank.clone()
                };
            }
            Self::Ready(_) => edit.mode = Some(ServerMode::Ready),
            Self::Drain(_) => edit.mode = Some(ServerMode::Drain),
            Self::Maintenance(_) => edit.mode = Some(ServerMode::Maintenance),
            Self::Weight { weight, .. } => edit.weight = Some(*weight),
            Self::Maxconn { most, .. } => edit.maxconn = Some(*most),
            Self::Address { addresses, .. } => {
                let addresses = addresses.iter().map(|text| FixedAddress::parse(text));
                edit.addresses = addresses.collect::<Result<_, _>>()?;
            }
            Self::Reset(_) if edit.action == ServerAction::Change => *edit = blank.clone(),
            Self::Reset(_) => (edit.mode, edit.addresses) = (None, Vec::new()),
        }
        let is_superfluous = match edit.action {
            ServerAction::Add => false,
            ServerAction::Remove => !has_server(config, &blank),
            ServerAction::Change => *edit == blank,
        };
        if is_superfluous {
            edits.server.remove(at);
        }
        Ok(())
    }
}

fn has_server(config: &Config, edit: &ServerEdit) -> bool {
    let mut backends = config.backend.iter();
    backends.any(|backend| {
        let mut servers = backend.server.iter();
        backend.name == edit.backend && servers.any(|server| server.address == edit.address)
    })
}

const HEAD: &str = "\
# Edits of \"becket ctl --keep\", read with the configuration. Delete an entry, or this file, to end them at the next reload.
# becket ctl rewrites this file: comments are lost.

";
