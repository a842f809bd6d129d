//! Implements the drop-in replacement for hitch, stud and stunnel: becket runs under their names,
//! with their command lines and configuration files.
//!
//! [`becket_dialects`] translates their settings into becket's configuration. This module
//! implements their exit codes, their configuration test and the background process.

mod background;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use becket_config::error::Rejected;
use becket_dialects::migration::{Migration, migrate};
use becket_dialects::{Dialect, DialectCommand, Invocation, MigrationSource, page};
use becket_sys::privileges;
use rustls_pki_types::UnixTime;

use crate::check::check;
use becket_control::launch::launch;
use becket_control::server::Outcome;
use becket_keys::files::Files;
use becket_keys::signing::token::Tokens;
use becket_prepare::source::ConfigSource;
use becket_process::{ProcessRole, StartTask, continues, enter};

/// Invocation of becket under the name of another program.
#[derive(Debug)]
pub struct DropInCall {
    dialect: Dialect,
    /// Name of the replaced program, for messages.
    name: String,
    arguments: Vec<String>,
}

impl DropInCall {
    /// Returns the invocation if this process replaces another program: it was started through a
    /// link named `hitch`, for example, or as `becket hitch`.
    pub fn of(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let own = arguments.next()?;
        let own = Path::new(&own).file_name()?.to_string_lossy().into_owned();
        let name = match Dialect::named(&own) {
            Some(_) => own,
            None => arguments.next()?.to_string_lossy().into_owned(),
        };
        Some(Self {
            dialect: Dialect::named(&name)?,
            arguments: arguments
                .map(|it| it.to_string_lossy().into_owned())
                .collect(),
            name,
        })
    }

    /// Runs the program until it ends. Call it before any thread is started.
    ///
    /// # Errors
    /// A system call failed.
    pub fn run(&self) -> io::Result<ExitCode> {
        match self.dialect.command(&self.arguments) {
            Err(said) => {
                eprintln!("{said}");
                return Ok(ExitCode::FAILURE);
            }
            Ok(DialectCommand::Version) => {
                println!("{} (becket {})", self.name, env!("CARGO_PKG_VERSION"));
            }
            Ok(DialectCommand::Help) => print!("{}", page::help(self.dialect)),
            Ok(DialectCommand::Defaults) => print!("{}", page::DEFAULTS),
            Ok(DialectCommand::Run(invocation)) => return self.start(invocation),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn start(&self, invocation: Invocation) -> io::Result<ExitCode> {
        let is_test = invocation.is_test;
        let is_input = invocation.file.as_deref() == Some("-");
        let source = ConfigSource::foreign(self.dialect, invocation)?;
        let translation = match source.translation() {
            Ok(translation) => translation.unwrap_or_default(),
            Err(rejected) => return Ok(say(&rejected)),
        };
        if !continues() {
            let user = translation.names("process.user");
            let is_root = privileges::is_root();
            if is_root && user && is_input {
                eprintln!(
                    "cannot read the configuration from standard input, because root's process and the user's process both read it; name a file"
                );
                return Ok(ExitCode::FAILURE);
            }
            if is_root && !user && self.dialect == Dialect::Hitch {
                eprintln!("ERROR: Refusing to run workers as root.");
                return Ok(ExitCode::FAILURE);
            }
            if translation.is_daemon && is_input {
                eprintln!(
                    "cannot read the configuration from standard input, because the background process reads it again; name a file"
                );
                return Ok(ExitCode::FAILURE);
            }
            let in_front = translation.is_daemon && !is_test && !background::is_background()?;
            if in_front || is_test || !translation.is_daemon {
                let origin = source.origin();
                for remark in translation.remarks(&origin) {
                    eprintln!("{remark}");
                }
            }
            if in_front {
                return background::detach();
            }
        }
        if is_test {
            return self.test(&source);
        }
        let (given, link) = match enter(&source, StartTask::Run)? {
            ProcessRole::Ended(code) => return Ok(code),
            ProcessRole::Serves(given, link) => (given, link),
        };
        match launch(source, *given, link).map(|server| server.run()) {
            // Exit with success even if connections were still open at the drain deadline, as these
            // programs do.
            Ok(Outcome::Done | Outcome::DrainDeadline) => Ok(ExitCode::SUCCESS),
            Ok(Outcome::Failed) => Ok(ExitCode::FAILURE),
            Err(error) => {
                becket_log::write_to_stderr(&error.to_string());
                Ok(ExitCode::FAILURE)
            }
        }
    }

    /// Checks the configuration as `becket check` does. On success, prints the success message of
    /// the replaced program as the last line.
    fn test(&self, source: &ConfigSource) -> io::Result<ExitCode> {
        let mut given = match enter(source, StartTask::Check)? {
            ProcessRole::Ended(code) => return Ok(code),
            ProcessRole::Serves(given, _) => given,
        };
        let tokens = Tokens::adopt(std::mem::take(&mut given.tokens), &Tokens::default());
        let source = source.with(given.files.clone(), tokens);
        let findings = check(&source, &given, UnixTime::now(), false);
        let code = say(&Rejected {
            warnings: findings.warnings,
            ..Rejected::of(findings.errors)
        });
        if code == ExitCode::SUCCESS {
            eprintln!("{} configuration looks ok.", self.name);
        }
        Ok(code)
    }
}

/// Prints one line per problem, with file and line number. Returns the exit code.
fn say(rejected: &Rejected) -> ExitCode {
    for warning in &rejected.warnings {
        eprintln!("{}", warning.labelled("warning: "));
    }
    for error in &rejected.errors {
        eprintln!("{}", error.labelled("error: "));
    }
    if rejected.errors.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Translates the configuration file of another program into a becket configuration.
///
/// # Errors
/// The file cannot be read.
pub fn migration(source: MigrationSource, file: &Path) -> io::Result<Migration> {
    let text = std::fs::read(file)?;
    let mut folder = std::env::current_dir()?;
    if source == MigrationSource::Nginx {
        folder.extend(file.parent());
    }
    let translation = source.translate(&text, &folder, &Files::default());
    Ok(migrate(source, &file.to_string_lossy(), &translation))
}
