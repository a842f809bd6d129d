//! The table translated from a configuration, with its problems and remarks.

use std::collections::HashMap;

use toml::Table;

use super::setting::{Remark, Setting, SettingSupport};
use becket_config::error::Problem;

#[derive(Debug, Default)]
pub struct Translation {
    /// The configuration in the format of `becket.toml`. All paths are absolute.
    pub table: Table,
    pub problems: Vec<Problem>,
    pub report: Vec<Remark>,
    /// `true` if the original program would run in the background.
    pub is_daemon: bool,
    pub(crate) settings: &'static [Setting],
    pub(crate) origins: HashMap<String, Vec<usize>>,
}

impl Translation {
    pub fn names(&self, path: &str) -> bool {
        self.origins.contains_key(path)
    }

    /// Returns the origin of a key. If the key has no origin, returns that of the nearest table
    /// above it.
    fn origin(&self, path: &str) -> Option<&Remark> {
        let mut path = path;
        loop {
            if let Some(remark) = self.origins.get(path).and_then(|found| found.first()) {
                return Some(&self.report[*remark]);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }

    /// Changes a problem of the table to name the original setting, value and line.
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

    /// Returns one line for each setting that differs from the original program or has no effect.
    /// `origin` is the configuration file.
    pub fn remarks(&self, origin: &str) -> impl Iterator<Item = String> {
        let told = |remark: &&Remark| {
            matches!(
                remark.verdict,
                SettingSupport::Different | SettingSupport::Ignored
            )
        };
        self.report.iter().filter(told).map(move |remark| {
            let file = remark.file.as_deref().unwrap_or(origin);
            let place = match remark.line {
                Some(line) => format!("{file}:{line}: "),
                None => String::new(),
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

/// Removes section names and indexes from a key path, as in the documentation.
fn key(path: &str) -> String {
    let parts = path
        .split('[')
        .map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}

pub(crate) fn name(remark: &Remark) -> String {
    match remark.line {
        Some(_) => remark.theirs.to_owned(),
        None => format!("--{}", remark.theirs),
    }
}
