//! A configuration in the making: the table that a dialect becomes, and which setting each key of it comes from.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::Translation;
use super::setting::{Kind, Remark, Setting, Verdict};
use becket_config::error::{Problem, shortened};
use becket_config::notation::Text;
use becket_config::suites::Group;

/// A setting that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// Its remark.
    remark: usize,
}

/// What is known so far.
#[derive(Debug)]
pub(super) struct Draft {
    folder: PathBuf,
    /// The part that is being read, where that is a file of its own.
    file: Option<Box<str>>,
    table: Table,
    origins: HashMap<String, Vec<Origin>>,
    problems: Vec<Problem>,
    report: Vec<Remark>,
    /// Settings that nobody knows.
    strangers: usize,
}

/// One table of an array, such as a `[[listener]]`.
#[derive(Debug)]
pub(super) struct Section {
    path: String,
    table: Table,
}

impl Draft {
    /// Begins one whose relative paths start at `folder`.
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            file: None,
            table: Table::new(),
            origins: HashMap::new(),
            problems: Vec::new(),
            report: Vec::new(),
            strangers: 0,
        }
    }

    /// Notes that a setting is there, with what its table says of it.
    pub(super) fn note(
        &mut self,
        setting: &'static Setting,
        line: Option<usize>,
        value: &str,
    ) -> Origin {
        self.report.push(Remark {
            theirs: setting.theirs,
            file: self.file.clone(),
            line,
            value: shortened(value),
            ours: setting.ours,
            verdict: setting.verdict,
            why: setting.why.to_owned(),
        });
        Origin {
            remark: self.report.len() - 1,
        }
    }

    /// Refuses a setting, whatever its value, for the reason that its table has.
    pub(super) fn refuse_setting(&mut self, origin: Origin) {
        let why = self.report[origin.remark].why.clone();
        self.refuse(origin, why, "a configuration without it");
    }

    /// The part that is being read from now on; returns the one before.
    pub(super) fn enter(&mut self, file: Option<Box<str>>) -> Option<Box<str>> {
        std::mem::replace(&mut self.file, file)
    }

    /// The part that is being read, where that is a file of its own.
    pub(super) fn file(&self) -> Option<Box<str>> {
        self.file.clone()
    }

    /// Whether there are more faults already than anybody corrects in one go.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() >= FAULTS
    }

    /// Says of a setting what holds for this value.
    pub(super) fn amend(&mut self, origin: Origin, verdict: Verdict, why: impl Into<String>) {
        let remark = &mut self.report[origin.remark];
        remark.verdict = verdict;
        remark.why = why.into();
    }

    /// Refuses a value.
    pub(super) fn refuse(
        &mut self,
        origin: Origin,
        fault: impl Into<String>,
        accepted: impl Into<String>,
    ) {
        let fault = fault.into();
        self.amend(origin, Verdict::Refused, fault.clone());
        let remark = &self.report[origin.remark];
        let problem = Problem {
            file: remark.file.clone(),
            line: remark.line,
            ..Problem::new(name(remark), fault).text(&remark.value)
        };
        self.problem(problem.accepted(accepted));
    }

    /// Notes a fault, unless there are too many.
    pub(super) fn problem(&mut self, mut problem: Problem) {
        if !self.is_full() {
            if problem.line.is_some() && problem.file.is_none() {
                problem.file.clone_from(&self.file);
            }
            self.problems.push(problem);
        }
    }

    /// A path as text, from the folder in which the program was started.
    pub(super) fn place(&self, path: &str) -> String {
        // Both are text, so nothing is lost.
        self.folder.join(path).to_string_lossy().into_owned()
    }

    /// Notes a setting that the program passes over, too.
    pub(super) fn unknown(&mut self, name: &str, line: Option<usize>) {
        if self.strangers < FAULTS {
            self.strangers += 1;
            self.note(&UNKNOWN, line, name);
        }
    }

    /// Sets a key of a table of which there is one, such as `[timeouts]`.
    pub(super) fn put(
        &mut self,
        table: &str,
        key: &str,
        value: impl Into<Value>,
        origin: Option<Origin>,
    ) {
        let path = format!("{table}.{key}");
        self.origins.entry(path).or_default().extend(origin);
        let entry = self
            .table
            .entry(table)
            .or_insert_with(|| Table::new().into());
        if let Value::Table(table) = entry {
            table.insert(key.to_owned(), value.into());
        }
    }

    /// Begins a `[[listener]]`, `[[policy]]` or `[[backend]]`.
    pub(super) fn section(&self, kind: &str, name: &str) -> Section {
        let mut table = Table::new();
        table.insert("name".to_owned(), name.into());
        Section {
            path: format!("{kind}[{name}]"),
            table,
        }
    }

    /// Sets a key of a section.
    pub(super) fn set(
        &mut self,
        section: &mut Section,
        key: &str,
        value: impl Into<Value>,
        origin: Option<Origin>,
    ) {
        let path = format!("{}.{key}", section.path);
        self.origins.entry(path).or_default().extend(origin);
        section.table.insert(key.to_owned(), value.into());
    }

    /// Sets a key of `[backend.tls]`, which is in a table of its own until the section gets it.
    pub(super) fn of_servers(
        &mut self,
        (section, tls): (&Section, &mut Table),
        key: &'static str,
        value: impl Into<Value>,
        origin: Option<Origin>,
    ) {
        let short = key.rsplit('.').next().unwrap_or(key);
        let path = format!("{}.tls.{short}", section.path);
        self.origins.entry(path).or_default().extend(origin);
        if let Some(origin) = origin {
            self.report[origin.remark].ours = key;
        }
        tls.insert(short.to_owned(), value.into());
    }

    /// Adds to a list of a section.
    pub(super) fn push(
        &mut self,
        section: &mut Section,
        key: &str,
        value: impl Into<Value>,
        origin: Option<Origin>,
    ) {
        let entry = section.table.entry(key);
        let list = entry.or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            let path = format!("{}.{key}[{}]", section.path, list.len());
            self.origins.entry(path).or_default().extend(origin);
            list.push(value.into());
        }
    }

    /// Sets the groups of a policy, as OpenSSL lists curves.
    pub(super) fn curves(&mut self, policy: &mut Section, list: &str, origin: Origin) {
        let (known, others): (Vec<&str>, Vec<&str>) = list
            .split(':')
            .map(str::trim)
            .partition(|name| Group::parse(name).is_ok());
        if known.is_empty() {
            return self.refuse(origin, "none of these groups exists here", Group::ACCEPTED);
        }
        if !others.is_empty() {
            let why = format!(
                "without {}, which does not exist here",
                others.join(" and ")
            );
            self.amend(origin, Verdict::Different, why);
        }
        let mut groups = Vec::new();
        for group in known.iter().filter_map(|name| Group::parse(name).ok()) {
            if !groups.contains(&group.write()) {
                groups.push(group.write());
            }
        }
        self.set(policy, "groups", groups, Some(origin));
    }

    /// Ends a section.
    pub(super) fn add(&mut self, section: Section) {
        let kind = section.path.split('[').next().unwrap_or_default();
        let entry = self.table.entry(kind);
        let list = entry.or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.push(section.table.into());
        }
    }

    /// The outcome.
    pub(super) fn finish(mut self, settings: &'static [Setting], is_daemon: bool) -> Translation {
        self.problems
            .sort_by(|one, other| one.place().cmp(&other.place()));
        let named =
            |origins: Vec<Origin>| origins.into_iter().map(|origin| origin.remark).collect();
        let origins = self.origins.into_iter();
        Translation {
            table: self.table,
            problems: self.problems,
            report: self.report,
            settings,
            origins: origins.map(|(path, from)| (path, named(from))).collect(),
            is_daemon,
        }
    }
}

/// A setting as whoever wrote it knows it.
pub(super) fn name(remark: &Remark) -> String {
    match remark.line {
        Some(_) => remark.theirs.to_owned(),
        None => format!("--{}", remark.theirs),
    }
}

/// An address as ours are written.
pub(super) fn address(host: &str, port: &str) -> String {
    match host {
        "*" | "" => format!(":{port}"),
        host if host.contains(':') => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    }
}

static UNKNOWN: Setting = Setting::ignored(Kind::Text, "unknown key", "passed over, as there");
/// Where syslog(3) sends.
pub(super) const SYSLOG: &str = "/dev/log";
/// Faults reported of one text, as for TOML.
const FAULTS: usize = 100;
