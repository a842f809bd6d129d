//! The origin of the configuration, from which it can be loaded again.
//!
//! A [`ConfigSource`] is fixed at the start. [`ConfigSource::load`] reads all files each time: the
//! file of `--config` with its PEM files and the flags that override it, or only PEM files if there
//! are just flags, or the files of another program ([`Dialect`]). A reload is another `load` next
//! to the running configuration.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use becket_config::error::{Problem, Rejected, Report};
use becket_config::file::File;
use becket_config::parts::IncludedFiles;
use becket_config::read::read;
use becket_dialects::{Dialect, Invocation, Translation};
use rustls_pki_types::UnixTime;

use super::changed::ChangedFiles;
use super::flags::Flags;
use super::renewal::{Renewal, renew};
use super::{Environment, LoadPurpose, Prepared, prepare};
use becket_keys::files::{Files, LARGEST, clean, reason};
use becket_keys::issuers::IssuerTable;
use becket_keys::signing::token::Tokens;
use becket_tls::config::Config;
use becket_tls::trial::Trials;

#[derive(Clone, Debug)]
enum SourceKind {
    Flags(Box<Flags>),
    /// The command line of another program, and its configuration if that was read from standard
    /// input.
    Foreign(Dialect, Invocation, Option<Vec<u8>>),
}

#[derive(Clone, Debug)]
pub struct ConfigSource {
    kind: SourceKind,
    /// Absolute path of the folder in which the operator started the command.
    base: PathBuf,
    files: Files,
    /// Sockets of the token agents for the next configuration to load.
    tokens: Tokens,
    trials: Trials,
    issuers: IssuerTable,
}

impl ConfigSource {
    /// Creates a source from the flags of this process.
    ///
    /// # Errors
    /// Fails if the current folder was removed.
    pub fn new(flags: Flags) -> io::Result<Self> {
        Ok(Self::at(flags, std::env::current_dir()?))
    }

    pub fn at(flags: Flags, base: PathBuf) -> Self {
        Self::of(SourceKind::Flags(Box::new(flags)), base)
    }

    /// Creates a source from the command line of another program. Reads standard input if that is
    /// the configuration file.
    ///
    /// # Errors
    /// Fails if the current folder was removed or standard input cannot be read.
    pub fn foreign(dialect: Dialect, invocation: Invocation) -> io::Result<Self> {
        let mut input = None;
        if invocation.file.as_deref() == Some(STANDARD_INPUT) {
            let text = input.insert(Vec::new());
            io::stdin().take(LARGEST + 1).read_to_end(text)?;
            if text.len() as u64 > LARGEST {
                return Err(io::Error::other("standard input is larger than 16 MiB"));
            }
        }
        let kind = SourceKind::Foreign(dialect, invocation, input);
        Ok(Self::of(kind, std::env::current_dir()?))
    }

    fn of(kind: SourceKind, base: PathBuf) -> Self {
        Self {
            kind,
            base,
            files: Files::default(),
            tokens: Tokens::default(),
            trials: Trials::default(),
            issuers: IssuerTable::default(),
        }
    }

    /// Returns a copy that opens files through `files` and uses the agents in `tokens`.
    pub fn with(&self, files: Files, tokens: Tokens) -> Self {
        Self {
            files,
            tokens,
            ..self.clone()
        }
    }

    /// Returns the absolute path of the configuration file; `None` if there are only flags.
    pub fn file(&self) -> Option<PathBuf> {
        let path = match &self.kind {
            SourceKind::Flags(flags) => flags.config.as_deref()?,
            SourceKind::Foreign(_, invocation, None) => Path::new(invocation.file.as_ref()?),
            SourceKind::Foreign(_, _, Some(_)) => return None,
        };
        // Removes `.` components, because the path is displayed.
        Some(self.base.join(path).components().collect())
    }

    /// Returns the folder where relative paths in the configuration start.
    pub fn folder(&self) -> PathBuf {
        let file = self.file();
        let folder = file.as_deref().and_then(Path::parent);
        let is_ours = matches!(self.kind, SourceKind::Flags(_));
        folder.filter(|_| is_ours).unwrap_or(&self.base).to_owned()
    }

