//! `becket ctl --keep`: writes a change to the file of kept edits, which is read with the configuration.
//!
//! The file is written with the rights of whoever asks, once the running becket has confirmed the change. So a serving process that
//! was taken over cannot change what its successors do. The path comes from the configuration file, never from the running becket, whose
//! word is only compared. The new text is written to a second file in the same folder, under a lock, and renamed: two commands that run
//! at once lose nothing, and a link is replaced and not followed. Owner, group and read permissions are those of the configuration file,
//! because the same process reads both.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use becket_config::address::{FixedAddress, NamePattern, SectionName, ServerAddress};
use becket_config::choices::ServerMode;
use becket_config::edits::{CertificateEdit, Edits, ServerAction, ServerEdit};
use becket_config::file::File as Config;
use becket_config::notation::Text;
use becket_sys::identity::user_name;
use becket_sys::{privileges, regular, root_only};

use super::{AddFlags, CertificateTask, CtlTask, NotDone, ServerName, ServerTask};
use crate::status::Place;
use becket_keys::files::{Files, reason};
use becket_keys::keys::CertificateFacts;
use becket_keys::pem::Pem;
use becket_prepare::edits::edits;

/// The file of kept edits, locked.
pub(super) struct Kept {
    path: PathBuf,
    /// What replaces it; absent once it has.
    fresh: Option<PathBuf>,
    file: File,
    edits: Edits,
    config: Config,
}

impl Kept {
    /// Locks and reads the file that belongs to the becket at a place.
    pub(super) fn open(place: &Place) -> Result<Self, NotDone> {
        if !place.is_socket()? {
            let text = "--keep writes a file on the host of becket, so it needs becket's admin.socket: --socket PATH, \
                or --config FILE with that key";
            return Err(NotDone::Refused(text.to_owned()));
        }
        let (config_path, config) = place.configuration()?;
        let path = config.edits_path(&config_path);
        let status = place.ask()?;
        let used = status["edits"]["file"].as_str().map(Path::new);
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
        let fresh = beside(&path);
        let file = locked(&fresh).map_err(failed)?;
        let read = edits(&Files::default(), &config_path, &path);
        let problems: Vec<String> = read.problems.iter().map(ToString::to_string).collect();
        let owned = fchown(&file, Some(found.uid()), Some(found.gid()));
        let owned =
            owned.and_then(|()| file.set_permissions(Permissions::from_mode(found.mode() & 0o644)));
        let refused = match problems[..] {
            [] => owned.err().map(failed),
            _ => Some(NotDone::Refused(problems.join("; "))),
        };
        let kept = Self {
            path,
            fresh: Some(fresh),
            file,
            edits: read.file.unwrap_or_default(),
            config,
        };
        match refused {
            None => Ok(kept),
            Some(refused) => Err(refused),
        }
    }

