//! Parses nginx.conf and its included files, adds a remark for each directive, and translates
//! global settings.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::Chars;

use super::super::builder::{SettingId, TranslationBuilder};
use super::super::directive::{
    Directive, Directives, FreeNames, MOST_TEXT, UNKNOWN_DIRECTIVE, apply_once, each, find, lookup,
    options,
};
use super::table::{DIRECTIVES, LISTEN, POOL, POOL_SERVER, ROW, ROWS};
use becket_config::error::{Problem, reason};
use becket_config::glob;
use becket_config::parts::{IncludedFiles, MOST_BYTES};

pub(super) struct NginxTranslator<'p> {
    pub(super) out: TranslationBuilder,
    pub(super) listeners: FreeNames,
    /// Backend names by backend settings: targets with equal settings share a backend.
    pub(super) backends: BTreeMap<Vec<String>, String>,
    pub(super) names: FreeNames,
    parts: &'p dyn IncludedFiles,
    folder: &'p Path,
    bytes: u64,
    files: usize,
    depth: usize,
}

impl<'p> NginxTranslator<'p> {
    pub(super) fn new(folder: &'p Path, parts: &'p dyn IncludedFiles) -> Self {
        Self {
            out: TranslationBuilder::new(folder),
            listeners: FreeNames::default(),
            backends: BTreeMap::new(),
            names: FreeNames::default(),
            parts,
            folder,
            bytes: MOST_BYTES,
            files: MOST_FILES,
            depth: 0,
        }
    }

    /// Parses the directives of a file into `given`. If a `map` block includes the file, `row` is
    /// the origin of the block, and the file is parsed as rows of the map. Returns `None` after an
    /// error.
    pub(super) fn file(
        &mut self,
        text: &[u8],
        row: Option<SettingId>,
        given: &mut Directives,
    ) -> Option<()> {
        let text = String::from_utf8_lossy(text);
        if text.len() > MOST_TEXT {
            return self.fail(1, "a file of more than 1 MiB");
        }
        let chars = text.chars().peekable();
        self.block(&mut NginxWords { chars, line: 1 }, 0, row, given)
    }

    fn fail(&mut self, line: usize, fault: &str) -> Option<()> {
        let problem = Problem::new("", fault).line(line);
        let accepted = "NAME WORDS; or NAME WORDS { .. }, in at most 1 MiB";
        self.out.problem(problem.accepted(accepted));
        None
    }

    fn block(
        &mut self,
        text: &mut NginxWords<'_>,
        depth: usize,
        row: Option<SettingId>,
        given: &mut Directives,
    ) -> Option<()> {
        loop {
            let (words, line, end) = match text.statement() {
                Ok(statement) => statement,
                Err(fault) => return self.fail(text.line, fault),
            };
            match (end, words.is_empty()) {
                (None, true) if depth == 0 => return Some(()),
                (Some('}'), true) if depth > 0 => return Some(()),
                (None, _) => {
                    return self.fail(text.line, "a directive or a block that does not end");
                }
                (Some(';' | '{'), false) => {}
                _ => return self.fail(text.line, "a ;, { or } too many"),
            }
            let is_block = end == Some('{');
            if depth > DEEPEST {
                return self.fail(line, "too many blocks in blocks");
            }
            self.out.count(1).then_some(())?;
            let first = words[0].as_str();
            if let Some(origin) = row.filter(|_| first != "include" && !is_block) {
                given.push(Directive {
                    name: ROW.theirs,
                    setting: &ROW,
                    words: words.into(),
                    origin,
                    inner: Rc::default(),
                });
                continue;
            }
            let found = match first {
                "server" if !is_block => Some(((&POOL_SERVER, "server"), &words[1..])),
                _ => lookup(DIRECTIVES, &words),
            };
            let other = (&UNKNOWN_DIRECTIVE, UNKNOWN_DIRECTIVE.theirs);
            let ((setting, name), words) = found.unwrap_or((other, &words[..]));
            let shown = words.join(" ");
            let origin = self.out.note_as((setting, name), line, &shown);
            let (table, begin) = match name {
                "listen" => (LISTEN, 1),
                "server" => (POOL, 1),
                _ => (POOL, words.len()),
            };
            let pairs = words.iter().skip(begin).flat_map(|it| it.splitn(2, '='));
            let mut inner = options(&mut self.out, table, pairs, line);
            if is_block {
                let rows = ROWS.contains(&name).then_some(origin);
                self.block(text, depth + 1, rows, &mut inner)?;
            } else if name == "include" && !shown.ends_with("mime.types") {
                self.include(&shown, line, row, given)?;
            }
            match (name, shown.as_str()) {
                ("location", "/") => self.out.same(origin),
                ("location", path) if path.contains("acme-challenge") => {
                    let why = "renewals need another challenge: see docs/guide/acme.md";
                    self.out.lost(origin, why);
                }
                ("proxy_set_header", header) if PASSED.contains(&header) => {
                    let why = "every byte passes as it is";
                    self.out.ignored(origin, why);
                }
                _ => {}
            }
            // Certbot writes `if ($host = NAME) { return 301 .. }` for each name.
            let mut rules = inner.all("return").iter();
            if let Some(rule) = rules.find(|it| name == "if" && redirects(it)) {
                self.out.differs(origin, "whatever the condition");
                given.push(rule.clone());
            }
            given.push(Directive {
                name,
                setting,
                words: words.to_vec().into(),
                origin,
                inner: Rc::new(inner),
            });
        }
    }

