//! Records the directives of nginx.conf, and translates global settings.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use super::super::builder::TranslationBuilder;
use super::super::directive::{
    Directive, Directives, FreeNames, UNKNOWN_DIRECTIVE, WITHIN, each, find, longest, named,
    options,
};
use super::super::setting::SettingSupport;
use super::syntax::Statement;
use super::table::{BLOCKS, DIRECTIVES, LISTEN, POOL, POOL_SERVER, ROW, ROWS};

pub(super) struct NginxTranslator {
    pub(super) out: TranslationBuilder,
    pub(super) listeners: FreeNames,
    /// Names of backends by their settings.
    pub(super) backends: BTreeMap<Vec<String>, String>,
    pub(super) names: FreeNames,
}

impl NginxTranslator {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            out: TranslationBuilder::new(folder),
            listeners: FreeNames::default(),
            backends: BTreeMap::new(),
            names: FreeNames::default(),
        }
    }

    /// Records statements: by their table, or with the verdict of the untranslated block `around` them.
    pub(super) fn note(
        &mut self,
        statements: Vec<Statement>,
        around: Option<SettingSupport>,
    ) -> Directives {
        let mut given = Directives::default();
        for statement in statements {
            let Some((first, words)) = statement.words.split_first() else {
                continue;
            };
            let found = match (around, first.as_str(), &statement.block) {
                (Some(_), ..) => None,
                (_, "server", None) => Some((&POOL_SERVER, "server")),
                _ => named(DIRECTIVES, first),
            };
            let other = around.map_or(&UNKNOWN_DIRECTIVE, |_| &WITHIN);
            let (setting, name) = found.unwrap_or((other, other.theirs));
            let words = found.map_or(&statement.words[..], |_| words);
            let outer = self.out.enter(statement.file.as_deref().map(Into::into));
            let shown = words.join(" ");
            let origin = self.out.note_as((setting, name), statement.line, &shown);
            if let Some(verdict) = around {
                self.out.amend(origin, verdict, WITHIN.why);
            }
            let (table, begin) = match name {
                "listen" => (LISTEN, 1),
                "server" => (POOL, 1),
                _ => (POOL, words.len()),
            };
            let pairs = words.iter().skip(begin).flat_map(|it| it.splitn(2, '='));
            let mut inner = options(&mut self.out, table, pairs, statement.line);
            self.out.enter(outer);
            let suites = ["ssl_conf_command", "Ciphersuites"];
            let words = match statement.words.get(..2) {
                Some(two) if two == suites && around.is_none() => {
                    self.out.same(origin);
                    &words[1..]
                }
                _ => words,
            };
            let words: Rc<[String]> = words.to_vec().into();
            match statement.block {
                Some(rows) if ROWS.contains(&name) => {
                    for row in rows {
                        inner.push(Directive {
                            name: ROW.theirs,
                            setting: &ROW,
                            words: row.words.into(),
                            origin,
                            inner: Rc::default(),
                        });
                    }
                }
                // Certbot writes one for each name.
                Some(block) if name == "if" && block.iter().any(|it| redirects(&it.words)) => {
                    self.out.differs(origin, "whatever the condition");
                    given.merge(&self.note(block, None));
                }
                Some(block) if shown == "/" && name == "location" => {
                    self.out.same(origin);
                    inner = self.note(block, None);
                }
                Some(block) => {
                    let is_read = BLOCKS.contains(&name);
                    let verdict = around.or((!is_read).then_some(setting.verdict));
                    inner = self.note(block, verdict);
                }
                None => {}
            }
            given.push(Directive {
                name,
                setting,
                words,
                origin,
                inner: Rc::new(inner),
            });
        }
        given
    }

    /// Translates global settings.
    pub(super) fn process(&mut self, main: &Directives) {
        let mut scopes = vec![main];
        for names in [&["http", "stream"][..], &["server"], &["location"]] {
            let inner = scopes
                .iter()
                .flat_map(|scope| names.iter().flat_map(move |it| scope.all(it)));
            let inner: Vec<&Directives> = inner.map(|it| &*it.inner).collect();
            scopes.extend(inner);
        }
        for given in each(&[main]) {
            if let Some((_, value)) = given.entry(&mut self.out, "process.") {
                self.out.put_own(value, given.origin);
            }
        }
        if let Some(user) = main.last("user").filter(|it| it.words.len() > 1) {
            self.out.put("process.group", user.word(1), user.origin);
        }
        if let Some(given) = main.last("worker_processes")
            && let Ok(workers) = given.text().parse::<i64>()
        {
            self.out.put("process.workers", workers, given.origin);
        }
        for (name, key) in [("error_log", "log.file"), ("access_log", "log.access")] {
            let Some(given) = find(name, &scopes) else {
                continue;
            };
            match given.text() {
                "stderr" => self.out.put(key, "stderr", given.origin),
                "off" => {}
                path if path.contains(':') => {
                    self.out
                        .lost(given.origin, "log.syslog is a socket or an IP address");
                }
                path => self.out.put(key, self.out.place(path), given.origin),
            }
            if let level @ ("error" | "warn" | "debug") = given.word(1) {
                self.out.put("log.level", level, given.origin);
            }
        }
        for (key, names) in TIMES {
            let names = names.split(' ');
            let given = names.flat_map(|name| scopes.iter().filter_map(move |it| it.last(name)));
            longest(&mut self.out, key, given);
        }
    }
}

/// Returns whether a `return`, with or without its name, redirects every request to `https`.
pub(super) fn redirects(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = words.strip_prefix(&["return"]).unwrap_or(&words);
    matches!(
        words,
        [
            "301" | "302" | "307" | "308",
            "https://$host$request_uri" | "https://$server_name$request_uri",
        ]
    )
}

const TIMES: [(&str, &str); 4] = [
    (
        "timeouts.idle",
        "keepalive_timeout proxy_timeout proxy_read_timeout proxy_send_timeout",
    ),
    ("timeouts.connect", "proxy_connect_timeout"),
    ("timeouts.handshake", "ssl_handshake_timeout"),
    ("sessions.id-lifetime", "ssl_session_timeout"),
];
