//! Where the configuration comes from, so that it can be loaded again.
//!
//! A [`Source`] is fixed at the start; [`Source::load`] reads files anew each time: with flags
//! the PEMs, with `--config` the file, its PEMs and the same few flags on top; with the command line
//! of another program ([`Dialect`]) its file and its PEMs. A reload is a second `load` beside the
//! running configuration.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use becket_config::edits::Edits;
use becket_config::error::{Problem, Rejected, Report};
use becket_config::file::File;
use becket_config::parts::Parts;
use becket_config::read::read;
use becket_dialects::{Dialect, Invocation, Translation};
use rustls_pki_types::UnixTime;

use super::edits::edits;
use super::flags::Flags;
use super::renewal::{Renewal, renew};
use super::{Prepared, ServerNames, World, prepare_reading};
use becket_keys::files::{Files, LARGEST, reason};
use becket_keys::signing::token::Tokens;
use becket_tls::config::Config;
use becket_tls::trial::Trials;

#[derive(Clone, Debug)]
enum Asked {
    /// Ours.
    Flags(Box<Flags>),
    /// Those of another program, and what was on standard input if that is its file.
    Foreign(Dialect, Invocation, Option<Vec<u8>>),
}

/// The origin of the configuration of this process.
#[derive(Clone, Debug)]
pub struct Source {
    asked: Asked,
    /// The folder in which the command was typed, absolute.
    base: PathBuf,
    files: Files,
    /// Agents for the next configuration.
    tokens: Tokens,
    trials: Trials,
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
        let asked = Asked::Flags(Box::new(flags));
        Self {
            asked,
            base,
            files: Files::default(),
            tokens: Tokens::default(),
            trials: Trials::default(),
        }
    }

    /// Takes the command line of another program. Reads standard input where that is the file.
    ///
    /// # Errors
    /// When the current folder is gone, or standard input cannot be read.
    pub fn foreign(dialect: Dialect, invocation: Invocation) -> io::Result<Self> {
        let mut input = None;
        if invocation.file.as_deref() == Some(STANDARD_INPUT) {
            io::stdin()
                .take(LARGEST)
                .read_to_end(input.insert(Vec::new()))?;
        }
        Ok(Self {
            asked: Asked::Foreign(dialect, invocation, input),
            base: std::env::current_dir()?,
            files: Files::default(),
            tokens: Tokens::default(),
            trials: Trials::default(),
        })
    }

    /// The same configuration, its files opened by other means, and with agents for its tokens.
    pub fn with(&self, files: Files, tokens: Tokens) -> Self {
        Self {
            files,
            tokens,
            ..self.clone()
        }
    }

    /// The configuration file, absolute; absent when there are only flags.
    pub fn file(&self) -> Option<PathBuf> {
        let path = match &self.asked {
            Asked::Flags(flags) => flags.config.as_deref()?,
            Asked::Foreign(_, invocation, None) => Path::new(invocation.file.as_ref()?),
            Asked::Foreign(_, _, Some(_)) => return None,
        };
        Some(self.base.join(path))
    }

    /// The folder at which relative paths in the configuration start.
    pub fn folder(&self) -> PathBuf {
        let file = self.file();
        let folder = file.as_deref().and_then(Path::parent);
        let is_ours = matches!(self.asked, Asked::Flags(_));
        folder.filter(|_| is_ours).unwrap_or(&self.base).to_owned()
    }

    /// The configuration as the text of its file, its `parts` and the flags write it, without what is broken in it.
    pub fn written(&self, text: &[u8], parts: &dyn Parts) -> File {
        let (text, over) = match &self.asked {
            Asked::Flags(flags) => (
                std::str::from_utf8(text).unwrap_or_default(),
                flags.to_table(&self.base),
            ),
            Asked::Foreign(dialect, invocation, input) => {
                let text = input.as_deref().unwrap_or(text);
                let translation = dialect.translate(invocation, text, &self.base, parts);
                ("", translation.table)
            }
        };
        let mut file = read(text, &over).file.unwrap_or_default();
        if let (Asked::Flags(_), Some(config)) = (&self.asked, self.file()) {
            let path = file.edits_path(&config);
            let text = parts
                .text(&path, LARGEST)
                .ok()
                .flatten()
                .unwrap_or_default();
            let read = Edits::read(&String::from_utf8_lossy(&text)).file;
            file.edits = read.unwrap_or_default();
            file.edits.path = Some(path);
            file.apply_edits();
        }
        file
    }

    /// What to call it in messages.
    pub fn origin(&self) -> String {
        let file = match &self.asked {
            Asked::Flags(flags) => flags.config.as_ref().map(|path| path.display().to_string()),
            Asked::Foreign(_, invocation, _) => invocation.file.clone(),
        };
        file.unwrap_or_else(|| "command line".to_owned())
    }

    /// What the configuration of another program becomes; absent where it is ours.
    ///
    /// # Errors
    /// Why its file cannot be read.
    pub fn translation(&self) -> Result<Option<Translation>, Rejected> {
        let Asked::Foreign(dialect, invocation, input) = &self.asked else {
            return Ok(None);
        };
        let text = match (input, self.file()) {
            (Some(input), _) => input.clone(),
            (None, None) => Vec::new(),
            (None, Some(path)) => self.text(&path)?,
        };
        Ok(Some(dialect.translate(
            invocation,
            &text,
            &self.base,
            &self.files,
        )))
    }

    /// Replaces key paths by settings of the other program, if the configuration is written for one.
    pub fn place(&self, report: &mut Report) {
        if let Ok(Some(translation)) = self.translation() {
            let all = report.errors.iter_mut().chain(&mut report.warnings);
            all.for_each(|problem| translation.place(problem));
        }
    }

    /// Looks at the files of a configuration that runs. Blocks.
    pub fn renew(&self, running: &Config, now: UnixTime) -> Renewal {
        let folder = self.folder();
        let world = World {
            tokens: running.tokens.clone(),
            ..self.world(&folder, now, ServerNames::Later)
        };
        renew(running, &world)
    }

    /// The files of a configuration that this process opens by its own rights, and that may change.
    pub fn watched(&self, file: &File) -> Vec<PathBuf> {
        let folder = self.folder();
        let named = file.files_of_certificates().into_iter();
        let mut paths: Vec<PathBuf> = named.map(|text| folder.join(text)).collect();
        paths.retain(|path| self.files.is_own(path));
        paths
    }

    /// Files that the supervisor opened, and this process may not.
    pub fn read_by_root(&self) -> Vec<PathBuf> {
        self.files.closed()
    }

    /// Reads and checks everything. Blocks on files and names.
    ///
    /// # Errors
    /// All that is wrong; nothing was changed.
    pub fn load(&self, now: UnixTime, names: ServerNames) -> Result<Prepared, Rejected> {
        self.load_in(&self.world(&self.folder(), now, names))
    }

    /// The same for a reload: takes from the running configuration what has not changed.
    ///
    /// # Errors
    /// All that is wrong; nothing was changed.
    pub fn reload(&self, running: &Config, now: UnixTime) -> Result<Prepared, Rejected> {
        let running = Some(running);
        self.load_in(&World {
            running,
            ..self.world(&self.folder(), now, ServerNames::Later)
        })
    }

    fn world<'a>(&self, folder: &'a Path, now: UnixTime, names: ServerNames) -> World<'a> {
        World {
            tokens: self.tokens.clone(),
            trials: self.trials.clone(),
            ..World::system(folder, now, names, self.files.clone())
        }
    }

    fn load_in(&self, world: &World<'_>) -> Result<Prepared, Rejected> {
        let prepared = match (&self.asked, self.translation()?) {
            (Asked::Flags(flags), _) => self.load_ours(flags, world),
            (_, translation) => load_foreign(&translation.unwrap_or_default(), world),
        };
        prepared.map_err(|rejected| Rejected {
            origin: self.origin(),
            ..rejected
        })
    }

    fn load_ours(&self, flags: &Flags, world: &World<'_>) -> Result<Prepared, Rejected> {
        let text = match self.file() {
            None => Vec::new(),
            Some(path) => self.text(&path)?,
        };
        let text = String::from_utf8(text).map_err(|_| {
            let problem = Problem::new("", "not UTF-8");
            rejected(vec![problem.accepted("a TOML file, which is in UTF-8")])
        })?;
        let mut reading = read(&text, &flags.to_table(&self.base));
        let (mut problems, mut places, mut name) = Default::default();
        if let (Some(file), Some(config)) = (&mut reading.file, self.file()) {
            let path = file.edits_path(&config);
            let edits = edits(&self.files, &config, &path);
            (problems, places) = (edits.problems, edits.places);
            name = path.to_string_lossy().into_owned();
            file.edits = Edits {
                path: Some(path),
                ..edits.file.unwrap_or_default()
            };
        }
        let mut prepared = placed(prepare_reading(reading, world), |problem| {
            if let Some(path) = problem.path.strip_prefix("edits.") {
                problem.path = path.to_owned();
                problem.file = Some(name.as_str().into());
                places.place(problem);
            } else if problem.line.is_none()
                && let Some(flag) = flags.named(&problem.path)
            {
                // What has no line in the file is a flag's.
                problem.path = flag.to_owned();
            }
        });
        if !problems.is_empty() {
            let mut all = prepared.err().unwrap_or_else(|| rejected(Vec::new()));
            all.errors.append(&mut problems);
            prepared = Err(all);
        }
        prepared
    }

    fn text(&self, path: &Path) -> Result<Vec<u8>, Rejected> {
        self.files.bytes(path).map_err(|error| {
            let shown = path.to_string_lossy();
            let problem = Problem::new("--config", reason(&error)).text(&shown);
            Rejected {
                origin: self.origin(),
                ..rejected(vec![problem.accepted("a readable file")])
            }
        })
    }
}