    /// Parses the files that match a path or pattern, in the order of their names.
    fn include(
        &mut self,
        path: &str,
        line: usize,
        row: Option<SettingId>,
        given: &mut Directives,
    ) -> Option<()> {
        let at = self.folder.join(path);
        let at_text = at.to_string_lossy();
        let files: Vec<PathBuf> = match glob::split(&at_text) {
            None => vec![at.clone()],
            Some((folder, pattern)) => {
                // In nginx, a pattern in a missing folder is not an error.
                let mut found = self.parts.list(Path::new(folder)).unwrap_or_default();
                found.retain(|path| {
                    let name = path.file_name().unwrap_or_default();
                    glob::matches(pattern, &name.to_string_lossy())
                });
                found
            }
        };
        if self.depth >= DEEPEST_FILE || files.len() >= self.files {
            return self.fail(line, "too many files, or files in too many files");
        }
        self.files -= files.len() + 1;
        for at in files {
            let name = at.to_string_lossy().escape_debug().to_string();
            let text = self.parts.text(&at, self.bytes);
            let text = match text.and_then(|it| it.ok_or_else(|| io::Error::other("no such file")))
            {
                Ok(text) => text,
                Err(error) => return self.fail(line, &format!("{name}: {}", reason(&error))),
            };
            self.bytes = self.bytes.saturating_sub(text.len() as u64);
            let outer = self.out.enter(Some(name.into()));
            self.depth += 1;
            self.file(&text, row, given)?;
            self.depth -= 1;
            self.out.enter(outer);
        }
        Some(())
    }

