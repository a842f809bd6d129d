//! Collects the settings of each block in hitch.conf, and checks their values.

use std::collections::BTreeMap;

use super::super::builder::SettingId;
use super::super::setting::{Setting, ValueKind};
use super::lexer::Value;

#[derive(Clone, Debug)]
pub(in super::super) struct CertificateEntry {
    pub(super) path: String,
    pub(super) origin: SettingId,
    /// Settings in the block of this certificate.
    pub(super) block: Scope,
}

impl CertificateEntry {
    /// Creates an entry for a file that contains both chain and key.
    pub(super) fn new(path: String, origin: SettingId) -> Self {
        Self {
            path,
            origin,
            block: Scope::default(),
        }
    }
}

/// Values that passed their checks, by setting name.
pub(super) type SettingValues = BTreeMap<&'static str, (String, SettingId)>;

#[derive(Clone, Debug, Default)]
pub(in super::super) struct Scope {
    /// Setting that starts the block; `None` for global settings.
    pub(super) origin: Option<SettingId>,
    pub(super) held: SettingValues,
    pub(in super::super) certificates: Vec<CertificateEntry>,
}

impl Scope {
    pub(in super::super) fn new(origin: SettingId) -> Self {
        Self {
            origin: Some(origin),
            ..Self::default()
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<(&str, SettingId)> {
        let (text, origin) = self.held.get(name)?;
        Some((text, *origin))
    }

    pub(super) fn number(&self, name: &str) -> Option<(i64, SettingId)> {
        let (text, origin) = self.text(name)?;
        Some((text.parse().ok()?, origin))
    }

    pub(super) fn switch(&self, name: &str) -> Option<(bool, SettingId)> {
        let (text, origin) = self.text(name)?;
        Some((switch(text)?, origin))
    }

    pub(super) fn number_or(&self, name: &str, default: i64) -> (i64, Option<SettingId>) {
        let given = self.number(name);
        given.map_or((default, None), |(number, origin)| (number, Some(origin)))
    }

    /// Returns the origin of a setting if it is on.
    pub(super) fn on(&self, name: &str) -> Option<SettingId> {
        self.switch(name)
            .filter(|(is_on, _)| *is_on)
            .map(|(_, origin)| origin)
    }

    /// Returns `true` if the block contains only an address.
    pub(super) fn is_plain(&self) -> bool {
        self.certificates.is_empty() && self.held.keys().all(|name| ["host", "port"].contains(name))
    }
}

pub(super) fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "yes" | "y" | "true" | "t" | "1" => Some(true),
        "off" | "no" | "n" | "false" | "f" | "0" => Some(false),
        _ => None,
    }
}

pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split([' ', '\t', ',']);
    words.filter(|word| !word.is_empty())
}

/// Returns `None` if the value is valid for the setting, otherwise a description of the accepted
/// values.
pub(super) fn misfit(setting: &Setting, written: &Value, text: &str) -> Option<&'static str> {
    let (fits, accepted) = match (setting.kind, written) {
        _ if text.contains(char::REPLACEMENT_CHARACTER) => (false, "text in UTF-8"),
        (ValueKind::Words, _) => (true, ""),
        (_, Value::Words(words)) if words.len() > 1 => {
            (false, "one value; text with spaces in \"quotes\"")
        }
        (ValueKind::Number, _) => {
            let is_auto = text == "auto" && setting.theirs == "workers";
            (is_auto || text.parse::<i64>().is_ok(), "a whole number")
        }
        (ValueKind::Switch | ValueKind::SwitchOff, _) => (switch(text).is_some(), "on or off"),
        _ => (true, ""),
    };
    (!fits).then_some(accepted)
}
