//! Translates configurations of hitch, stud, stunnel, HAProxy and nginx to tables of `becket.toml`.
//!
//! This crate parses the files and command lines of these programs, and records the origin of each
//! translated key. becket validates the table like its own file, and an error names the setting and
//! the line of the original file. The crate opens no file: the caller opens the [`IncludedFiles`]
//! that a configuration includes.
//!
//! Main types: [`Dialect`] is a program that becket replaces, [`MigrationSource`] a program whose
//! file `becket migrate` converts, [`Translation`] the table with its problems, and [`Remark`] the
//! support of a setting. Remarks come from one table per dialect; becket shows them at start, in
//! the report of a migration and in `docs/reference/drop-in.md`.
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
//! `ciphers` reads cipher strings of OpenSSL, `command_line` reads command lines, [`migration`]
//! writes TOML, and [`page`] the help of a program.

mod builder;
mod ciphers;
mod command_line;
mod directive;
#[cfg(test)]
mod fixture;
mod haproxy;
mod hitch;
mod invocation;
pub mod migration;
mod nginx;
pub mod page;
mod sections;
mod setting;
mod stud;
mod stunnel;
mod translation;

use std::path::Path;

pub use self::invocation::{CommandLineError, DialectCommand, Invocation};
pub use self::setting::{Remark, Setting, SettingSupport};
pub use self::translation::Translation;
use becket_config::parts::IncludedFiles;

/// A program that becket replaces: becket accepts its command line and its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// hitch up to 1.8.
    Hitch,
    /// stud 0.3.
    Stud,
    /// stunnel 5.
    Stunnel,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Self; 3] = [Self::Hitch, Self::Stud, Self::Stunnel];

    /// Returns the name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hitch => "hitch",
            Self::Stud => "stud",
            Self::Stunnel => "stunnel",
        }
    }

    /// Returns the dialect of a program; Debian calls stunnel `stunnel4`.
    pub fn named(program: &str) -> Option<Self> {
        match program {
            "hitch" => Some(Self::Hitch),
            "stud" => Some(Self::Stud),
            "stunnel" | "stunnel4" => Some(Self::Stunnel),
            _ => None,
        }
    }

    /// Returns the settings in the order of `docs/reference/drop-in.md`.
    pub fn settings(self) -> &'static [Setting] {
        match self {
            Self::Hitch => hitch::SETTINGS,
            Self::Stud => stud::SETTINGS,
            Self::Stunnel => stunnel::SETTINGS,
        }
    }

    /// Parses a command line without the name of the program.
    ///
    /// # Errors
    /// The command line is invalid.
    pub fn command(self, arguments: &[String]) -> Result<DialectCommand, CommandLineError> {
        match self {
            Self::Hitch | Self::Stud => hitch::command(self.name(), self.settings(), arguments),
            Self::Stunnel => stunnel::command(arguments),
        }
    }

    /// Translates a configuration: the options of a command line, and `text`, the content of its
    /// file. Relative paths start at `folder`. The cost is linear in the size of the text and of
    /// the included `parts`.
    pub fn translate(
        self,
        invocation: &Invocation,
        text: &[u8],
        folder: &Path,
        parts: &dyn IncludedFiles,
    ) -> Translation {
        match self {
            Self::Hitch => hitch::translate(invocation, text, folder),
            Self::Stud => stud::translate(invocation, text, folder),
            Self::Stunnel => stunnel::translate(text, folder, parts),
        }
    }
}

/// A program whose configuration `becket migrate` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationSource {
    /// A program that becket can also replace.
    DropIn(Dialect),
    /// HAProxy up to version 3.
    Haproxy,
    /// nginx 1.
    Nginx,
}

impl MigrationSource {
    /// Returns the name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::DropIn(dialect) => dialect.name(),
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
        }
    }

    /// Returns the program with this name.
    pub fn named(program: &str) -> Option<Self> {
        match program {
            "haproxy" => Some(Self::Haproxy),
            "nginx" => Some(Self::Nginx),
            program => Dialect::named(program).map(Self::DropIn),
        }
    }

    /// Translates a configuration file. Relative paths start at `folder`. The cost is linear in the
    /// size of the text and of the `parts` that it includes.
    pub fn translate(self, text: &[u8], folder: &Path, parts: &dyn IncludedFiles) -> Translation {
        match self {
            Self::DropIn(Dialect::Stunnel) => stunnel::migrated(text, folder, parts),
            Self::DropIn(Dialect::Hitch) => hitch::migrated(text, folder),
            Self::DropIn(Dialect::Stud) => stud::translate(&Invocation::of_file(""), text, folder),
            Self::Haproxy => haproxy::translate(text, folder, parts),
            Self::Nginx => nginx::translate(text, folder, parts),
        }
    }
}

/// A configuration that includes no other file.
#[cfg(test)]
static NO_PARTS: std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> =
    std::collections::BTreeMap::new();
