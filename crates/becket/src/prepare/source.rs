//! Where the configuration comes from, so that it can be loaded again.
//!
//! A [`Source`] is fixed at the start; [`Source::load`] reads files anew each time: with flags
//! the PEMs, with `--config` the file, its PEMs and the same few flags on top. A reload is a
//! second `load` beside the running configuration.

use std::io;
use std::path::{Path, PathBuf};

use becket_config::error::{Problem, Rejected};
use becket_config::file::File;
use becket_config::read::read;
use rustls_pki_types::UnixTime;

use super::flags::Flags;
use super::{Prepared, ServerNames, World, prepare_text};
use crate::files::{Files, reason};

/// The origin of the configuration of this process.
#[derive(Clone, Debug)]
pub struct Source {
    flags: Flags,
    /// The folder in which the flags were typed, absolute.
    base: PathBuf,
    files: Files,
}

impl Source {
    /// Takes the flags of this process.
    ///
    /// # Errors
    /// When the current folder is gone.
    pub fn new(flags: Flags) -> io::Result<Self> {
        Ok(Self::at(flags, std::env::current_dir()?))
    }

    /// Takes flags whose relative paths start at `base`.
    pub fn at(flags: Flags, base: PathBuf) -> Self {
        let files = Files::default();
        Self { flags, base, files }
    }

    /// The same configuration, its files opened by other means.
    pub fn with(&self, files: Files) -> Self {
        Self {
            files,
            ..self.clone()
        }
    }

    /// The configuration file, absolute; absent when there are only flags.
    pub fn file(&self) -> Option<PathBuf> {
        let path = self.flags.config.as_ref()?;
        Some(self.base.join(path))
    }

    /// The folder at which relative paths in the configuration start.
    pub fn folder(&self) -> PathBuf {
        let file = self.file();
        let folder = file.as_deref().and_then(Path::parent);
        folder.unwrap_or(&self.base).to_owned()
    }

    /// The configuration as the text of its file and the flags write it, without what is broken in it.
    pub fn written(&self, text: &str) -> File {
        let flags = self.flags.to_table(&self.base);
        read(text, &flags).file.unwrap_or_default()
    }

    /// What to call it in messages.
    pub fn origin(&self) -> String {
        match &self.flags.config {
            Some(path) => path.display().to_string(),
            None => "command line".to_owned(),
        }
    }

    /// Reads and checks everything. Blocks on files and names.
    ///
    /// # Errors
    /// All that is wrong; nothing was changed.
    pub fn load(&self, now: UnixTime, names: ServerNames) -> Result<Prepared, Rejected> {
        let path = self.file();
        let text = match &path {
            None => String::new(),
            Some(path) => self.files.text(path).map_err(|error| {
                let shown = path.to_string_lossy();
                let problem = Problem::new("--config", reason(&error)).text(&shown);
                Rejected {
                    origin: self.origin(),
                    errors: vec![problem.accepted("a readable TOML file")],
                    warnings: Vec::new(),
                }
            })?,
        };
        let folder = path.as_deref().and_then(Path::parent).unwrap_or(&self.base);
        let world = World::system(folder, now, names, self.files.clone());
        let place = |problem: &mut Problem| {
            // What has no line in the file is a flag's.
            if problem.line.is_none()
                && let Some(flag) = self.flags.named(&problem.path)
            {
                problem.path = flag.to_owned();
            }
        };
        match prepare_text(&text, &self.flags.to_table(&self.base), &world) {
            Ok(mut prepared) => {
                prepared.warnings.iter_mut().for_each(place);
                Ok(prepared)
            }
            Err(mut rejected) => {
                let all = rejected.errors.iter_mut().chain(&mut rejected.warnings);
                all.for_each(place);
                rejected.origin = self.origin();
                Err(rejected)
            }
        }
    }
}
