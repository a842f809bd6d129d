//! The grammar of hitch.conf: `NAME = VALUE`. A value is a word, `"text"` or, for some names, a `{
//! block }`.
//!
//! As in hitch, `#` begins a comment, line ends are ignored, text may span lines and has no
//! escapes, and meaningless characters (`;`, `,`) are skipped. Parsing stops at the first error, as
//! in hitch.

use becket_config::error::Problem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Assignment {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Value {
    /// A quoted string, or a value from a command line.
    Text(String),
    /// Unquoted words; only `tls-protos` accepts more than one.
    Words(Vec<String>),
    Block(Vec<Assignment>),
}

impl Assignment {
    /// Returns the line of the setting; for a block, the line of the last setting in it.
    pub(super) fn last_line(&self) -> usize {
        match &self.value {
            Value::Block(inner) => inner
                .iter()
                .map(Self::last_line)
                .fold(self.line, usize::max),
            _ => self.line,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lexeme<'t> {
    /// `=`, `{` or `}`. An empty symbol marks the end of the input.
    Symbol(&'t str),
    Word(&'t str),
    Text(&'t str),
}

/// Lexemes with their line numbers; the last lexeme marks the end of the input.
type Lexemes<'l, 't> = &'l [(Lexeme<'t>, usize)];

/// Parses a configuration file.
///
/// # Errors
///
/// Returns the first syntax error.
pub(super) fn read(text: &str) -> Result<Vec<Assignment>, Problem> {
    let lexemes = lexemes(text)?;
    settings(&mut lexemes.as_slice(), 0)
}

fn lexemes(text: &str) -> Result<Vec<(Lexeme<'_>, usize)>, Problem> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let is_blank = |c: char| c.is_whitespace() || matches!(c, ';' | ',' | '\'');
    let mut lexemes = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let until = |ends: &dyn Fn(char) -> bool| rest.find(ends).unwrap_or(rest.len());
        let (length, lexeme) = match first {
            '#' => (until(&|c| c == '\n'), None),
            '=' | '{' | '}' => (1, Some(Lexeme::Symbol(&rest[..1]))),
            '"' => match rest[1..].find('"') {
                Some(end) => (end + 2, Some(Lexeme::Text(&rest[1..=end]))),
                None => {
                    let shown = rest.lines().next().unwrap_or_default();
                    return Err(fault(line, "unterminated quotes", shown, QUOTED));
                }
            },
            c if is_word(c) => {
                let length = until(&|c| !is_word(c));
                (length, Some(Lexeme::Word(&rest[..length])))
            }
            c if is_blank(c) => (until(&|c| !is_blank(c)), None),
            _ => {
                let shown = rest.split(char::is_whitespace).next().unwrap_or_default();
                return Err(fault(line, "characters that need quotes", shown, QUOTED));
            }
        };
        let (piece, tail) = rest.split_at(length);
        lexemes.extend(lexeme.map(|lexeme| (lexeme, line)));
        line += piece.matches('\n').count();
        rest = tail;
    }
    lexemes.push((Lexeme::Symbol(""), line));
    Ok(lexemes)
}

/// Parses settings up to the end of the input or of the current block.
fn settings(rest: &mut Lexemes<'_, '_>, depth: usize) -> Result<Vec<Assignment>, Problem> {
    let mut settings = Vec::new();
    loop {
        match *rest {
            [
                (Lexeme::Word(name), line),
                (Lexeme::Symbol("="), _),
                after @ ..,
            ] => {
                *rest = after;
                settings.push(Assignment {
                    name: (*name).to_owned(),
                    line: *line,
                    value: value(rest, depth)?,
                });
            }
            [(Lexeme::Symbol(""), _)] if depth == 0 => return Ok(settings),
            [(Lexeme::Symbol("}"), _), after @ ..] if depth > 0 => {
                *rest = after;
                return Ok(settings);
            }
            rest => {
                let accepted = "a setting such as backend = \"[127.0.0.1]:8000\"";
                return Err(next_fault(rest, "not NAME = VALUE", accepted));
            }
        }
    }
}

fn value(rest: &mut Lexemes<'_, '_>, depth: usize) -> Result<Value, Problem> {
    match *rest {
        [(Lexeme::Text(text), _), after @ ..] => {
            *rest = after;
            return Ok(Value::Text((*text).to_owned()));
        }
        // A certificate block may be in a frontend block; deeper blocks are not allowed.
        [(Lexeme::Symbol("{"), _), after @ ..] if depth < 2 => {
            *rest = after;
            return settings(rest, depth + 1).map(Value::Block);
        }
        _ => {}
    }
    let mut words = Vec::new();
    while let [(Lexeme::Word(word), _), after @ ..] = *rest
        && !matches!(after, [(Lexeme::Symbol("="), _), ..])
    {
        words.push((*word).to_owned());
        *rest = after;
    }
    if words.is_empty() {
        let accepted = "a word, \"text\" or { a block }";
        return Err(next_fault(rest, "no value", accepted));
    }
    Ok(Value::Words(words))
}

fn next_fault(rest: Lexemes<'_, '_>, what: &str, accepted: &str) -> Problem {
    let (lexeme, line) = rest.first().unwrap_or(&(Lexeme::Symbol(""), 1));
    let (Lexeme::Symbol(shown) | Lexeme::Word(shown) | Lexeme::Text(shown)) = lexeme;
    fault(*line, what, shown, accepted)
}

fn fault(line: usize, what: &str, shown: &str, accepted: &str) -> Problem {
    let problem = Problem::new("", what).line(line).text(shown);
    problem.accepted(accepted)
}

const QUOTED: &str = "text in \"quotes\"";