    /// Parses the configuration from the text of its file, its `parts` and the flags. Skips invalid
    /// values.
    pub fn written(&self, text: &[u8], parts: &dyn IncludedFiles) -> File {
        let (text, over) = match &self.kind {
            SourceKind::Flags(flags) => (
                std::str::from_utf8(text).unwrap_or_default(),
                flags.to_table(&self.base),
            ),
            SourceKind::Foreign(dialect, invocation, input) => {
                let text = input.as_deref().unwrap_or(text);
                let translation = dialect.translate(invocation, text, &self.base, parts);
                ("", translation.table)
            }
        };
        read(text, &over).file.unwrap_or_default()
    }

    pub fn origin(&self) -> String {
        let file = match &self.kind {
            SourceKind::Flags(flags) => flags.config.as_deref(),
            SourceKind::Foreign(_, invocation, _) => invocation.file.as_ref().map(Path::new),
        };
        file.map_or(COMMAND_LINE.to_owned(), |file| {
            clean(file).to_string_lossy().into_owned()
        })
    }

    /// Translates the configuration of another program. Returns `None` for a native configuration.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn translation(&self) -> Result<Option<Translation>, Rejected> {
        let SourceKind::Foreign(dialect, invocation, input) = &self.kind else {
            return Ok(None);
        };
        let text = match input {
            Some(input) => input.clone(),
            None => self.text()?,
        };
        let translation = dialect.translate(invocation, &text, &self.base, &self.files);
        Ok(Some(translation))
    }

    /// Adds the file and line to each problem. If the value came from a flag or from a setting of
    /// another program, the problem names that flag or setting instead of the key.
    pub fn place(&self, report: &mut Report) {
        let all = report.errors.iter_mut().chain(&mut report.warnings);
        match (&self.kind, self.translation()) {
            (SourceKind::Flags(flags), _) => {
                let file = self.file().and_then(|path| self.files.open(&path).ok());
                let mut text = String::new();
                // A configuration from a pipe cannot be read again, so its problems have no line
                // number.
                file.and_then(|(mut file, _)| file.read_to_string(&mut text).ok());
                let places = read(&text, &flags.to_table(&self.base)).places;
                all.for_each(|problem| {
                    places.place(problem);
                    name_flag(flags, problem);
                });
            }
            (_, Ok(Some(translation))) => all.for_each(|problem| translation.place(problem)),
            _ => {}
        }
        let all = report.errors.iter_mut().chain(&mut report.warnings);
        all.for_each(|problem| self.name_file(problem));
    }

    /// Adds the configuration file to a problem that does not come from the command line.
    fn name_file(&self, problem: &mut Problem) {
        let origin = self.origin();
        if origin != COMMAND_LINE && problem.file.is_none() && !problem.path.starts_with("--") {
            problem.file = Some(origin.into());
        }
    }

    /// Reads changed files that the running configuration names, but not the configuration file
    /// itself. Blocks on file access.
    pub fn renew(&self, running: &Config, changed: &ChangedFiles, now: UnixTime) -> Renewal {
        let folder = self.folder();
        let environment = Environment {
            tokens: running.tokens.clone(),
            ..self.environment(&folder, now, LoadPurpose::Serve)
        };
        renew(running, changed, &environment)
    }

    /// Returns the certificate files that this process opens itself, for watching.
    pub fn watched(&self, file: &File) -> Vec<PathBuf> {
        let folder = self.folder();
        let named = file.files_of_certificates().into_iter().flatten();
        let mut paths: Vec<PathBuf> = named.map(|text| folder.join(&*text)).collect();
        paths.retain(|path| self.files.is_own(path));
        paths
    }

    /// Returns the files that the supervisor opens because this process has no access.
    pub fn read_by_root(&self) -> Vec<PathBuf> {
        self.files.closed()
    }

    /// Reads and checks the configuration. Blocks on file access and DNS lookups.
    ///
    /// # Errors
    /// Returns all problems.
    pub fn load(&self, now: UnixTime, names: LoadPurpose) -> Result<Prepared, Rejected> {
        self.load_in(&self.environment(&self.folder(), now, names))
    }

    /// Loads the configuration for a reload. Unchanged objects are shared with the running
    /// configuration.
    ///
    /// # Errors
    /// Returns all problems. The running configuration stays unchanged.
    pub fn reload(&self, running: &Config, now: UnixTime) -> Result<Prepared, Rejected> {
        let running = Some(running);
        self.load_in(&Environment {
            running,
            ..self.environment(&self.folder(), now, LoadPurpose::Serve)
        })
    }

    fn environment<'a>(
        &self,
        folder: &'a Path,
        now: UnixTime,
        names: LoadPurpose,
    ) -> Environment<'a> {
        Environment {
            tokens: self.tokens.clone(),
            trials: self.trials.clone(),
            issuers: self.issuers.clone(),
            ..Environment::system(folder, now, names, self.files.clone())
        }
    }

    fn load_in(&self, environment: &Environment<'_>) -> Result<Prepared, Rejected> {
        let prepared = match (&self.kind, self.translation()?) {
            (SourceKind::Flags(flags), _) => self.load_ours(flags, environment),
            (_, translation) => load_foreign(&translation.unwrap_or_default(), environment),
        };
        let named = placed(prepared, |problem| self.name_file(problem));
        named.map_err(|rejected| Rejected {
            origin: self.origin(),
            ..rejected
        })
    }

    fn load_ours(
        &self,
        flags: &Flags,
        environment: &Environment<'_>,
    ) -> Result<Prepared, Rejected> {
        let is_toml = |path: &&String| path.ends_with(".toml");
        if let Some(path) = flags.service.certificates.iter().find(is_toml) {
            let fault = format!("not a certificate (did you mean --config {path}?)");
            return Err(Rejected::of(vec![
                Problem::new("CERT.pem", fault).text(path),
            ]));
        }
        let text = String::from_utf8(self.text()?).map_err(|_| {
            let problem = Problem::new("", "not UTF-8");
            Rejected::of(vec![problem.accepted("a TOML file, which is in UTF-8")])
        })?;
        let reading = read(&text, &flags.to_table(&self.base));
        placed(prepare(reading, environment), |problem| {
            name_flag(flags, problem);
        })
    }

    /// Returns the text of the configuration file; empty without a file.
    fn text(&self) -> Result<Vec<u8>, Rejected> {
        let Some(path) = self.file() else {
            return Ok(Vec::new());
        };
        self.files.bytes(&path).map_err(|error| {
            let shown = path.to_string_lossy();
            let problem = Problem::new("--config", reason(&error)).text(&shown);
            Rejected {
                origin: self.origin(),
                ..Rejected::of(vec![problem.accepted("a readable file")])
            }
        })
    }
}

/// Replaces the key path of a problem with the flag that set the value, if the value has no line in
/// the file.
fn name_flag(flags: &Flags, problem: &mut Problem) {
    if problem.line.is_none()
        && let Some(flag) = flags.named(&problem.path)
    {
        problem.path = flag.to_owned();
    }
}

/// Prepares the translated configuration of another program. Problems name the settings of that
/// program.
fn load_foreign(
    translation: &Translation,
    environment: &Environment<'_>,
) -> Result<Prepared, Rejected> {
    let prepared = prepare(read("", &translation.table), environment);
    let mut prepared = placed(prepared, |problem| translation.place(problem));
    if !translation.problems.is_empty() {
        let mut all = prepared.err().unwrap_or_else(|| Rejected::of(Vec::new()));
        // An invalid setting of the other program can also cause a "missing" error. The setting
        // itself is in `translation.problems`.
        all.errors
            .retain(|problem| !problem.fault.starts_with("missing"));
        all.errors.extend(translation.problems.iter().cloned());
        all.errors
            .sort_by(|one, other| one.place().cmp(&other.place()));
        prepared = Err(all);
    }
    prepared
}

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

const COMMAND_LINE: &str = "command line";
const STANDARD_INPUT: &str = "-";