    pub(super) fn process(&mut self, main: &Directives) {
        let mut scopes = vec![main];
        for names in [&["http", "stream"][..], &["server"]] {
            let inner = scopes
                .iter()
                .flat_map(|scope| names.iter().flat_map(move |it| scope.all(it)));
            let inner: Vec<&Directive> = inner.collect();
            scopes.extend(inner.iter().map(|it| &*it.inner));
            scopes.extend(inner.iter().filter_map(|it| place(it)));
        }
        let all = scopes.iter().flat_map(|scope| each(&[*scope]));
        apply_once(&mut self.out, all);
        if let Some(user) = main.last("user").filter(|it| it.words.len() > 1) {
            self.out.put("process.group", user.word(1), user.origin);
        }
        if let Some(given) = main.last("worker_processes") {
            self.out.used(given.origin);
            if let Ok(workers) = given.text().parse::<i64>() {
                self.out.put("process.workers", workers, given.origin);
            }
        }
        for (name, key) in [("error_log", "log.file"), ("access_log", "log.access")] {
            let Some(given) = find(name, &scopes) else {
                continue;
            };
            match given.text() {
                "stderr" => self.out.put(key, "stderr", given.origin),
                "off" => self.out.used(given.origin),
                path if path.contains([':', '$']) => {
                    let why = "log.syslog is a socket or an IP address, and a log is one file";
                    self.out.lost(given.origin, why);
                }
                path => self.out.put(key, self.out.place(path), given.origin),
            }
            if let level @ ("error" | "warn" | "debug") = given.word(1) {
                self.out.put("log.level", level, given.origin);
            }
        }
        let zones = scopes.iter().flat_map(|it| it.all("limit_conn_zone"));
        let zones = zones.filter(|it| it.text().ends_with("remote_addr"));
        let zones = zones.filter_map(|it| it.word(1).strip_prefix("zone=")?.split(':').next());
        let zones: BTreeSet<&str> = zones.collect();
        let limits = scopes.iter().flat_map(|it| it.all("limit_conn"));
        let limits: Vec<&Directive> = limits.filter(|it| zones.contains(it.text())).collect();
        let most = limits
            .iter()
            .filter_map(|it| it.word(1).parse::<i64>().ok());
        // becket limits connections per source for all listeners together, so the limit applies
        // only if every server sets one.
        let servers: usize = scopes.iter().map(|it| it.all("server").len()).sum();
        let is_for_all = limits.len() >= servers;
        if let Some(most) = most.max().filter(|_| is_for_all) {
            for given in limits {
                self.out
                    .put("admission.connections-per-source", most, given.origin);
                let why = "one limit for all listeners, the largest";
                self.out.differs(given.origin, why);
            }
        }
    }
}

pub(super) fn place(server: &Directive) -> Option<&Directives> {
    let mut places = server.inner.all("location").iter();
    let whole = places.find(|it| it.text() == "/" && it.words.len() == 1);
    whole.map(|it| &*it.inner)
}

pub(super) fn is_on(given: &Directive) -> bool {
    given.text() == "on"
}

/// Returns `true` if a `return` redirects every request to `https`.
pub(super) fn redirects(rule: &Directive) -> bool {
    let is_permanent = ["301", "302", "307", "308"].contains(&rule.text());
    let targets = [
        "https://$host$request_uri",
        "https://$server_name$request_uri",
    ];
    is_permanent && targets.contains(&rule.word(1)) && rule.words.len() == 2
}

struct NginxWords<'t> {
    chars: Peekable<Chars<'t>>,
    line: usize,
}

impl NginxWords<'_> {
    /// Returns the words up to the next `;`, `{` or `}`, the line of the first word, and the
    /// terminator. The terminator is `None` at the end of the input.
    fn statement(&mut self) -> Result<(Vec<String>, usize, Option<char>), &'static str> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut quote = None;
        let mut in_variable = false;
        let mut line = self.line;
        while let Some(c) = self.chars.next() {
            if words.is_empty() && word.is_none() {
                line = self.line;
            }
            self.line += usize::from(c == '\n');
            let begins_variable = c == '{' && word.as_ref().is_some_and(|it| it.ends_with('$'));
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
                (';' | '{' | '}', None) if !in_variable && !begins_variable => {
                    words.extend(word);
                    return Ok((words, line, Some(c)));
                }
                (c, None) if c.is_whitespace() => {
                    in_variable = false;
                    words.extend(word.take());
                }
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
        if quote.is_some() {
            return Err("quotes that do not end");
        }
        words.extend(word);
        Ok((words, line, None))
    }
}

/// `proxy_set_header` values that need no translation, because the client sends these headers.
const PASSED: [&str; 6] = [
    "Host $host",
    "Host $http_host",
    "Upgrade $http_upgrade",
    "Connection $connection_upgrade",
    "Connection upgrade",
    "Connection ",
];
const DEEPEST: usize = 32;
const DEEPEST_FILE: usize = 8;
const MOST_FILES: usize = 4096;
