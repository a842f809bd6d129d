//! The settings of one service, or the global settings.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::builder::SettingId;
use super::super::setting::{Setting, ValueKind};
use becket_config::error::Problem;

pub(super) type GivenSettings = BTreeMap<&'static str, Vec<(String, SettingId)>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Service {
    pub(super) name: String,
    line: usize,
    /// Included file of the section; `None` for the main file.
    file: Option<Box<str>>,
    given: GivenSettings,
    global: Rc<GivenSettings>,
}

impl Service {
    pub(super) fn new(
        name: String,
        (file, line): (Option<Box<str>>, usize),
        global: &Rc<GivenSettings>,
    ) -> Self {
        Self {
            name,
            line,
            file,
            given: GivenSettings::new(),
            global: Rc::clone(global),
        }
    }

    pub(super) fn shared(&self) -> Rc<GivenSettings> {
        Rc::new(self.given.clone())
    }

    /// Adds a value if the setting accumulates values, otherwise replaces it. Returns `false` if
    /// there are too many values.
    pub(super) fn take(&mut self, setting: &Setting, value: &str, origin: SettingId) -> bool {
        let name = setting.theirs;
        let values = self.given.entry(name).or_default();
        if setting.kind != ValueKind::Repeated {
            values.clear();
        } else if values.is_empty() {
            values.extend(self.global.get(name).into_iter().flatten().cloned());
        }
        let has_room = values.len() < MOST_VALUES;
        if has_room {
            values.push((value.to_owned(), origin));
        }
        has_room
    }

    /// Returns all values of a setting, from the section or otherwise from the global part.
    pub(super) fn all(&self, name: &str) -> &[(String, SettingId)] {
        let given = self.given.get(name).or_else(|| self.global.get(name));
        given.map_or(&[], Vec::as_slice)
    }

    pub(super) fn one(&self, name: &str) -> Option<&(String, SettingId)> {
        self.all(name).last()
    }

    /// Returns the value of a setting, or `None` if it is empty.
    pub(super) fn text(&self, name: &str) -> Option<(&str, SettingId)> {
        let (value, origin) = self.one(name)?;
        Some((value.as_str(), *origin)).filter(|(value, _)| !value.is_empty())
    }

    /// Returns the origin of a setting whose value is yes.
    pub(super) fn on(&self, name: &str) -> Option<SettingId> {
        let (value, origin) = self.text(name)?;
        value.eq_ignore_ascii_case("yes").then_some(origin)
    }

    pub(super) fn fault(&self, setting: &str, fault: &str) -> Problem {
        Problem {
            file: self.file.clone(),
            line: Some(self.line),
            ..Problem::new(setting, fault)
        }
    }

    pub(super) fn is_client(&self) -> bool {
        self.on("client").is_some()
    }
}

/// Maximum number of values per setting. Each service that adds values copies the global values.
pub(super) const MOST_VALUES: usize = 256;
