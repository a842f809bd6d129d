//! Parses the sections and directives of haproxy.cfg, adds a remark for each, and translates the
//! global section.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use super::super::builder::{SettingId, TranslationBuilder};
use super::super::directive::{
    Directive, Directives, FreeNames, UNKNOWN_DIRECTIVE, apply_once, each, lookup, named, options,
};
use super::super::setting::{Setting, ValueKind};
use super::super::translation::Translation;
use super::table::{BIND, DIRECTIVES, SECTIONS, SERVER, TUNE};
use becket_config::address::SyslogAddress;
use becket_config::notation::Text;
use becket_config::parts::{IncludedFiles, MOST_BYTES};

#[derive(Debug)]
pub(super) struct HaproxySection {
    kind: &'static str,
    setting: &'static Setting,
    pub(super) name: String,
    pub(super) origin: SettingId,
    pub(super) own: Directives,
    defaults: Rc<Directives>,
}

impl HaproxySection {
    /// Returns the directives with this name, from the section or otherwise from its defaults.
    pub(super) fn all(&self, name: &str) -> &[Directive] {
        match self.own.all(name) {
            [] => self.defaults.all(name),
            own => own,
        }
    }

    /// Returns the last directive with this name, from the section or otherwise from its defaults.
    pub(super) fn find(&self, name: &str) -> Option<&Directive> {
        self.all(name).last()
    }

    pub(super) fn each(&self) -> impl Iterator<Item = &Directive> {
        each(&[&self.own, &self.defaults])
    }

    /// Returns the options of a server, followed by the options of `default-server` as defaults.
    pub(super) fn options<'s>(&'s self, server: &'s Directive) -> Vec<&'s Directives> {
        let of_all = [&self.own, &*self.defaults].into_iter();
        let of_all = of_all.filter_map(|scope| scope.last("default-server"));
        let all = [server].into_iter().chain(of_all);
        all.map(|it| &*it.inner).collect()
    }
}

