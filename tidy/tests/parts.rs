//! The lexical parts of a Rust source: code, comments and literals.
//!
//! The scanner recognizes lexical forms only; it does not parse the language.

pub(crate) enum Part<'a> {
    Code(&'a str),
    Comment(&'a str),
    /// A string or a character, with its quotes.
    Literal(&'a str),
}

/// Splits a source into its parts.
pub(crate) fn parts(source: &str) -> Vec<Part<'_>> {
    let mut scanner = Scanner {
        rest: source,
        parts: Vec::new(),
    };
    while !scanner.rest.is_empty() {
        scanner.step();
    }
    scanner.parts
}

/// Replaces comments, strings and characters with spaces. Keeps line breaks, so that lines can be counted.
pub(crate) fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    for part in parts(source) {
        match part {
            Part::Code(text) => code.push_str(text),
            Part::Comment(text) | Part::Literal(text) => {
                code.extend(text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            }
        }
    }
    code
}

struct Scanner<'a> {
    rest: &'a str,
    parts: Vec<Part<'a>>,
}

impl<'a> Scanner<'a> {
    fn step(&mut self) {
        if self.rest.starts_with("//") {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.take(end, Part::Comment);
        } else if self.rest.starts_with("/*") {
            self.take_comment();
        } else if let Some(hashes) = raw_string(self.rest) {
            let closing = format!("\"{}", "#".repeat(hashes));
            let open = hashes + self.rest.find('"').unwrap_or_default() - hashes + 1;
            let end = self.rest[open..]
                .find(&closing)
                .map_or(self.rest.len(), |at| open + at + closing.len());
            self.take(end, Part::Literal);
        } else if self.rest.starts_with('"') {
            self.take(quoted(self.rest, '"'), Part::Literal);
        } else if is_character(self.rest) {
            self.take(quoted(self.rest, '\''), Part::Literal);
        } else {
            self.take_word();
        }
    }

    /// Consumes a whole identifier, so that an `r` or `b` within it does not begin a raw or byte string. Otherwise
    /// consumes one character.
    fn take_word(&mut self) {
        let word = self
            .rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let first = self.rest.chars().next().map_or(0, char::len_utf8);
        let prefix = matches!(&self.rest[..word], "r" | "b" | "br" | "c" | "cr");
        let bytes = if prefix { first } else { word.max(first) };
        self.take(bytes, Part::Code);
    }

    fn take_comment(&mut self) {
        let (mut depth, mut at) = (0, 0);
        while at < self.rest.len() {
            if self.rest[at..].starts_with("/*") {
                (depth, at) = (depth + 1, at + 2);
            } else if self.rest[at..].starts_with("*/") {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    break;
                }
            } else {
                at += self.rest[at..].chars().next().map_or(1, char::len_utf8);
            }
        }
        self.take(at, Part::Comment);
    }

    fn take(&mut self, bytes: usize, part: fn(&'a str) -> Part<'a>) {
        let (taken, rest) = self.rest.split_at(bytes);
        self.parts.push(part(taken));
        self.rest = rest;
    }
}

/// Returns the number of `#` in the raw string at the start of `text`.
fn raw_string(text: &str) -> Option<usize> {
    let after = ["br", "cr", "r"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))?;
    let unhashed = after.trim_start_matches('#');
    unhashed
        .starts_with('"')
        .then(|| after.len() - unhashed.len())
}

/// Returns whether a character literal, not a lifetime, is at the start of `text`.
fn is_character(text: &str) -> bool {
    let mut chars = text.chars();
    if chars.next() != Some('\'') {
        return false;
    }
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

/// Returns the number of bytes up to and including the closing quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[test]
fn comments_strings_and_characters_are_blanked_and_lines_kept() {
    let source = "a /* x /* y */ z */ b // c\n\"d\\\"}\" e r#\"f\"}\"# g '{' h '\\'' b\"i\" bar\"j\"\n'k: &'l str";
    let code = code_of(source);
    assert_eq!(code.lines().count(), 3);
    let words: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(
        words,
        ["a", "b", "e", "g", "h", "b", "bar", "'k:", "&'l", "str"]
    );
}
