//! Translates configuration files of HAProxy up to version 3.
//!
//! `table` lists directives and options, and `reader` parses the sections. `listeners` translates
//! frontends, `conditions` their routes, and `servers` backends.

mod conditions;
mod listeners;
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

/// Translates a configuration of HAProxy. The cost is linear in the size of the text and of the
/// certificate lists that it names.
pub(super) fn translate(text: &[u8], folder: &Path, parts: &dyn IncludedFiles) -> Translation {
    let mut reader = HaproxyTranslator::new(folder, parts);
    let text = String::from_utf8_lossy(text);
    for (index, line) in text.lines().enumerate() {
        let read = match split(line) {
            _ if text.len() > MOST_TEXT => Err("a file of more than 1 MiB"),
            read => read,
        };
        match read {
            Ok(words) if reader.out.count(1) => reader.take(index + 1, &words),
            Ok(_) => break,
            Err(fault) => {
                let problem = Problem::new("", fault).line(index + 1).text(line);
                let accepted = "the lines and values that apply, in at most 64 words";
                reader.out.problem(problem.accepted(accepted));
            }
        }
        if reader.out.is_full() || text.len() > MOST_TEXT {
            break;
        }
    }
    reader.finish()
}

/// Splits a line into words, as HAProxy does: blanks separate words, `#` begins a comment, and a
/// backslash escapes the next character. Within `'..'` no character is special; within `".."` only
/// backslashes and variables are.
///
/// # Errors
/// The line has an unfinished quote or escape, a variable or condition, or too many words.
fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => {
                let kept = match chars.next() {
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some(c) => c,
                    None => return Err("a backslash at the end of a line"),
                };
                word.get_or_insert_default().push(kept);
            }
            ('$', Some('"')) => return Err("variables of the environment are not read"),
            ('#', None) => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("quotes that do not end");
    }
    words.extend(word);
    let conditions = [".if", ".elif", ".else", ".endif"];
    if words
        .first()
        .is_some_and(|it| conditions.contains(&it.as_str()))
    {
        return Err("conditions are not read");
    }
    if words.len() > MOST_WORDS {
        return Err("more than 64 words");
    }
    Ok(words)
}

/// HAProxy's own limit.
const MOST_WORDS: usize = 64;
