//! Translates stunnel's configuration file.
//!
//! A file consists of a global part and `[service]` sections of `name = value` lines. `#` and `;`
//! begin comments, names are case-insensitive, and the files of a folder may be included. Settings
//! of the global part are defaults of all services. `table` lists the settings, `service` stores
//! the settings of one service, `lines` its lines, `reader` translates them to listeners, policies
//! and backends, and `tls` translates the TLS settings.

mod lines;
mod reader;
mod service;
mod table;
#[cfg(test)]
mod tests;
mod tls;

use std::path::Path;

use self::lines::LeftOut;
use self::reader::StunnelTranslator;
pub(super) use self::table::SETTINGS;
use super::builder::SettingId;
use super::invocation::{CommandLineError, DialectCommand, Invocation};
use super::setting::Setting;
use super::translation::Translation;
use becket_config::error::{Problem, reason};
use becket_config::parts::{IncludedFiles, MOST_BYTES};

/// Parses a command line of stunnel.
pub(super) fn command(arguments: &[String]) -> Result<DialectCommand, CommandLineError> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => Ok(DialectCommand::Run(Invocation::of_file(DEFAULT_FILE))),
        ["-help"] => Ok(DialectCommand::Help),
        ["-version"] => Ok(DialectCommand::Version),
        ["-fd", "0"] | ["-"] => Ok(DialectCommand::Run(Invocation::of_file("-"))),
        [file] if !file.starts_with('-') => Ok(DialectCommand::Run(Invocation::of_file(file))),
        [word, ..] => Err(CommandLineError::FileName(word.to_owned())),
    }
}

/// Translates a configuration of stunnel.
pub(super) fn translate(text: &[u8], folder: &Path, parts: &dyn IncludedFiles) -> Translation {
    read(text, folder, parts, LeftOut::new()).0
}

/// Translates a configuration of stunnel, and omits services with faults, which are reported as
/// lost. Returns every fault if one is outside of services, or if all services have faults.
pub(super) fn migrated(text: &[u8], folder: &Path, parts: &dyn IncludedFiles) -> Translation {
    let (whole, mut left_out) = read(text, folder, parts, LeftOut::new());
    if left_out.is_empty() {
        return whole;
    }
    for _ in 0..MOST_PASSES {
        let (rest, faulty) = read(text, folder, parts, left_out.clone());
        if rest.problems.is_empty() {
            return rest;
        }
        // A service that refers to an omitted service is faulty as well, so the next pass omits it.
        left_out.extend(faulty);
    }
    whole
}

/// Translates a configuration without the services in `left_out`. Also returns the services with
/// faults.
fn read(
    text: &[u8],
    folder: &Path,
    parts: &dyn IncludedFiles,
    left_out: LeftOut,
) -> (Translation, LeftOut) {
    let mut reader = StunnelTranslator::new(folder, left_out);
    let mut included = Included {
        parts,
        depth: 0,
        entries: MOST_ENTRIES,
        bytes: MOST_BYTES,
    };
    included.read(text, &mut reader);
    reader.finish()
}

/// Opens included files within limits.
struct Included<'p> {
    parts: &'p dyn IncludedFiles,
    depth: usize,
    /// Number of folders and files that may still be included.
    entries: usize,
    bytes: u64,
}

impl Included<'_> {
    /// Reads the lines of the file or of an included file.
    fn read(&mut self, text: &[u8], reader: &mut StunnelTranslator) {
        let text = String::from_utf8_lossy(text);
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        for (number, line) in text.lines().enumerate() {
            if reader.out.is_full() {
                break;
            }
            let (number, line) = (number + 1, line.trim());
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
            {
                reader.begin(name, number);
                continue;
            }
            let given = line.split_once('=');
            let given = given.map(|(name, value)| (name.trim_end(), value.trim_start()));
            let includes = given.is_some_and(|(name, _)| name.eq_ignore_ascii_case(INCLUDE));
            if !reader.owns(number) && !includes {
                continue;
            }
            if let Some((name, value)) = given {
                match setting(reader, name, number) {
                    Some(setting) if setting.theirs == INCLUDE => {
                        let origin = reader.out.note(setting, Some(number), value);
                        self.include(value, origin, reader);
                    }
                    Some(setting) => reader.take(setting, number, value),
                    None => {}
                }
            } else {
                let problem = Problem::new("", "no '=' found").line(number).text(line);
                reader
                    .out
                    .problem(problem.accepted("NAME = VALUE, [service], or # or ; and a comment"));
            }
        }
    }

    /// Reads the files of a folder in the order of their names, as if they were part of this file.
    fn include(&mut self, folder: &str, origin: SettingId, reader: &mut StunnelTranslator) {
        let at = reader.out.place(folder);
        if self.depth >= DEEPEST {
            let accepted = format!("at most {DEEPEST} levels of included files");
            return reader.out.refuse(origin, "included too deep", accepted);
        }
        let too_many = || format!("at most {MOST_ENTRIES} folders and files");
        if self.entries == 0 {
            return reader.out.refuse(origin, TOO_MANY, too_many());
        }
        let found = match self.parts.list(Path::new(&at)) {
            Ok(found) => found,
            Err(error) => return reader.out.refuse(origin, reason(&error), A_FOLDER),
        };
        // An empty folder counts as well, because listing it takes time.
        let Some(left) = self.entries.checked_sub(1 + found.len()) else {
            return reader.out.refuse(origin, TOO_MANY, too_many());
        };
        self.entries = left;
        for path in found {
            if reader.out.is_full() {
                return;
            }
            let text = match self.parts.text(&path, self.bytes) {
                Ok(Some(text)) => text,
                Ok(None) => continue,
                Err(error) => {
                    let fault = format!("{}: {}", path.display(), reason(&error));
                    return reader.out.refuse(origin, fault, A_FOLDER);
                }
            };
            self.bytes = self.bytes.saturating_sub(text.len() as u64);
            self.depth += 1;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let part = format!("{}/{name}", folder.trim_end_matches('/'));
            // The name appears in comments and log lines, so it is escaped.
            let outer = reader
                .out
                .enter(Some(part.escape_debug().to_string().into()));
            self.read(&text, reader);
            reader.out.enter(outer);
            self.depth -= 1;
        }
    }
}

/// Returns the setting with this name, if it is allowed here.
fn setting(reader: &mut StunnelTranslator, name: &str, line: usize) -> Option<&'static Setting> {
    let is_global = reader.is_global();
    let known = SETTINGS
        .iter()
        .filter(|setting| is_global || !table::GLOBAL.contains(&setting.theirs));
    let accepted = "the settings of stunnel(8), global ones before the first [service]";
    let place = (name, line);
    reader.out.find(known, place, "not valid here", accepted)
}

const INCLUDE: &str = "include";
const TOO_MANY: &str = "too many parts";
const A_FOLDER: &str = "a folder with parts of the configuration";
/// Maximum depth, because a folder may include itself.
const DEEPEST: usize = 8;
const MOST_ENTRIES: usize = 4096;
/// Maximum number of passes that omit faulty services. Two suffice unless the file has more faults
/// than are reported.
const MOST_PASSES: usize = 4;
/// Default configuration file on Debian.
const DEFAULT_FILE: &str = "/etc/stunnel/stunnel.conf";
