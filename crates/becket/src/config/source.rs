//! Where the configuration comes from, so that it can be loaded again.
//!
//! A [`Source`] is fixed at the start; [`Source::load`] reads files anew each time: with flags
//! the PEMs, with `--config` the file, its PEMs and the same few flags on top. A reload is a
//! second `load` beside the running configuration.

use std::io;
use std::path::{Path, PathBuf};

use rustls_pki_types::UnixTime;

use super::error::{Problem, Rejected};
use super::flags::Flags;
use super::prepare::{Prepared, ServerNames, World, prepare};
use super::read::{Lines, read};
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
        match self.file() {
            Some(path) => self.load_file(&path, now, names),
            None => {
                let file = self.flags.to_file(&self.base);
                let prepared = prepare(
                    &file,
                    &World::system(&self.base, now, names, self.files.clone()),
                );
                self.place(prepared, &Lines::default())
            }
        }
    }

    fn load_file(
        &self,
        path: &Path,
        now: UnixTime,
        names: ServerNames,
    ) -> Result<Prepared, Rejected> {
        let text = self.files.text(path).map_err(|error| {
            let problem = Problem::new("--config", reason(&error)).text(&path.to_string_lossy());
            self.rejected(vec![problem.accepted("a readable TOML file")])
        })?;
        let reading = read(&text);
        let Some(mut file) = reading.file else {
            return Err(self.rejected(reading.problems));
        };
        self.flags.replace_in(&mut file, &self.base);
        let folder = path.parent().unwrap_or(&self.base);
        let prepared = prepare(
            &file,
            &World::system(folder, now, names, self.files.clone()),
        );
        let mut prepared = self.place(prepared, &reading.lines);
        if let Ok(prepared) = &mut prepared {
            prepared.files.push(path.to_owned());
        }
        if reading.problems.is_empty() {
            return prepared;
        }
        // A key of the wrong shape was left out of the file; that it is missing is no news.
        let (further, warnings) = match prepared {
            Ok(prepared) => (Vec::new(), prepared.warnings),
            Err(rejected) => (rejected.errors, rejected.warnings),
        };
        let shapes = &reading.problems;
        let news = |new: &Problem| !shapes.iter().any(|known| related(&known.path, &new.path));
        let mut errors = reading.problems.clone();
        errors.extend(further.into_iter().filter(news));
        errors.sort_by_key(|problem| problem.line);
        Err(Rejected {
            warnings,
            ..self.rejected(errors)
        })
    }

    /// Adds the lines, or the flags, to what `prepare` found.
    fn place(
        &self,
        prepared: Result<Prepared, Rejected>,
        lines: &Lines,
    ) -> Result<Prepared, Rejected> {
        let place = |problems: Vec<Problem>| -> Vec<Problem> {
            let placed = problems.into_iter().map(|mut problem| {
                match self.flags.named(&problem.path) {
                    Some(flag) => problem.path = flag.to_owned(),
                    None => problem.line = lines.line(&problem.path),
                }
                problem
            });
            let mut placed: Vec<Problem> = placed.collect();
            placed.sort_by_key(|problem| problem.line);
            placed
        };
        match prepared {
            Ok(prepared) => Ok(Prepared {
                warnings: place(prepared.warnings),
                ..prepared
            }),
            Err(rejected) => Err(Rejected {
                warnings: place(rejected.warnings),
                ..self.rejected(place(rejected.errors))
            }),
        }
    }

    fn rejected(&self, errors: Vec<Problem>) -> Rejected {
        Rejected {
            origin: self.origin(),
            errors,
            warnings: Vec::new(),
        }
    }
}

/// Whether one path leads to or through the other.
fn related(a: &str, b: &str) -> bool {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    let rest = long.strip_prefix(short);
    !short.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
