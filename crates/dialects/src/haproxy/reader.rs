//! Sections of haproxy.cfg and their directives, each noted as it comes.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use super::super::builder::{SettingId, TranslationBuilder};
use super::super::directive::{
    Directive, Directives, FreeNames, UNKNOWN_DIRECTIVE, WITHIN, each, find, named, options,
};
use super::super::setting::{Setting, SettingSupport};
use super::super::translation::Translation;
use super::table::{BIND, DIRECTIVES, SECTIONS, SERVER, TUNE};
use becket_config::error::Problem;
use becket_config::parts::{IncludedFiles, MOST_BYTES};

/// A frontend, a backend, or both in one.
#[derive(Debug)]
pub(super) struct ProxySection {
    pub(super) name: String,
    pub(super) origin: SettingId,
    pub(super) own: Directives,
    is_backend: bool,
    defaults: Rc<Directives>,
}

impl ProxySection {
    /// Returns the directive of a name, from the section or its defaults.
    pub(super) fn find(&self, name: &str) -> Option<&Directive> {
        find(name, &[&self.own, &self.defaults])
    }

    /// Returns the last directive of each name.
    pub(super) fn each(&self) -> impl Iterator<Item = &Directive> {
        each(&[&self.own, &self.defaults])
    }

    /// Returns the options of a server, then those of all servers.
    pub(super) fn options<'p>(&'p self, server: &'p Directive) -> Vec<&'p Directives> {
        let of_all = [&self.own, &*self.defaults].into_iter();
        let of_all = of_all.filter_map(|scope| scope.last("default-server"));
        let all = [server].into_iter().chain(of_all);
        all.map(|it| &*it.inner).collect()
    }
}

/// Current section.
enum OpenSection {
    Global,
    Defaults(String, Directives),
    Proxy,
    /// Not translated.
    Other(SettingSupport),
}

pub(super) struct HaproxyTranslator<'p> {
    pub(super) out: TranslationBuilder,
    pub(super) parts: &'p dyn IncludedFiles,
    pub(super) global: Directives,
    /// Names of backends with servers, and the names of their sections.
    pub(super) backends: BTreeMap<String, String>,
    pub(super) names: FreeNames,
    /// Remaining bytes for lists of certificates.
    pub(super) bytes: u64,
    proxies: Vec<ProxySection>,
    open: OpenSection,
    defaults: Rc<Directives>,
    named: BTreeMap<String, Rc<Directives>>,
}

impl<'p> HaproxyTranslator<'p> {
    pub(super) fn new(folder: &Path, parts: &'p dyn IncludedFiles) -> Self {
        Self {
            out: TranslationBuilder::new(folder),
            parts,
            global: Directives::default(),
            backends: BTreeMap::new(),
            names: FreeNames::default(),
            bytes: MOST_BYTES,
            proxies: Vec::new(),
            open: OpenSection::Global,
            defaults: Rc::default(),
            named: BTreeMap::new(),
        }
    }

    /// Reads a line.
    pub(super) fn take(&mut self, line: usize, words: &[String]) {
        let Some((first, rest)) = words.split_first() else {
            return;
        };
        let two = rest.first().map(|second| format!("{first} {second}"));
        let two = two.and_then(|two| named(DIRECTIVES, &two));
        if [".if", ".elif", ".else", ".endif"].contains(&first.as_str()) {
            let problem = Problem {
                line: Some(line),
                ..Problem::new(first, "conditions are not read")
            };
            let accepted = "the lines that apply, without conditions";
            self.out.problem(problem.accepted(accepted));
        } else if let Some((section, kind)) = named(SECTIONS, first) {
            self.begin((section, kind), line, rest);
        } else if let OpenSection::Other(verdict) = self.open {
            let origin = self.out.note(&WITHIN, Some(line), &words.join(" "));
            self.out.amend(origin, verdict, WITHIN.why);
        } else if let Some(found) = two {
            self.keep(found, line, &rest[1..]);
        } else if let Some(found) = named(DIRECTIVES, first) {
            self.keep(found, line, rest);
        } else {
            let setting = if first.starts_with("tune.") {
                &TUNE
            } else {
                &UNKNOWN_DIRECTIVE
            };
            self.out.note(setting, Some(line), &words.join(" "));
        }
    }