/// Prepares what the configuration of another program became; what is wrong is said in its words.
fn load_foreign(translation: &Translation, world: &World<'_>) -> Result<Prepared, Rejected> {
    let prepared = prepare_reading(read("", &translation.table), world);
    let mut prepared = placed(prepared, |problem| translation.place(problem));
    if !translation.problems.is_empty() {
        let mut all = prepared.err().unwrap_or_else(|| rejected(Vec::new()));
        // What is missing may be what could not be read.
        all.errors
            .retain(|problem| !problem.fault.starts_with("missing"));
        all.errors.extend(translation.problems.iter().cloned());
        all.errors
            .sort_by(|one, other| one.place().cmp(&other.place()));
        prepared = Err(all);
    }
    prepared
}

/// Says where each problem is.
fn placed(
    prepared: Result<Prepared, Rejected>,
    place: impl Fn(&mut Problem),
) -> Result<Prepared, Rejected> {
    match prepared {
        Ok(mut prepared) => {
            prepared.warnings.iter_mut().for_each(place);
            Ok(prepared)
        }
        Err(mut rejected) => {
            let all = rejected.errors.iter_mut().chain(&mut rejected.warnings);
            all.for_each(place);
            Err(rejected)
        }
    }
}

fn rejected(errors: Vec<Problem>) -> Rejected {
    Rejected {
        origin: String::new(),
        errors,
        warnings: Vec::new(),
    }
}

/// The name of standard input.
const STANDARD_INPUT: &str = "-";
