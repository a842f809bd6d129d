//! Dialects: configurations of hitch, stud and stunnel, translated to tables of `becket.toml`.
//!
//! This crate owns the syntax and the settings of these programs, and the origin of each translated key. So there is one path of
//! validation, and a fault names the setting and the line of the original file. It opens no file: the caller opens the [`Parts`] that a configuration includes.
//! It validates no value of ours.
//!
//! Main types: [`Dialect`] is a program, [`Translation`] is the table with its faults, and [`Remark`] says how much of a setting holds here. The start, the report
//! of a migration and `docs/dropin.md` show remarks, all from one table for each dialect.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::path::Path;
//!
//! use becket_dialects::{Dialect, Invocation};
//!
//! let called = Invocation::of_file("stunnel.conf");
//! let text = b"[web]\naccept = 443\nconnect = 80\ncert = /etc/site.pem\n";
//! let translation = Dialect::Stunnel.translate(&called, text, Path::new("/"), &BTreeMap::new());
//! assert!(translation.problems.is_empty() && translation.table.contains_key("listener"));
//! ```
//!
//! `ciphers` reads cipher strings of OpenSSL, `command_line` reads command lines, [`migration`] writes TOML, and [`page`] writes `docs/dropin.md`.

mod builder;
mod ciphers;
mod command_line;
mod hitch;
pub mod migration;
pub mod page;
mod setting;
mod stud;
mod stunnel;

use std::collections::HashMap;
use std::path::Path;

use toml::Table;

pub use self::setting::{Remark, Setting, Support};
use becket_config::error::Problem;
use becket_config::parts::Parts;

/// A program whose configurations are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// hitch 1.8 and before.
    Hitch,
    /// stud 0.3.
    Stud,
    /// stunnel 5.
    Stunnel,
}

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialectCommand {
    /// To serve, or to test the configuration.
    Run(Invocation),
    /// Its version.
    Version,
    /// How it is used.
    Help,
    /// The configuration that holds without any.
    Defaults,
}

/// Why a command line is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandLineError {
    /// It does not fit the grammar.
    #[error("{0}\nInvalid command line parameters.")]
    Grammar(#[from] clap::Error),
    /// It names two files.
    #[error("one --config is read, and there are two")]
    TwoFiles,
    /// It names no file.
    #[error("Invalid configuration file name \"{0}\"")]
    FileName(String),
}

/// A command line of the program, read but not yet understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The configuration file; `-` is standard input.
    pub file: Option<String>,
    /// Whether the configuration is only tested.
    pub is_test: bool,
    /// Options and their values, in their order; the file stands where it was named.
    steps: Vec<InvocationStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum InvocationStep {
    /// The configuration file is read here.
    File,
    /// A setting and its value.
    Set(&'static str, String),
}

/// What a configuration becomes.
#[derive(Debug, Default)]
pub struct Translation {
    /// The same as a file of ours has it. Paths are absolute.
    pub table: Table,
    /// What is wrong with it, by line.
    pub problems: Vec<Problem>,
    /// What became of each setting that was given.
    pub report: Vec<Remark>,
    /// Whether the program would go into the background.
    pub is_daemon: bool,
    settings: &'static [Setting],
    origins: HashMap<String, Vec<usize>>,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Hitch, Self::Stud, Self::Stunnel];

    /// The name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hitch => "hitch",
            Self::Stud => "stud",
            Self::Stunnel => "stunnel",
        }
    }

    /// The dialect of a program; Debian calls one `stunnel4`.
    pub fn named(program: &str) -> Option<Self> {
        let program = if program == "stunnel4" {
            "stunnel"
        } else {
            program
        };
        Self::ALL
            .into_iter()
            .find(|dialect| dialect.name() == program)
    }

    /// Its settings, in the order of the page.
    pub fn settings(self) -> &'static [Setting] {
        match self {
            Self::Hitch => hitch::SETTINGS,
            Self::Stud => &stud::SETTINGS,
            Self::Stunnel => stunnel::SETTINGS,
        }
    }

    /// Reads a command line, without the name of the program.
    ///
    /// # Errors
    /// What the program would say.
    pub fn command(self, arguments: &[String]) -> Result<DialectCommand, CommandLineError> {
        match self {
            Self::Hitch => hitch::command(arguments),
            Self::Stud => stud::command(arguments),
            Self::Stunnel => stunnel::command(arguments),
        }
    }

    /// Reads a configuration: what a command line says, and the text of the file that it names, if it names one. Relative
    /// paths start at `folder`. Linear in the size of the text, and of the `parts` that it includes.
    pub fn translate(
        self,
        invocation: &Invocation,
        text: &[u8],
        folder: &Path,
        parts: &dyn Parts,
    ) -> Translation {
        match self {
            Self::Hitch => hitch::translate(invocation, text, folder),
            Self::Stud => stud::translate(invocation, text, folder),
            Self::Stunnel => stunnel::translate(text, folder, parts),
        }
    }
}

impl Invocation {
    /// That of a program which is given nothing but a file.
    pub fn of_file(file: &str) -> Self {
        Self {
            file: Some(file.to_owned()),
            is_test: false,
            steps: vec![InvocationStep::File],
        }
    }
}

impl Translation {
    /// Whether there is a key, such as `process.user`.
    pub fn names(&self, path: &str) -> bool {
        self.origins.contains_key(path)
    }

    /// What a key comes from, or the key above it that is known.
    fn origin(&self, path: &str) -> Option<&Remark> {
        let mut path = path;
        loop {
            if let Some(remark) = self.origins.get(path).and_then(|found| found.first()) {
                return Some(&self.report[*remark]);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// Says a problem of the table in the words of whoever wrote the settings.
    pub fn place(&self, problem: &mut Problem) {
        let Some(remark) = self.origin(&problem.path) else {
            let key = key(&problem.path);
            let setting = self.settings.iter().find(|setting| setting.ours == key);
            problem.path = setting.map_or(key, |setting| setting.theirs.to_owned());
            return;
        };
        problem.path = builder::name(remark);
        problem.file.clone_from(&remark.file);
        problem.line = remark.line;
        if problem.value.is_none() && !problem.fault.starts_with("missing") {
            problem.value = Some(format!("{:?}", remark.value));
        }
    }

    /// One line for each setting that does not do here what it does there.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        let told =
            |remark: &&Remark| matches!(remark.verdict, Support::Different | Support::Ignored);
        self.report.iter().filter(told).map(|remark| {
            let place = match remark.place() {
                place if place.is_empty() => place,
                place => place + ": ",
            };
            format!(
                "{place}{}: {}: {}",
                builder::name(remark),
                remark.verdict.word(),
                remark.why
            )
        })
    }
}

/// A key path without the names and numbers of sections: the key as the documentation has it.
fn key(path: &str) -> String {
    let parts = path
        .split('[')
        .map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}

/// A configuration that includes no other file.
#[cfg(test)]
static NO_PARTS: std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> =
    std::collections::BTreeMap::new();
