//! Builds a [`Translation`]: the translated table, and the origin of each key.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::ciphers::{self, LEAVING, NOTHING_LEFT, TLS13};
use super::setting::{Remark, Setting, SettingSupport};
use super::translation::{Translation, name};
use becket_config::error::{Problem, shortened};
use becket_config::notation::{Text, meant};
use becket_config::suites::KeyExchangeGroup;

/// Index of a setting's [`Remark`] in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SettingId(usize);

#[derive(Debug, Default)]
pub(super) struct TranslationBuilder {
    folder: PathBuf,
    /// Path of the included file being read; `None` in the main file.
    file: Option<Box<str>>,
    made: Translation,
    counted: usize,
}

#[derive(Debug)]
pub(super) struct SectionBuilder {
    path: String,
    table: Table,
    origins: Vec<(String, SettingId)>,
}

impl SectionBuilder {
    pub(super) fn set(
        &mut self,
        key: &str,
        value: impl Into<Value>,
        origin: impl Into<Option<SettingId>>,
    ) {
        self.note_origin(key, origin.into());
        self.table.insert(key.to_owned(), value.into());
    }

    /// Returns `true` if the table contains only its name.
    pub(super) fn is_bare(&self) -> bool {
        self.table.len() < 2
    }

    pub(super) fn push(
        &mut self,
        key: &str,
        value: impl Into<Value>,
        origins: impl IntoIterator<Item = SettingId>,
    ) {
        let entry = self.table.entry(key);
        let list = entry.or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            let key = format!("{key}[{}]", list.len());
            list.push(value.into());
            self.note_origin(&key, origins);
        }
    }

    fn note_origin(&mut self, key: &str, origins: impl IntoIterator<Item = SettingId>) {
        let path = format!("{}.{key}", self.path);
        let origins = origins.into_iter().map(|origin| (path.clone(), origin));
        self.origins.extend(origins);
    }

    /// Starts a subtable, such as `[backend.health]`.
    pub(super) fn nested(&self, key: &str) -> Self {
        Self {
            path: format!("{}.{key}", self.path),
            table: Table::new(),
            origins: Vec::new(),
        }
    }

    pub(super) fn set_nested(
        &mut self,
        key: &str,
        nested: Self,
        origin: impl Into<Option<SettingId>>,
    ) {
        self.set(key, nested.table, origin);
        self.origins.extend(nested.origins);
    }
}

impl TranslationBuilder {
    /// Starts a translation that resolves relative paths against `folder`.
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn note(
        &mut self,
        setting: &'static Setting,
        line: Option<usize>,
        value: &str,
    ) -> SettingId {
        self.made.report.push(Remark {
            theirs: setting.theirs,
            file: self.file.clone(),
            line,
            value: shortened(value),
            ours: setting.ours,
            verdict: setting.verdict,
            why: setting.why.to_owned(),
        });
        SettingId(self.made.report.len() - 1)
    }

    pub(super) fn note_as(
        &mut self,
        (setting, name): (&'static Setting, &'static str),
        line: usize,
        value: &str,
    ) -> SettingId {
        let origin = self.note(setting, Some(line), value);
        self.made.report[origin.0].theirs = name;
        origin
    }

    pub(super) fn same(&mut self, origin: SettingId) {
        self.amend(origin, SettingSupport::Same, "");
    }

    pub(super) fn differs(&mut self, origin: SettingId, why: impl Into<String>) {
        self.amend(origin, SettingSupport::Different, why);
    }

    pub(super) fn ignored(&mut self, origin: SettingId, why: impl Into<String>) {
        self.amend(origin, SettingSupport::Ignored, why);
    }

    pub(super) fn lost(&mut self, origin: SettingId, why: impl Into<String>) {
        self.amend(origin, SettingSupport::Lost, why);
    }

    /// Marks a setting as translated although it needs no key in the result.
    pub(super) fn used(&mut self, origin: impl Into<Option<SettingId>>) {
        self.note_origin(String::new(), origin.into());
    }

    /// Marks settings as lost if they should have set a key but did not.
    pub(super) fn settle(&mut self) {
        let used: HashSet<usize> = self.made.origins.values().flatten().copied().collect();
        for (index, remark) in self.made.report.iter_mut().enumerate() {
            let verdict = remark.verdict;
            let is_set = [SettingSupport::Same, SettingSupport::Different].contains(&verdict);
            if is_set && !remark.ours.is_empty() && !used.contains(&index) {
                remark.verdict = SettingSupport::Lost;
                remark.why = "nothing in the result comes from it".to_owned();
            }
        }
    }