    fn keep(
        &mut self,
        (setting, name): (&'static Setting, &'static str),
        line: usize,
        words: &[String],
    ) {
        let origin = self.out.note_as((setting, name), line, &words.join(" "));
        let is_global = matches!(self.open, OpenSection::Global);
        if !is_global && ["maxconn", "log"].contains(&name) {
            let why = "not set: limits.connections and log are one for all listeners";
            self.out.differs(origin, why);
        }
        let (table, begin) = match name {
            "bind" => (BIND, 1),
            "ssl-default-bind-options" => (BIND, 0),
            "server" => (SERVER, 2),
            "default-server" => (SERVER, 0),
            _ => (SERVER, words.len()),
        };
        let given = words.iter().skip(begin).map(String::as_str);
        let mut inner = options(&mut self.out, table, given, line);
        for (name, base) in BASES {
            let base = self.global.last(base).map_or("", Directive::text);
            inner.rebase(name, base);
        }
        let (own, in_defaults) = match (&mut self.open, self.proxies.last_mut()) {
            (OpenSection::Global, _) => (&mut self.global, false),
            (OpenSection::Defaults(_, own), _) => (own, true),
            (_, Some(proxy)) => (&mut proxy.own, false),
            (_, None) => return,
        };
        if let Some(before) = own.last(name).filter(|_| name == "default-server") {
            let mut all = (*before.inner).clone();
            all.merge(&inner);
            inner = all;
        }
        let directive = Directive {
            name,
            setting,
            words: words.to_vec().into(),
            origin,
            inner: Rc::new(inner),
        };
        if in_defaults {
            own.replace(directive);
        } else {
            own.push(directive);
        }
    }

    /// Begins a section.
    fn begin(
        &mut self,
        (section, kind): (&'static Setting, &'static str),
        line: usize,
        words: &[String],
    ) {
        let ended = std::mem::replace(&mut self.open, OpenSection::Global);
        if let OpenSection::Defaults(name, given) = ended {
            self.defaults = Rc::new(given);
            self.named.insert(name, Rc::clone(&self.defaults));
        }
        let origin = self.out.note_as((section, kind), line, &words.join(" "));
        let (name, rest) = match words.split_first() {
            Some((name, rest)) if name != "from" => (name.clone(), rest),
            _ => (String::new(), words),
        };
        let base = match rest {
            [from, base] if from == "from" => self.named.get(base).cloned(),
            [] if kind == "defaults" => Some(Rc::default()),
            [] => Some(Rc::clone(&self.defaults)),
            _ => None,
        };
        if base.is_none() {
            let accepted = "from, and a defaults section before it; an address is in bind";
            self.out
                .refuse(origin, "unknown words after the name", accepted);
        }
        let defaults = base.unwrap_or_default();
        self.open = match kind {
            "global" => OpenSection::Global,
            "defaults" => OpenSection::Defaults(name, (*defaults).clone()),
            "frontend" | "backend" | "listen" => {
                self.proxies.push(ProxySection {
                    name,
                    origin,
                    own: Directives::default(),
                    is_backend: kind == "backend",
                    defaults,
                });
                OpenSection::Proxy
            }
            _ => OpenSection::Other(section.verdict),
        };
    }

    /// Returns the translation.
    pub(super) fn finish(mut self) -> Translation {
        let mut proxies = std::mem::take(&mut self.proxies);
        proxies.retain(|proxy| proxy.own.last("disabled").is_none());
        self.process(&proxies);
        let mut names = FreeNames::default();
        for proxy in &proxies {
            if !proxy.own.all("server").is_empty() {
                let name = names.take(&proxy.name, "backend");
                self.backend(proxy, &name);
                self.backends.insert(proxy.name.clone(), name);
            } else if proxy.is_backend {
                let why =
                    "it has no servers: becket connects servers, or serves files (backend.files)";
                self.out.lost(proxy.origin, why);
            }
        }
        for proxy in proxies.iter().filter(|proxy| !proxy.is_backend) {
            self.frontend(proxy);
        }
        self.out.finish(BIND, false)
    }
}

/// Options with paths, and the directives that name their folders.
const BASES: [(&str, &str); 3] = [
    ("ca-file", "ca-base"),
    ("crl-file", "ca-base"),
    ("crt", "crt-base"),
];
