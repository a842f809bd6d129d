//! A Rust source with everything that is not code blanked out, line by line in place.
//!
//! Comments, strings and characters become spaces, so that what is left can be searched for words and braces. Line breaks
//! stay, so lengths can be counted. Not a compiler: it knows the lexical forms and nothing of their meaning.

/// Blanks out comments, strings and characters.
pub(crate) fn code_of(source: &str) -> String {
    let mut scanner = Scanner {
        rest: source,
        code: String::with_capacity(source.len()),
    };
    while !scanner.rest.is_empty() {
        scanner.step();
    }
    scanner.code
}

struct Scanner<'a> {
    rest: &'a str,
    code: String,
}

impl Scanner<'_> {
    fn step(&mut self) {
        if self.rest.starts_with("//") {
            let end = self.rest.find('\n').unwrap_or(self.rest.len());
            self.blank(end);
        } else if self.rest.starts_with("/*") {
            self.blank_comment();
        } else if let Some(hashes) = raw_string(self.rest) {
            let closing = format!("\"{}", "#".repeat(hashes));
            let open = hashes + self.rest.find('"').unwrap_or_default() - hashes + 1;
            let end = self.rest[open..]
                .find(&closing)
                .map_or(self.rest.len(), |at| open + at + closing.len());
            self.blank(end);
        } else if self.rest.starts_with('"') {
            self.blank(quoted(self.rest, '"'));
        } else if is_character(self.rest) {
            self.blank(quoted(self.rest, '\''));
        } else {
            self.keep_word();
        }
    }

    /// Keeps an identifier whole, so that its `r` or `b` does not begin a string; else one character.
    fn keep_word(&mut self) {
        let word = self
            .rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let first = self.rest.chars().next().map_or(0, char::len_utf8);
        let prefix = matches!(&self.rest[..word], "r" | "b" | "br" | "c" | "cr");
        let (kept, rest) = self
            .rest
            .split_at(if prefix { first } else { word.max(first) });
        self.code.push_str(kept);
        self.rest = rest;
    }

    fn blank_comment(&mut self) {
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
        self.blank(at);
    }

    fn blank(&mut self, bytes: usize) {
        let (gone, rest) = self.rest.split_at(bytes);
        self.code
            .extend(gone.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        self.rest = rest;
    }
}

/// The number of `#` of a raw string that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let after = ["br", "cr", "r"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))?;
    let unhashed = after.trim_start_matches('#');
    unhashed
        .starts_with('"')
        .then(|| after.len() - unhashed.len())
}

/// A character, and not a lifetime.
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

/// Bytes up to and with the closing quote.
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
fn comments_strings_and_characters_are_blanked_and_lines_stay() {
    let source = "a /* x /* y */ z */ b // c\n\"d\\\"}\" e r#\"f\"}\"# g '{' h '\\'' b\"i\" bar\"j\"\n'k: &'l str";
    let code = code_of(source);
    assert_eq!(code.lines().count(), 3);
    let words: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(
        words,
        ["a", "b", "e", "g", "h", "b", "bar", "'k:", "&'l", "str"]
    );
}
