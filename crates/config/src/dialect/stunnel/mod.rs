//! stunnel: its file, and what it means here.
//!
//! A file has a global part and `[service]` sections of `name = value` lines; `#` and `;` begin comments, names are read in
//! any case. What the global part says of services holds for all that do not say it themselves. `table` has the settings,
//! `service` the settings of one service, `reader` makes listeners, policies and backends of them, `tls` what is about TLS.

mod reader;
mod service;
mod table;
#[cfg(test)]
mod tests;
mod tls;

use std::path::Path;

use self::reader::Reader;
pub(super) use self::table::SETTINGS;
use super::{Command, Invocation, Translation};
use crate::error::{Problem, shortened};
use crate::notation::meant;

/// Reads a command line of stunnel.
pub(super) fn command(arguments: &[String]) -> Result<Command, String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => Ok(Command::Run(Invocation::of_file(DEFAULT_FILE))),
        ["-help"] => Ok(Command::Help),
        ["-version"] => Ok(Command::Version),
        ["-fd", "0"] | ["-"] => Ok(Command::Run(Invocation::of_file("-"))),
        ["-sockets" | "-options" | "-fd", ..] => {
            Err(format!("{}: not known here", words.join(" ")))
        }
        [file] if !file.starts_with('-') => Ok(Command::Run(Invocation::of_file(file))),
        [word, ..] => Err(format!("Invalid configuration file name \"{word}\"")),
    }
}

/// Reads a configuration of stunnel.
pub(super) fn translate(text: &[u8], folder: &Path) -> Translation {
    let text = String::from_utf8_lossy(text);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut reader = Reader::new(folder);
    for (number, line) in text.lines().enumerate() {
        if reader.draft.is_full() {
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
        } else if let Some((name, value)) = line.split_once('=') {
            setting(&mut reader, name.trim_end(), number, value.trim_start());
        } else {
            let problem = Problem {
                line: Some(number),
                ..Problem::new("", "no '=' found").text(line)
            };
            reader
                .draft
                .problem(problem.accepted("NAME = VALUE, [service], or # or ; and a comment"));
        }
    }
    reader.finish()
}

/// Takes a setting of the file.
fn setting(reader: &mut Reader, name: &str, line: usize, value: &str) {
    let found = SETTINGS
        .iter()
        .find(|setting| setting.theirs.eq_ignore_ascii_case(name));
    match found {
        Some(setting) if reader.is_global() || !table::GLOBAL.contains(&setting.theirs) => {
            reader.take(setting, line, value)
        }
        _ if reader.draft.is_full() => {}
        found => {
            let names = SETTINGS.iter().map(|setting| setting.theirs);
            let close = Some(name).filter(|name| found.is_none() && name.len() < 64);
            let fault = match close.and_then(|name| meant(name, names)) {
                Some(close) => format!("not valid here (did you mean {close}?)"),
                None => "not valid here".to_owned(),
            };
            let problem = Problem {
                line: Some(line),
                ..Problem::new(shortened(name), fault)
            };
            reader
                .draft
                .problem(problem.accepted(
                    "the settings of stunnel(8), global ones before the first [service]",
                ));
        }
    }
}

/// Debian's.
const DEFAULT_FILE: &str = "/etc/stunnel/stunnel.conf";