    /// Writes what a task changes, and returns where.
    pub(super) fn write(mut self, task: &CtlTask) -> Result<PathBuf, NotDone> {
        let written = task
            .edit(&mut self.edits, &self.config)
            .map_err(io::Error::other)
            .and_then(|()| self.replace());
        let path = self.path.clone();
        match written {
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
        // From here on another command may make its own.
        self.fresh = None;
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        File::open(folder)?.sync_all()
    }

    /// Whether the file has a certificate for this name.
    pub(super) fn has_certificate(&self, listener: &str, name: &str) -> bool {
        let mut all = self.edits.certificate.iter();
        all.any(|edit| is_certificate(edit, listener, name))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Still locked: another command that waits for this file makes its own.
        if let Some(fresh) = &self.fresh {
            let _left_behind = fs::remove_file(fresh);
        }
    }
}

/// Makes the file that replaces another, and waits until no other command has it.
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

fn beside(path: &Path) -> PathBuf {
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
    /// Whether the change is to be kept.
    pub(super) fn is_kept(&self) -> bool {
        match self {
            Self::Servers { change } => change.as_ref().is_some_and(ServerTask::is_kept),
            Self::Certificates {
                change:
                    Some(CertificateTask::Set { keep, .. } | CertificateTask::Remove { keep, .. }),
            } => *keep,
            Self::Log { keep, .. } => *keep,
            _ => false,
        }
    }

    fn edit(&self, edits: &mut Edits, config: &Config) -> Result<(), String> {
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

/// A path that leads to the same file wherever becket starts.
pub(super) fn path_of(path: &Path) -> Result<String, String> {
    let whole = std::path::absolute(path).map_err(|error| reason(&error))?;
    let text = whole.into_os_string().into_string();
    text.map_err(|_| format!("{}: not UTF-8", path.display()))
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
    fn is_kept(&self) -> bool {
        match self {
            Self::Ready(flags)
            | Self::Drain(flags)
            | Self::Maintenance(flags)
            | Self::Reset(flags) => flags.keep,
            Self::Weight { server, .. }
            | Self::Maxconn { server, .. }
            | Self::Address { server, .. } => server.keep,
            Self::Add(flags) => flags.keep,
            Self::Remove { keep, .. } => *keep,
        }
    }

    fn edit(&self, edits: &mut Edits, config: &Config) -> Result<(), String> {
        match self {
            Self::Add(flags) => {
                let AddFlags {
                    server,
                    weight,
                    maxconn,
                    backup,
                    disabled,
                    ..
                } = flags;
                *edit_of(edits, server)? = ServerEdit {
                    action: ServerAction::Add,
                    weight: *weight,
                    maxconn: *maxconn,
                    backup: *backup,
                    mode: disabled.then_some(ServerMode::Maintenance),
                    ..new(server)?
                };
            }
            Self::Remove { server, .. } => {
                *edit_of(edits, server)? = ServerEdit {
                    action: ServerAction::Remove,
                    ..new(server)?
                };
                let mut backends = config
                    .backend
                    .iter()
                    .filter(|it| *it.name == *server.backend);
                let is_it = |it: &ServerAddress| *it.text == *server.server;
                if !backends.any(|it| {
                    it.server
                        .iter()
                        .any(|it| it.address.as_ref().is_some_and(is_it))
                }) {
                    edits
                        .server
                        .retain(|edit| !edit.is_of(&server.backend, &server.server));
                }
            }
            Self::Ready(flags) => edit_of(edits, &flags.server)?.mode = Some(ServerMode::Ready),
            Self::Drain(flags) => edit_of(edits, &flags.server)?.mode = Some(ServerMode::Drain),
            Self::Maintenance(flags) => {
                edit_of(edits, &flags.server)?.mode = Some(ServerMode::Maintenance)
            }
            Self::Weight { server, weight } => {
                edit_of(edits, &server.server)?.weight = Some(*weight)
            }
            Self::Maxconn { server, most } => edit_of(edits, &server.server)?.maxconn = Some(*most),
            Self::Address { server, addresses } => {
                let addresses = addresses.iter().map(|text| FixedAddress::parse(text));
                edit_of(edits, &server.server)?.addresses = addresses.collect::<Result<_, _>>()?;
            }
            Self::Reset(flags) => {
                let edit = edit_of(edits, &flags.server)?;
                (edit.mode, edit.addresses) = (None, Vec::new());
                if edit.action == ServerAction::Change {
                    let ServerName { backend, server } = &flags.server;
                    edits.server.retain(|edit| !edit.is_of(backend, server));
                }
            }
        }
        Ok(())
    }
}

/// The edit of a server, which is made where there is none.
fn edit_of<'e>(edits: &'e mut Edits, name: &ServerName) -> Result<&'e mut ServerEdit, String> {
    let all = &mut edits.server;
    let at = all
        .iter()
        .position(|edit| edit.is_of(&name.backend, &name.server));
    let at = match at {
        Some(at) => at,
        None => {
            all.push(new(name)?);
            all.len() - 1
        }
    };
    Ok(&mut all[at])
}

fn new(name: &ServerName) -> Result<ServerEdit, String> {
    Ok(ServerEdit {
        backend: SectionName::parse(&name.backend)?,
        address: Some(ServerAddress::parse(&name.server)?),
        ..ServerEdit::default()
    })
}

const HEAD: &str = "\
# Edits of \"becket ctl --keep\", read with the configuration. Delete an entry, or this file, to end them at the next reload.
# becket ctl rewrites this file: comments are lost.

";
