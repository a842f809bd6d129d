//! The grammar of hitch.conf: `NAME = VALUE`, where a value is a word, `"text"` or, for some names, a `{ block }`.
//!
//! As hitch has it: `#` begins a comment, line ends mean nothing, text runs over lines and knows no escapes, and characters
//! that mean nothing (`;`, `,`) are passed over. Every fault is noted; reading goes on with the next `NAME =`.

use crate::error::Problem;

/// A setting with its value, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// In quotes; without them.
    Text(String),
    /// Without quotes: one, or for `tls-protos` more.
    Words(Vec<String>),
    /// In braces.
    Block(Vec<Given>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Equals,
    Open,
    Close,
    Word(String),
    Text(String),
}

/// Reads a text; faults go to `fault`.
pub(super) fn read(text: &str, mut fault: impl FnMut(Problem)) -> Vec<Given> {
    let tokens = tokens(text, &mut fault);
    let end = 1 + text.bytes().filter(|byte| *byte == b'\n').count();
    let mut parser = Parser {
        tokens: &tokens,
        at: 0,
        end,
        fault: &mut fault,
    };
    let mut all = parser.settings(false);
    while parser.at < tokens.len() {
        // A brace that closes nothing.
        parser.complain(
            "what is no NAME = VALUE",
            "a setting such as backend = \"[127.0.0.1]:8000\"",
        );
        parser.at += 1;
        all.extend(parser.settings(false));
    }
    all
}

fn tokens(text: &str, fault: &mut impl FnMut(Problem)) -> Vec<(Token, usize)> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut rest = text;
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    while let Some(first) = rest.chars().next() {
        let until = |ends: &dyn Fn(char) -> bool| rest.find(ends).unwrap_or(rest.len());
        let mut complain = |what: &str, shown: &str| {
            let problem = Problem {
                line: Some(line),
                ..Problem::new("", what).text(shown)
            };
            fault(problem.accepted("text in \"quotes\""));
        };
        let (length, token) = match first {
            '#' => (until(&|c| c == '\n'), None),
            '=' => (1, Some(Token::Equals)),
            '{' => (1, Some(Token::Open)),
            '}' => (1, Some(Token::Close)),
            '"' => match rest[1..].find('"') {
                Some(end) => (end + 2, Some(Token::Text(rest[1..=end].to_owned()))),
                None => {
                    complain(
                        "quotes that do not end",
                        rest.lines().next().unwrap_or_default(),
                    );
                    (rest.len(), None)
                }
            },
            c if is_word(c) => {
                let length = until(&|c| !is_word(c));
                (length, Some(Token::Word(rest[..length].to_owned())))
            }
            c if c.is_whitespace() || matches!(c, ';' | ',' | '\'') => (c.len_utf8(), None),
            _ => {
                let length =
                    until(&|c| c.is_whitespace() || matches!(c, '"' | '{' | '}' | '=' | '#'));
                let piece = &rest[..length];
                complain("characters that need quotes", piece);
                (length, Some(Token::Text(piece.to_owned())))
            }
        };
        tokens.extend(token.map(|token| (token, line)));
        let (piece, tail) = rest.split_at(length);
        line += piece.bytes().filter(|byte| *byte == b'\n').count();
        rest = tail;
    }
    tokens
}

struct Parser<'a, F> {
    tokens: &'a [(Token, usize)],
    at: usize,
    /// The last line.
    end: usize,
    fault: &'a mut F,
}

impl<F: FnMut(Problem)> Parser<'_, F> {
    fn token(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.at + ahead).map(|(token, _)| token)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |(_, line)| *line)
    }

    fn complain(&mut self, fault: &str, accepted: &str) {
        let shown = match self.token(0) {
            Some(Token::Word(text) | Token::Text(text)) => text.clone(),
            Some(Token::Equals) => "=".to_owned(),
            Some(Token::Open) => "{".to_owned(),
            Some(Token::Close) => "}".to_owned(),
            None => String::new(),
        };
        let problem = Problem {
            line: Some(self.line()),
            ..Problem::new("", fault).text(&shown)
        };
        (self.fault)(problem.accepted(accepted));
    }

    /// Whether `NAME =` begins here.
    fn begins(&self) -> bool {
        matches!(
            (self.token(0), self.token(1)),
            (Some(Token::Word(_)), Some(Token::Equals))
        )
    }

    /// Settings up to the brace that closes them, or to the end. Braces are never deeper than one in another.
    fn settings(&mut self, inside: bool) -> Vec<Given> {
        let mut all = Vec::new();
        while let Some(token) = self.token(0) {
            if *token == Token::Close {
                break;
            }
            match self.begins() {
                true => all.extend(self.setting(inside)),
                false => {
                    self.complain("what is no NAME = VALUE", "a setting such as workers = 4");
                    while self.token(0).is_some_and(|token| *token != Token::Close)
                        && !self.begins()
                    {
                        self.at += 1;
                    }
                }
            }
        }
        all
    }

    fn setting(&mut self, inside: bool) -> Option<Given> {
        let Some((Token::Word(name), line)) = self.tokens.get(self.at) else {
            return None;
        };
        self.at += 2;
        let value = match self.token(0) {
            Some(Token::Text(text)) => {
                let value = Value::Text(text.clone());
                self.at += 1;
                value
            }
            Some(Token::Word(_)) if !self.begins() => {
                let mut words = Vec::new();
                while let Some(Token::Word(word)) = self.token(0).filter(|_| !self.begins()) {
                    words.push(word.clone());
                    self.at += 1;
                }
                Value::Words(words)
            }
            Some(Token::Open) => Value::Block(self.block(inside)),
            _ => {
                self.complain("no value", "a word, \"text\" or { a block }");
                return None;
            }
        };
        Some(Given {
            name: name.clone(),
            line: *line,
            value,
        })
    }

    fn block(&mut self, inside: bool) -> Vec<Given> {
        let open = self.line();
        self.at += 1;
        // A block of certificates may be in a block of a frontend; what is deeper is closed like it, and its names refused.
        let settings = if inside {
            self.flat()
        } else {
            self.settings(true)
        };
        if self.token(0) == Some(&Token::Close) {
            self.at += 1;
        } else {
            let problem = Problem {
                line: Some(open),
                ..Problem::new("", "a block that does not end")
            };
            (self.fault)(problem.accepted("} after its settings"));
        }
        settings
    }

    /// The settings of a block in which there is no other.
    fn flat(&mut self) -> Vec<Given> {
        let mut all = Vec::new();
        while let Some(token) = self.token(0) {
            if *token == Token::Close {
                break;
            }
            let deeper = matches!(self.token(2), Some(Token::Open));
            if self.begins() && !deeper {
                all.extend(self.setting(true));
            } else {
                self.complain(
                    "what is no NAME = VALUE of this block",
                    "a setting such as cert = \"site.pem\"",
                );
                self.at += 1;
            }
        }
        all
    }
}
