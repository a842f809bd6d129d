//! What is said of one service, or of all.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::builder::SettingId;
use super::table::REPEATED;
use becket_config::error::Problem;

/// Values by the names of their settings.
pub(super) type GivenSettings = BTreeMap<&'static str, Vec<(String, SettingId)>>;

/// The settings of a section, or of the global part.
#[derive(Clone, Debug, Default)]
pub(super) struct Service {
    pub(super) name: String,
    line: usize,
    /// The part that has it, where that is a file of its own.
    file: Option<Box<str>>,
    given: GivenSettings,
    /// What holds where the section says nothing.
    global: Rc<GivenSettings>,
}

impl Service {
    /// A service that has what the global part says.
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

    /// What this global part says, for the services behind it.
    pub(super) fn shared(&self) -> Rc<GivenSettings> {
        Rc::new(self.given.clone())
    }

    /// Takes a value: beside the others where they add up, else in their place. Says whether there was room for it.
    pub(super) fn take(&mut self, name: &'static str, value: String, origin: SettingId) -> bool {
        let values = self.given.entry(name).or_default();
        if !REPEATED.contains(&name) {
            values.clear();
        } else if values.is_empty() {
            values.extend(self.global.get(name).into_iter().flatten().cloned());
        }
        let has_room = values.len() < MOST_VALUES;
        if has_room {
            values.push((value, origin));
        }
        has_room
    }

    /// Every value of a setting.
    pub(super) fn all(&self, name: &str) -> &[(String, SettingId)] {
        let given = self.given.get(name).or_else(|| self.global.get(name));
        given.map_or(&[], Vec::as_slice)
    }

    /// The value of a setting of which there is one.
    pub(super) fn one(&self, name: &str) -> Option<&(String, SettingId)> {
        self.all(name).last()
    }

    /// The value, where it is not empty.
    pub(super) fn text(&self, name: &str) -> Option<(&str, SettingId)> {
        let (value, origin) = self.one(name)?;
        Some((value.as_str(), *origin)).filter(|(value, _)| !value.is_empty())
    }

    /// Where a setting says yes.
    pub(super) fn on(&self, name: &str) -> Option<SettingId> {
        let (value, origin) = self.text(name)?;
        value.eq_ignore_ascii_case("yes").then_some(origin)
    }

    /// What is wrong with it as a whole.
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

/// More than one setting has. Each service has a copy where it adds to them.
pub(super) const MOST_VALUES: usize = 256;
