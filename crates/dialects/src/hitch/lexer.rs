//! The grammar of hitch.conf: `NAME = VALUE`, where a value is a word, `"text"` or, for some names, a `{ block }`.
//!
//! As in hitch, `#` begins a comment, line ends mean nothing, text runs over lines and knows no escapes, and characters
//! that mean nothing (`;`, `,`) are skipped. After a fault, reading continues with the next `NAME =`.

use becket_config::error::Problem;

/// A setting with its value, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Assignment {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) value: Value,
}

/// A value as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Value {
    /// In quotes, or on a command line.
    Text(String),
    /// Without quotes: one, or for `tls-protos` more.
    Words(Vec<String>),
    /// In braces.
    Block(Vec<Assignment>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lexeme<'t> {
    Equals,
    Open,
    Close,
    Word(&'t str),
    Text(&'t str),
}

/// Reads a text. Stops after [`MOST_FAULTS`].
pub(super) fn read(text: &str) -> (Vec<Assignment>, Vec<Problem>) {
    let mut parser = Parser::new(text);
    let mut settings = Vec::new();
    while parser.continues() {
        if parser.begins_setting() {
            settings.extend(parser.setting(false));
        } else {
            let accepted = "a setting such as backend = \"[127.0.0.1]:8000\"";
            parser.complain("what is no NAME = VALUE", accepted);
            parser.skip(|_| false);
        }
    }
    (settings, parser.problems)
}

struct Parser<'t> {
    /// With their lines.
    lexemes: Vec<(Lexeme<'t>, usize)>,
    next: usize,
    last_line: usize,
    problems: Vec<Problem>,
}

impl<'t> Parser<'t> {
    /// Splits a text into lexemes.
    fn new(text: &'t str) -> Self {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        let is_blank = |c: char| c.is_whitespace() || matches!(c, ';' | ',' | '\'');
        let mut parser = Self {
            lexemes: Vec::new(),
            next: 0,
            last_line: 1,
            problems: Vec::new(),
        };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let until = |ends: &dyn Fn(char) -> bool| rest.find(ends).unwrap_or(rest.len());
            let (length, lexeme) = match first {
                '#' => (until(&|c| c == '\n'), None),
                '=' => (1, Some(Lexeme::Equals)),
                '{' => (1, Some(Lexeme::Open)),
                '}' => (1, Some(Lexeme::Close)),
                '"' => match rest[1..].find('"') {
                    Some(end) => (end + 2, Some(Lexeme::Text(&rest[1..=end]))),
                    None => {
                        let shown = rest.lines().next().unwrap_or_default();
                        parser.fault(parser.last_line, "quotes that do not end", shown, QUOTED);
                        (rest.len(), None)
                    }
                },
                c if is_word(c) => {
                    let length = until(&|c| !is_word(c));
                    (length, Some(Lexeme::Word(&rest[..length])))
                }
                c if is_blank(c) => (until(&|c| !is_blank(c)), None),
                _ => {
                    let ends =
                        |c: char| c.is_whitespace() || matches!(c, '"' | '{' | '}' | '=' | '#');
                    let length = until(&ends);
                    parser.fault(
                        parser.last_line,
                        "characters that need quotes",
                        &rest[..length],
                        QUOTED,
                    );
                    (length, Some(Lexeme::Text(&rest[..length])))
                }
            };
            let (piece, tail) = rest.split_at(length);
            let line = parser.last_line;
            parser.lexemes.extend(lexeme.map(|lexeme| (lexeme, line)));
            parser.last_line += piece.matches('\n').count();
            rest = tail;
        }
        parser
    }

    fn fault(&mut self, line: usize, fault: &str, shown: &str, accepted: &str) {
        if self.problems.len() < MOST_FAULTS {
            let problem = Problem {
                line: Some(line),
                ..Problem::new("", fault).text(shown)
            };
            self.problems.push(problem.accepted(accepted));
        }
    }

    fn continues(&self) -> bool {
        self.next < self.lexemes.len() && self.problems.len() < MOST_FAULTS
    }

    fn peek(&self, ahead: usize) -> Option<Lexeme<'t>> {
        self.lexemes
            .get(self.next + ahead)
            .map(|(lexeme, _)| *lexeme)
    }

    /// Returns the line of the next lexeme, or the last one.
    fn line(&self) -> usize {
        self.lexemes
            .get(self.next)
            .map_or(self.last_line, |(_, line)| *line)
    }

    fn take(&mut self) -> Option<Lexeme<'t>> {
        let taken = self.peek(0);
        self.next += 1;
        taken
    }

    fn complain(&mut self, fault: &str, accepted: &str) {
        let shown = match self.peek(0) {
            Some(Lexeme::Word(text) | Lexeme::Text(text)) => text,
            Some(Lexeme::Equals) => "=",
            Some(Lexeme::Open) => "{",
            Some(Lexeme::Close) => "}",
            None => "",
        };
        self.fault(self.line(), fault, shown, accepted);
    }

    fn begins_setting(&self) -> bool {
        self.peek(1) == Some(Lexeme::Equals) && matches!(self.peek(0), Some(Lexeme::Word(_)))
    }

    /// Skips a lexeme, and all up to the next `NAME =` or one that `ends`.
    fn skip(&mut self, ends: impl Fn(Lexeme<'_>) -> bool) {
        self.next += 1;
        while self.peek(0).is_some_and(|lexeme| !ends(lexeme)) && !self.begins_setting() {
            self.next += 1;
        }
    }

    fn setting(&mut self, inside: bool) -> Option<Assignment> {
        let line = self.line();
        let Some(Lexeme::Word(name)) = self.take() else {
            return None;
        };
        self.take();
        let value = match self.peek(0) {
            Some(Lexeme::Text(text)) => {
                self.take();
                Value::Text(text.to_owned())
            }
            Some(Lexeme::Word(_)) if !self.begins_setting() => {
                let mut words = Vec::new();
                while let Some(Lexeme::Word(word)) = self.peek(0)
                    && !self.begins_setting()
                {
                    words.push(word.to_owned());
                    self.take();
                }
                Value::Words(words)
            }
            Some(Lexeme::Open) => Value::Block(self.block(inside)),
            _ => {
                self.complain("no value", "a word, \"text\" or { a block }");
                return None;
            }
        };
        let name = name.to_owned();
        Some(Assignment { name, line, value })
    }

    fn block(&mut self, inside: bool) -> Vec<Assignment> {
        let open = self.line();
        self.take();
        let mut settings = Vec::new();
        while self.continues() && self.peek(0) != Some(Lexeme::Close) {
            // A block of certificates may be in a block of a frontend, and none in that.
            let is_deeper = inside && self.peek(2) == Some(Lexeme::Open);
            if self.begins_setting() && !is_deeper {
                settings.extend(self.setting(true));
            } else {
                let accepted = "a setting such as cert = \"site.pem\"";
                self.complain("what is no NAME = VALUE of this block", accepted);
                if is_deeper {
                    self.take();
                } else {
                    self.skip(|lexeme| lexeme == Lexeme::Close);
                }
            }
        }
        if self.take().is_none() {
            let problem = Problem {
                line: Some(open),
                ..Problem::new("", "a block that does not end")
            };
            self.problems.push(problem.accepted("} after its settings"));
        }
        settings
    }
}

const QUOTED: &str = "text in \"quotes\"";
/// More faults than anybody corrects in one go.
const MOST_FAULTS: usize = 100;
