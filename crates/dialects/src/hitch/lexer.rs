//! The grammar of hitch.conf: `NAME = VALUE`, where a value is a word, `"text"` or, for some names, a `{ block }`.
//!
//! As hitch has it: `#` begins a comment, line ends mean nothing, text runs over lines and knows no escapes, and characters
//! that mean nothing (`;`, `,`) are passed over. Every fault is noted; reading goes on with the next `NAME =`. A setting is given out as soon
//! as it was read, so that a long text takes no room beside itself.

use std::collections::VecDeque;

use becket_config::error::Problem;

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

/// What is in a text.
#[derive(Debug)]
pub(super) enum Read {
    Given(Given),
    Fault(Problem),
}

/// Reads a text until its end, or until `take` wants no more.
pub(super) fn read(text: &str, take: impl FnMut(Read) -> bool) {
    let mut parser = Parser {
        tokens: Tokens {
            rest: text,
            line: 1,
        },
        ahead: VecDeque::new(),
        goes_on: true,
        take,
    };
    while parser.goes_on && parser.token(0).is_some() {
        if parser.begins() {
            if let Some(given) = parser.setting(false) {
                parser.tell(Read::Given(given));
            }
        } else {
            parser.complain(
                "what is no NAME = VALUE",
                "a setting such as backend = \"[127.0.0.1]:8000\"",
            );
            parser.skip(|_| false);
        }
    }
}

#[derive(Debug)]
struct Tokens<'t> {
    rest: &'t str,
    line: usize,
}

impl Tokens<'_> {
    /// The next token with its line, and what is wrong with it. Nothing at the end.
    fn next(&mut self) -> Option<(Option<Token>, usize, Option<Problem>)> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        let rest = self.rest;
        let first = rest.chars().next()?;
        let until = |ends: &dyn Fn(char) -> bool| rest.find(ends).unwrap_or(rest.len());
        let line = self.line;
        let fault = |what: &str, shown: &str| {
            let problem = Problem {
                line: Some(line),
                ..Problem::new("", what).text(shown)
            };
            Some(problem.accepted("text in \"quotes\""))
        };
        let (length, token, problem) = match first {
            '#' => (until(&|c| c == '\n'), None, None),
            '=' => (1, Some(Token::Equals), None),
            '{' => (1, Some(Token::Open), None),
            '}' => (1, Some(Token::Close), None),
            '"' => match rest[1..].find('"') {
                Some(end) => (end + 2, Some(Token::Text(rest[1..=end].to_owned())), None),
                None => {
                    let shown = rest.lines().next().unwrap_or_default();
                    (rest.len(), None, fault("quotes that do not end", shown))
                }
            },
            c if is_word(c) => {
                let length = until(&|c| !is_word(c));
                (length, Some(Token::Word(rest[..length].to_owned())), None)
            }
            c if c.is_whitespace() || matches!(c, ';' | ',' | '\'') => {
                let means = |c: char| !(c.is_whitespace() || matches!(c, ';' | ',' | '\''));
                (until(&means), None, None)
            }
            _ => {
                let length =
                    until(&|c| c.is_whitespace() || matches!(c, '"' | '{' | '}' | '=' | '#'));
                let piece = &rest[..length];
                let problem = fault("characters that need quotes", piece);
                (length, Some(Token::Text(piece.to_owned())), problem)
            }
        };
        let (piece, tail) = rest.split_at(length);
        self.line += piece.bytes().filter(|byte| *byte == b'\n').count();
        self.rest = tail;
        Some((token, line, problem))
    }
}

struct Parser<'t, F> {
    tokens: Tokens<'t>,
    /// Read, and not yet taken: three at most.
    ahead: VecDeque<(Token, usize)>,
    goes_on: bool,
    take: F,
}

impl<F: FnMut(Read) -> bool> Parser<'_, F> {
    fn tell(&mut self, found: Read) {
        self.goes_on = self.goes_on && (self.take)(found);
    }

    fn token(&mut self, ahead: usize) -> Option<&Token> {
        while self.ahead.len() <= ahead {
            let (token, line, problem) = self.tokens.next()?;
            if let Some(problem) = problem {
                self.tell(Read::Fault(problem));
            }
            self.ahead.extend(token.map(|token| (token, line)));
        }
        self.ahead.get(ahead).map(|(token, _)| token)
    }

    /// Where the next token is, or the end.
    fn line(&mut self) -> usize {
        self.token(0);
        let next = self.ahead.front();
        next.map_or(self.tokens.line, |(_, line)| *line)
    }

    fn take(&mut self) -> Option<Token> {
        self.token(0);
        self.ahead.pop_front().map(|(token, _)| token)
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
        self.tell(Read::Fault(problem.accepted(accepted)));
    }

    /// Whether `NAME =` begins here.
    fn begins(&mut self) -> bool {
        self.token(1) == Some(&Token::Equals) && matches!(self.token(0), Some(Token::Word(_)))
    }

    /// Takes a token, and all behind it up to the next `NAME =` or one that `ends`.
    fn skip(&mut self, ends: impl Fn(&Token) -> bool) {
        self.take();
        while self.token(0).is_some_and(|token| !ends(token)) && !self.begins() {
            self.take();
        }
    }

    fn setting(&mut self, inside: bool) -> Option<Given> {
        let line = self.line();
        let Some(Token::Word(name)) = self.take() else {
            return None;
        };
        self.take();
        let is_next = self.begins();
        let value = match self.token(0) {
            Some(Token::Text(_)) => match self.take() {
                Some(Token::Text(text)) => Value::Text(text),
                _ => return None,
            },
            Some(Token::Word(_)) if !is_next => {
                let mut words = Vec::new();
                while matches!(self.token(0), Some(Token::Word(_))) && !self.begins() {
                    if let Some(Token::Word(word)) = self.take() {
                        words.push(word);
                    }
                }
                Value::Words(words)
            }
            Some(Token::Open) => Value::Block(self.block(inside)),
            _ => {
                self.complain("no value", "a word, \"text\" or { a block }");
                return None;
            }
        };
        Some(Given { name, line, value })
    }

    fn block(&mut self, inside: bool) -> Vec<Given> {
        let open = self.line();
        self.take();
        let mut all = Vec::new();
        while self.goes_on
            && all.len() < MOST_IN_BLOCK
            && self.token(0).is_some_and(|token| *token != Token::Close)
        {
            // A block of certificates may be in a block of a frontend, and none in that.
            let is_deeper = inside && self.token(2) == Some(&Token::Open);
            if self.begins() && !is_deeper {
                all.extend(self.setting(true));
            } else {
                let accepted = "a setting such as cert = \"site.pem\"";
                self.complain("what is no NAME = VALUE of this block", accepted);
                if is_deeper {
                    self.take();
                } else {
                    self.skip(|token| *token == Token::Close);
                }
            }
        }
        if self.token(0) == Some(&Token::Close) {
            self.take();
        } else {
            let problem = Problem {
                line: Some(open),
                ..Problem::new("", "a block that does not end")
            };
            self.tell(Read::Fault(problem.accepted("} after its settings")));
        }
        all
    }
}

/// More settings than a block has; each takes room until it ends.
const MOST_IN_BLOCK: usize = 100_000;