    /// Counts directives, names and servers. At [`MOST_DIRECTIVES`], records a problem and returns
    /// `false`.
    pub(super) fn count(&mut self, more: usize) -> bool {
        let before = self.counted;
        self.counted += more;
        if before < MOST_DIRECTIVES && self.counted >= MOST_DIRECTIVES {
            let problem = Problem::new("", "too many directives, names or servers");
            self.problem(problem.accepted(format!("fewer than {MOST_DIRECTIVES}")));
        }
        self.counted < MOST_DIRECTIVES
    }

    /// Rejects a setting. The reason comes from its table row.
    pub(super) fn refuse_setting(&mut self, origin: SettingId) {
        let why = self.made.report[origin.0].why.clone();
        self.refuse(origin, why, "a configuration without it");
    }

    /// Sets the included file being read, and returns the previous file.
    pub(super) fn enter(&mut self, file: Option<Box<str>>) -> Option<Box<str>> {
        std::mem::replace(&mut self.file, file)
    }

    pub(super) fn file(&self) -> Option<Box<str>> {
        self.file.clone()
    }

    /// Returns `true` if [`FAULTS`] errors have been recorded.
    pub(super) fn is_full(&self) -> bool {
        self.made.problems.len() >= FAULTS
    }

    /// Sets the support of a setting and the explanation. Called if the support depends on the
    /// setting's value.
    pub(super) fn amend(
        &mut self,
        origin: SettingId,
        verdict: SettingSupport,
        why: impl Into<String>,
    ) {
        self.used(origin);
        let remark = &mut self.made.report[origin.0];
        remark.verdict = verdict;
        remark.why = why.into();
    }

    pub(super) fn refuse(
        &mut self,
        origin: SettingId,
        fault: impl Into<String>,
        accepted: impl Into<String>,
    ) {
        let fault = fault.into();
        self.amend(origin, SettingSupport::Refused, fault.clone());
        let remark = &self.made.report[origin.0];
        let problem = Problem {
            file: remark.file.clone(),
            line: remark.line,
            ..Problem::new(name(remark), fault).text(&remark.value)
        };
        self.problem(problem.accepted(accepted));
    }

    /// Records a problem, unless `FAULTS` problems are already recorded.
    pub(super) fn problem(&mut self, mut problem: Problem) {
        if !self.is_full() {
            if problem.line.is_some() && problem.file.is_none() {
                problem.file.clone_from(&self.file);
            }
            self.made.problems.push(problem);
        }
    }

    /// Resolves a relative path against the folder of the translation.
    pub(super) fn place(&self, path: &str) -> String {
        // The path is valid UTF-8, so the conversion replaces no bytes.
        self.folder.join(path).to_string_lossy().into_owned()
    }

    /// Returns a certificate whose key is in another file.
    pub(super) fn pair(&self, chain: &str, key: &str) -> Table {
        let pair = [("chain", chain), ("key", key)];
        let pair = pair.map(|(name, path)| (name.to_owned(), self.place(path).into()));
        Table::from_iter(pair)
    }

