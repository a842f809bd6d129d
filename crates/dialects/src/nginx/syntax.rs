//! The syntax of nginx.conf: statements of words that end with `;` or with a block, quotes, comments, and files that are included.

use std::io;
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::Chars;

use super::super::builder::MOST_DIRECTIVES;
use super::super::directive::MOST_TEXT;
use becket_config::error::{Problem, reason};
use becket_config::glob;
use becket_config::parts::{IncludedFiles, MOST_BYTES};

/// A directive as it is written. Its name is its first word.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) words: Vec<String>,
    pub(super) line: usize,
    /// The included file that has it.
    pub(super) file: Option<Rc<str>>,
    pub(super) block: Option<Vec<Self>>,
}

/// Reads a file and its included files, within limits.
pub(super) struct StatementReader<'p> {
    parts: &'p dyn IncludedFiles,
    folder: &'p Path,
    left: usize,
    bytes: u64,
    files: usize,
    depth: usize,
}

impl<'p> StatementReader<'p> {
    pub(super) fn new(folder: &'p Path, parts: &'p dyn IncludedFiles) -> Self {
        Self {
            parts,
            folder,
            left: MOST_DIRECTIVES,
            bytes: MOST_BYTES,
            files: MOST_FILES,
            depth: 0,
        }
    }

    /// Reads a text.
    ///
    /// # Errors
    /// The first fault.
    pub(super) fn read(
        &mut self,
        text: &str,
        file: Option<&Rc<str>>,
    ) -> Result<Vec<Statement>, Problem> {
        let fault = |line, fault: &str| {
            let problem = Problem {
                file: file.map(|file| Box::from(&**file)),
                line: Some(line),
                ..Problem::new("", fault)
            };
            problem.accepted("NAME WORDS; or NAME WORDS { .. }, in at most 1 MiB")
        };
        if text.len() > MOST_TEXT {
            return Err(fault(1, "a file of more than 1 MiB"));
        }
        let mut words = NginxWords {
            chars: text.chars().peekable(),
            line: 1,
        };
        let mut open: Vec<(Vec<Statement>, Statement)> = Vec::new();
        let mut list = Vec::new();
        let mut given = Vec::new();
        loop {
            let next = words.read_next();
            let line = words.line;
            let symbol = match next.map_err(|reason| fault(line, reason))? {
                None if open.is_empty() && given.is_empty() => return Ok(list),
                None => return Err(fault(line, "a directive or a block that does not end")),
                Some((word, true)) => {
                    given.push(word);
                    continue;
                }
                Some((symbol, false)) => symbol,
            };
            if given.is_empty() != (symbol == "}") {
                return Err(fault(line, "a ;, { or } too many"));
            }
            self.left = self.left.saturating_sub(1);
            if self.left == 0 || open.len() > DEEPEST {
                return Err(fault(line, "too many directives, or blocks in blocks"));
            }
            let mut statement = Statement {
                words: std::mem::take(&mut given),
                line,
                file: file.cloned(),
                block: None,
            };
            if symbol == "{" {
                open.push((std::mem::take(&mut list), statement));
                continue;
            } else if symbol == "}" {
                let Some((outer, opened)) = open.pop() else {
                    return Err(fault(line, "a ;, { or } too many"));
                };
                statement = opened;
                statement.block = Some(std::mem::replace(&mut list, outer));
            }
            let included = match &statement.words[..] {
                [name, path] if name == "include" && !path.ends_with("mime.types") => {
                    self.include(path, |reason| fault(line, reason))?
                }
                _ => Vec::new(),
            };
            list.push(statement);
            list.extend(included);
        }
    }

    /// Reads the files of a path or a pattern, in the order of their names.
    fn include(
        &mut self,
        path: &str,
        fault: impl Fn(&str) -> Problem,
    ) -> Result<Vec<Statement>, Problem> {
        let at = self.folder.join(path);
        let at_text = at.to_string_lossy();
        let files: Vec<PathBuf> = match glob::split(&at_text) {
            None => vec![at.clone()],
            Some((folder, pattern)) => {
                // nginx takes a folder that is not there for an empty one.
                let mut found = self.parts.list(Path::new(folder)).unwrap_or_default();
                found.retain(|path| {
                    let name = path.file_name().unwrap_or_default();
                    glob::matches(pattern, &name.to_string_lossy())
                });
                found
            }
        };
        if self.depth >= DEEPEST_FILE || files.len() >= self.files {
            return Err(fault("too many files, or files in too many files"));
        }
        self.files -= files.len() + 1;
        let mut statements = Vec::new();
        for at in files {
            let text = self.parts.text(&at, self.bytes);
            let text = text.and_then(|it| it.ok_or_else(|| io::Error::other("no such file")));
            let name = at.to_string_lossy().escape_debug().to_string();
            let text = text.map_err(|error| fault(&format!("{name}: {}", reason(&error))))?;
            self.bytes = self.bytes.saturating_sub(text.len() as u64);
            self.depth += 1;
            let name: Rc<str> = name.into();
            statements.extend(self.read(&String::from_utf8_lossy(&text), Some(&name))?);
            self.depth -= 1;
        }
        Ok(statements)
    }
}

/// Splits a text into words and symbols.
struct NginxWords<'t> {
    chars: Peekable<Chars<'t>>,
    line: usize,
}

impl NginxWords<'_> {
    /// Returns the next word or symbol (`;`, `{` or `}`), and whether it is a word.
    fn read_next(&mut self) -> Result<Option<(String, bool)>, &'static str> {
        let mut word: Option<String> = None;
        let mut quote = None;
        let mut in_variable = false;
        while let Some(c) = self.chars.peek().copied() {
            let begins_variable = c == '{' && word.as_ref().is_some_and(|it| it.ends_with('$'));
            let is_symbol = ";{}".contains(c) && !in_variable && !begins_variable;
            if quote.is_none() && word.is_some() && (is_symbol || c.is_whitespace()) {
                break;
            }
            self.chars.next();
            self.line += usize::from(c == '\n');
            match (c, quote) {
                ('\\', _) => {
                    let next = self.chars.next().unwrap_or_default();
                    self.line += usize::from(next == '\n');
                    let word = word.get_or_insert_default();
                    if !"\"'\\ ;{}".contains(next) {
                        word.push(c);
                    }
                    word.push(next);
                }
                (c, Some(open)) if c == open => quote = None,
                (_, Some(_)) => word.get_or_insert_default().push(c),
                _ if is_symbol => return Ok(Some((c.to_string(), false))),
                (c, None) if c.is_whitespace() => {}
                ('#', None) if word.is_none() => {
                    while self.chars.next_if(|c| *c != '\n').is_some() {}
                }
                ('"' | '\'', None) if word.is_none() => {
                    quote = Some(c);
                    word = Some(String::new());
                }
                _ => {
                    in_variable = (in_variable || begins_variable) && c != '}';
                    word.get_or_insert_default().push(c);
                }
            }
        }
        match quote {
            Some(_) => Err("quotes that do not end"),
            None => Ok(word.map(|word| (word, true))),
        }
    }
}

const DEEPEST: usize = 32;
const DEEPEST_FILE: usize = 8;
const MOST_FILES: usize = 4096;
