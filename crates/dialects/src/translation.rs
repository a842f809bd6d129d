//! The table that a configuration becomes, with its faults and remarks.

use std::collections::HashMap;

use toml::Table;

use super::setting::{Remark, Setting, SettingSupport};
use becket_config::error::Problem;

/// What a configuration becomes.
#[derive(Debug, Default)]
pub struct Translation {
    /// The same as a file of ours has it. Paths are absolute.
    pub table: Table,
    /// What is wrong with it, by line.
    pub problems: Vec<Problem>,
    /// What became of each setting that was given.
    pub report: Vec<Remark>,
    /// Whether the program would go into the background.
    pub is_daemon: bool,
    pub(crate) settings: &'static [Setting],
    pub(crate) origins: HashMap<String, Vec<usize>>,
}

impl Translation {
    /// Whether there is a key, such as `process.user`.
    pub fn names(&self, path: &str) -> bool {
        self.origins.contains_key(path)
    }

    /// What a key comes from, or the key above it that is known.
    fn origin(&self, path: &str) -> Option<&Remark> {
        let mut path = path;
        loop {
            if let Some(remark) = self.origins.get(path).and_then(|found| found.first()) {
                return Some(&self.report[*remark]);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// Says a problem of the table in the words of whoever wrote the settings.
    pub fn place(&self, problem: &mut Problem) {
        let Some(remark) = self.origin(&problem.path) else {
            let key = key(&problem.path);
            let setting = self.settings.iter().find(|setting| setting.ours == key);
            problem.path = setting.map_or(key, |setting| setting.theirs.to_owned());
            return;
        };
        problem.path = name(remark);
        problem.file.clone_from(&remark.file);
        problem.line = remark.line;
        if problem.value.is_none() && !problem.fault.starts_with("missing") {
            problem.value = Some(format!("{:?}", remark.value));
        }
    }

    /// One line for each setting that does not do here what it does there.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        let told = |remark: &&Remark| {
            matches!(
                remark.verdict,
                SettingSupport::Different | SettingSupport::Ignored
            )
        };
        self.report.iter().filter(told).map(|remark| {
            let place = match remark.place() {
                place if place.is_empty() => place,
                place => place + ": ",
            };
            format!(
                "{place}{}: {}: {}",
                name(remark),
                remark.verdict.word(),
                remark.why
            )
        })
    }
}

/// A key path without the names and numbers of sections: the key as the documentation has it.
fn key(path: &str) -> String {
    let parts = path
        .split('[')
        .map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}

/// A setting as whoever wrote it knows it.
pub(crate) fn name(remark: &Remark) -> String {
    match remark.line {
        Some(_) => remark.theirs.to_owned(),
        None => format!("--{}", remark.theirs),
    }
}