pub(super) struct HaproxyTranslator<'p> {
    pub(super) out: TranslationBuilder,
    pub(super) parts: &'p dyn IncludedFiles,
    pub(super) global: Directives,
    /// Maps the HAProxy names of backends that contain servers to becket names.
    pub(super) backends: BTreeMap<String, String>,
    pub(super) names: FreeNames,
    /// Remaining byte budget for `crt-list` files.
    pub(super) bytes: u64,
    sections: Vec<HaproxySection>,
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
            sections: Vec::new(),
            defaults: Rc::default(),
            named: BTreeMap::new(),
        }
    }

    pub(super) fn take(&mut self, line: usize, words: &[String]) {
        let Some((first, rest)) = words.split_first() else {
            return;
        };
        let is_read = |it: &&HaproxySection| READ.contains(&it.kind);
        if let Some(found) = named(SECTIONS, first) {
            self.begin(found, line, rest);
        } else if let Some(section) = self.sections.last().filter(|it| !is_read(it)) {
            let within = (section.setting, "directive");
            self.out.note_as(within, line, &words.join(" "));
        } else if let Some((found, rest)) = lookup(DIRECTIVES, words) {
            self.keep(found, line, rest.to_vec());
        } else {
            let is_size = first.starts_with("tune.");
            let setting = if is_size { &TUNE } else { &UNKNOWN_DIRECTIVE };
            self.out.note(setting, Some(line), &words.join(" "));
        }
    }

    fn keep(
        &mut self,
        (setting, mut name): (&'static Setting, &'static str),
        line: usize,
        mut words: Vec<String>,
    ) {
        let all = words.join(" ");
        let origin = self.out.note_as((setting, name), line, &all);
        let section = self.sections.last_mut().filter(|it| it.kind != "global");
        let is_default = section.as_ref().is_some_and(|it| it.kind == "defaults");
        match (name, all.as_str()) {
            ("mode", "tcp") => self.out.same(origin),
            ("log", "global") => self.out.used(origin),
            ("maxconn" | "log", _) if section.is_some() => {
                let why = "not set: limits.connections and log are one for all listeners";
                self.out.lost(origin, why);
            }
            _ => {}
        }
        // All options that select a kind of health check share one name, so that the last one wins.
        if name.starts_with("option ") && (name.ends_with("chk") || name.ends_with("-check")) {
            name = CHECK;
        }
        if name == "server-template" && words.len() > 1 {
            words.remove(1);
            name = "server";
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
        let own = section.map_or(&mut self.global, |it| &mut it.own);
        if let Some(before) = own.last(name).filter(|_| name == "default-server") {
            let mut all = Directives::default();
            each(&[&inner, &*before.inner]).for_each(|it| all.push(it.clone()));
            inner = all;
        }
        let directive = Directive {
            name,
            setting,
            words: words.into(),
            origin,
            inner: Rc::new(inner),
        };
        if is_default {
            own.replace(directive);
        } else {
            own.push(directive);
        }
    }

    fn begin(
        &mut self,
        (setting, kind): (&'static Setting, &'static str),
        line: usize,
        words: &[String],
    ) {
        if let Some(ended) = self.sections.last().filter(|it| it.kind == "defaults") {
            self.defaults = Rc::new(ended.own.clone());
            self.named
                .insert(ended.name.clone(), Rc::clone(&self.defaults));
        }
        let origin = self.out.note_as((setting, kind), line, &words.join(" "));
        let (name, rest) = match words.split_first() {
            Some((name, rest)) if name != "from" => (name.clone(), rest),
            _ => (String::new(), words),
        };
        let base = match rest {
            [from, base] if from == "from" => self.named.get(base).cloned(),
            [] if PROXIES.contains(&kind) => Some(Rc::clone(&self.defaults)),
            _ if rest.is_empty() || !READ.contains(&kind) => Some(Rc::default()),
            _ => None,
        };
        if base.is_none() {
            let accepted = "from, and a defaults section before it; an address is in bind";
            let fault = "unknown words after the name";
            self.out.refuse(origin, fault, accepted);
        }
        let defaults = base.unwrap_or_default();
        let own = match kind {
            "defaults" => (*defaults).clone(),
            _ => Directives::default(),
        };
        self.sections.push(HaproxySection {
            kind,
            setting,
            name,
            origin,
            own,
            defaults,
        });
    }

    pub(super) fn finish(mut self) -> Translation {
        let mut sections = std::mem::take(&mut self.sections);
        sections.retain(|it| PROXIES.contains(&it.kind));
        for off in sections.extract_if(.., |it| {
            it.find("disabled").is_some() && it.own.last("enabled").is_none()
        }) {
            let why = "disabled, with all that it has";
            self.out.ignored(off.origin, why);
        }
        self.process(&sections);
        let mut names = FreeNames::default();
        for section in &sections {
            if !section.own.all("server").is_empty() {
                let name = names.take(&section.name, "backend");
                self.backend(section, &name);
                self.backends.insert(section.name.clone(), name);
            } else if section.kind == "backend" {
                let why =
                    "it has no servers: becket connects servers, or serves files (backend.files)";
                self.out.lost(section.origin, why);
            }
        }
        for frontend in sections.iter().filter(|it| it.kind != "backend") {
            self.frontend(frontend);
        }
        self.out.settle();
        self.out.finish(BIND, false)
    }

    /// Translates the global section, and proxy settings that are global in becket.
    fn process(&mut self, proxies: &[HaproxySection]) {
        let has_user = self.global.last("user").is_some();
        let is_possible = |given: &&Directive| match given.name {
            "group" => has_user,
            "stats socket" => given.text().starts_with('/'),
            _ => true,
        };
        let times = proxies.iter().flat_map(HaproxySection::each);
        let times = times.filter(|it| it.setting.kind == ValueKind::Millis);
        let global = each(&[&self.global]).filter(is_possible);
        apply_once(&mut self.out, global.chain(times));
        let log = self.global.all("log").first();
        let with_port = log.map_or_else(String::new, |log| format!("{}:514", log.text()));
        let mut places = log.into_iter().flat_map(|log| [log.text(), &with_port]);
        let syslog = places.find(|at| SyslogAddress::parse(at).is_ok());
        let access = ["option tcplog", "option httplog"];
        let access = proxies
            .iter()
            .flat_map(|it| access.map(|name| it.find(name)));
        for (index, given) in access.flatten().enumerate() {
            self.out.used(given.origin);
            if index == 0 {
                let to = syslog.map_or("stderr", |_| "syslog");
                self.out.put("log.access", to, given.origin);
            }
        }
        let Some(log) = log else {
            return;
        };
        match syslog {
            Some(at) => self.out.put("log.syslog", at, log.origin),
            None => return self.out.differs(log.origin, "to standard error: log.file"),
        }
        for word in log.words.iter().skip(1).map(String::as_str) {
            let level = match word {
                "err" | "crit" | "alert" | "emerg" => "error",
                "warning" => "warn",
                "debug" => "debug",
                _ => "",
            };
            if !level.is_empty() {
                self.out.put("log.level", level, log.origin);
            } else if word.starts_with("local") || ["daemon", "user"].contains(&word) {
                self.out.put("log.syslog-facility", word, log.origin);
            }
        }
    }
}

pub(super) const CHECK: &str = "option httpchk";
const READ: [&str; 5] = ["global", "defaults", "frontend", "backend", "listen"];
const PROXIES: [&str; 3] = ["frontend", "backend", "listen"];
/// Options with relative paths, each with the directive that sets their base folder.
const BASES: [(&str, &str); 3] = [
    ("ca-file", "ca-base"),
    ("crl-file", "ca-base"),
    ("crt", "crt-base"),
];