    /// Finds a setting by name in the given table. Records a problem if the name is unknown.
    pub(super) fn find(
        &mut self,
        known: impl Iterator<Item = &'static Setting> + Clone,
        (name, line): (&str, usize),
        fault: &str,
        accepted: &str,
    ) -> Option<&'static Setting> {
        let is_it = |setting: &&Setting| setting.theirs.eq_ignore_ascii_case(name);
        let found = known.clone().find(is_it);
        if found.is_none() && !self.is_full() {
            let close = Some(name).filter(|name| name.len() < 64);
            let close = close.and_then(|name| meant(name, known.map(|setting| setting.theirs)));
            let fault = match close {
                Some(close) => format!("{fault} (did you mean {close}?)"),
                None => fault.to_owned(),
            };
            let problem = Problem::new(shortened(name), fault).line(line);
            self.problem(problem.accepted(accepted));
        }
        found
    }

    fn note_origin(&mut self, path: String, origin: Option<SettingId>) {
        let origins = self.made.origins.entry(path).or_default();
        origins.extend(origin.map(|origin| origin.0));
    }

    /// Sets a key of a table that is not in an array of tables, such as `timeouts.idle`.
    pub(super) fn put(
        &mut self,
        path: &str,
        value: impl Into<Value>,
        origin: impl Into<Option<SettingId>>,
    ) {
        self.note_origin(path.to_owned(), origin.into());
        let (table, key) = path.split_once('.').unwrap_or(("", path));
        let entry = self.made.table.entry(table);
        if let Value::Table(table) = entry.or_insert_with(|| Table::new().into()) {
            table.insert(key.to_owned(), value.into());
        }
    }

    pub(super) fn put_own(&mut self, value: impl Into<Value>, origin: SettingId) {
        self.put(self.made.report[origin.0].ours, value, origin);
    }

    /// Changes becket's key in a remark, for settings whose key depends on the value. An empty
    /// `ours` means that there is no key.
    pub(super) fn becomes(&mut self, origin: SettingId, ours: &'static str) {
        self.made.report[origin.0].ours = ours;
    }

    /// Starts a section in an array of tables: `[[listener]]`, `[[policy]]` or `[[backend]]`.
    pub(super) fn section(&self, kind: &str, name: &str) -> SectionBuilder {
        SectionBuilder {
            path: format!("{kind}[{name}]"),
            table: Table::from_iter([("name".to_owned(), name.into())]),
            origins: Vec::new(),
        }
    }

    /// Sets the groups of a policy from OpenSSL's list of curves.
    pub(super) fn curves(&mut self, policy: &mut SectionBuilder, list: &str, origin: SettingId) {
        let (mut groups, mut others) = (Vec::new(), Vec::new());
        for name in list.split(':').map(str::trim) {
            match KeyExchangeGroup::parse(name).map(|group| group.write()) {
                Ok(group) if groups.contains(&group) => {}
                Ok(group) => groups.push(group),
                Err(_) => others.push(name),
            }
        }
        if groups.is_empty() {
            let fault = "none of these groups is supported";
            return self.refuse(origin, fault, KeyExchangeGroup::ACCEPTED);
        }
        if !others.is_empty() {
            let why = format!("without {}, which is not supported", others.join(" and "));
            self.differs(origin, why);
        }
        policy.set("groups", groups, origin);
    }

    /// Sets the suites of a policy. `older` is OpenSSL's cipher string for TLS 1.2, and `newer` a
    /// list of suites for TLS 1.3.
    pub(super) fn suites(
        &mut self,
        policy: &mut SectionBuilder,
        versions: &[&str],
        older: Option<(&str, SettingId)>,
        newer: Option<(&str, SettingId)>,
        default: &str,
    ) {
        let of_older = older.filter(|_| versions.contains(&"1.2"));
        let Some((_, first)) = of_older.or(newer).or(older) else {
            return;
        };
        let all_of_tls13 = TLS13.join(":");
        let newer_text = newer.map_or(&*all_of_tls13, |(text, _)| text);
        let older_text = older.map_or(default, |(text, _)| text);
        let mut suites = Vec::new();
        for (version, given, choice) in [
            ("1.3", newer, ciphers::tls13(newer_text)),
            ("1.2", older, ciphers::tls12(older_text)),
        ] {
            if !versions.contains(&version) {
                continue;
            }
            if let Some((_, origin)) = given {
                if choice.suites.is_empty() {
                    return self.refuse(origin, NOTHING_LEFT, LEAVING);
                }
                let (support, why) = choice.support();
                self.amend(origin, support, why);
            }
            suites.extend(choice.suites);
        }
        policy.set("suites", suites, first);
    }

    pub(super) fn add(&mut self, section: SectionBuilder) {
        let kind = section.path.split('[').next().unwrap_or_default();
        for (path, origin) in section.origins {
            self.made.origins.entry(path).or_default().push(origin.0);
        }
        let entry = self.made.table.entry(kind);
        let list = entry.or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.push(section.table.into());
        }
    }

    pub(super) fn finish(mut self, settings: &'static [Setting], is_daemon: bool) -> Translation {
        self.made
            .problems
            .sort_by(|one, other| one.place().cmp(&other.place()));
        Translation {
            settings,
            is_daemon,
            ..self.made
        }
    }
}

/// Formats an address as in `becket.toml`.
pub(super) fn address(host: &str, port: &str) -> String {
    match host {
        "*" | "" => format!(":{port}"),
        host if host.contains(':') => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    }
}

pub(super) const SYSLOG: &str = "/dev/log";
/// Maximum number of reported errors, as for `becket.toml`.
const FAULTS: usize = 100;
/// Maximum number of directives in a HAProxy or nginx configuration. Names and servers in the
/// output also count.
pub(super) const MOST_DIRECTIVES: usize = 100_000;
