//! HAProxy 3 and before: what its file means here.
//!
//! `lexer` splits lines, `table` has the directives and options, `reader` the sections. `listeners` makes listeners of
//! frontends, with routes of the `conditions`; `servers` makes backends, `process` everything else.

mod conditions;
mod lexer;
mod listeners;
mod process;
mod reader;
mod servers;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

use self::reader::HaproxyTranslator;
use super::directive::MOST_TEXT;
use super::translation::Translation;
use becket_config::error::Problem;
use becket_config::parts::IncludedFiles;

/// Reads a configuration of HAProxy. Linear in the size of the text and of the lists of certificates that it names.
pub(super) fn translate(text: &[u8], folder: &Path, parts: &dyn IncludedFiles) -> Translation {
    let mut reader = HaproxyTranslator::new(folder, parts);
    let text = String::from_utf8_lossy(text);
    for (index, line) in text.lines().enumerate() {
        let read = match lexer::words(line) {
            _ if text.len() > MOST_TEXT => Err("a file of more than 1 MiB"),
            read => read,
        };
        match read {
            Ok(words) if reader.out.count(1) => reader.take(index + 1, &words),
            Ok(_) => break,
            Err(fault) => {
                let problem = Problem {
                    line: Some(index + 1),
                    ..Problem::new("", fault).text(line)
                };
                let accepted = "lines of at most 64 words, without variables";
                reader.out.problem(problem.accepted(accepted));
            }
        }
        if reader.out.is_full() || text.len() > MOST_TEXT {
            break;
        }
    }
    reader.finish()
}
