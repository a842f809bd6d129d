//! What is said in a block, or outside of all, and the shapes that values have.

use std::collections::BTreeMap;

use super::super::builder::SettingId;
use super::super::setting::{Setting, ValueKind};
use super::lexer::Value;

/// A value that has the shape of its setting.
#[derive(Clone, Debug)]
pub(super) enum SettingValue {
    Text(String),
    Number(i64),
    Switch(bool),
    Words(Vec<String>),
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub(in super::super) struct CertificateEntry {
    pub(super) path: String,
    pub(super) key: Option<String>,
    pub(super) ocsp: Option<String>,
    /// Verification of clients that get it, if its block sets that.
    pub(super) verify: SettingValues,
    pub(super) origin: SettingId,
}

impl CertificateEntry {
    /// Chain and key in one file.
    pub(super) fn new(path: String, origin: SettingId) -> Self {
        Self {
            path,
            key: None,
            ocsp: None,
            verify: SettingValues::new(),
            origin,
        }
    }
}

/// Values by the names of their settings.
pub(super) type SettingValues = BTreeMap<&'static str, (SettingValue, SettingId)>;

/// Settings of a block, or of none.
#[derive(Debug, Default)]
pub(in super::super) struct Scope {
    /// The block itself.
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
        match self.held.get(name)? {
            (SettingValue::Text(text), origin) => Some((text, *origin)),
            _ => None,
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<(i64, SettingId)> {
        match self.held.get(name)? {
            (SettingValue::Number(number), origin) => Some((*number, *origin)),
            _ => None,
        }
    }

    pub(super) fn switch(&self, name: &str) -> Option<(bool, SettingId)> {
        match self.held.get(name)? {
            (SettingValue::Switch(switch), origin) => Some((*switch, *origin)),
            _ => None,
        }
    }

    /// Returns a number, or the default without a setting.
    pub(super) fn number_or(&self, name: &str, default: i64) -> (i64, Option<SettingId>) {
        let given = self.number(name);
        given.map_or((default, None), |(number, origin)| (number, Some(origin)))
    }

    /// Where it is switched on.
    pub(super) fn on(&self, name: &str) -> Option<SettingId> {
        self.switch(name)
            .filter(|(is_on, _)| *is_on)
            .map(|(_, origin)| origin)
    }

    /// Whether it has an address and nothing else.
    pub(super) fn is_plain(&self) -> bool {
        self.certificates.is_empty() && self.held.keys().all(|name| ["host", "port"].contains(name))
    }
}

/// Gives a value the shape that its setting needs, or says what is accepted.
pub(super) fn held(
    setting: &Setting,
    written: &Value,
    shown: &str,
) -> Result<SettingValue, &'static str> {
    if shown.contains(char::REPLACEMENT_CHARACTER) {
        return Err("text in UTF-8");
    }
    let words = || match written {
        Value::Text(text) => {
            let words = text.split([' ', '\t', ',']);
            words
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect()
        }
        Value::Words(words) => words.clone(),
        Value::Block(_) => Vec::new(),
    };
    match (setting.kind, written) {
        (ValueKind::Words, _) => Ok(SettingValue::Words(words())),
        (_, Value::Words(words)) if words.len() > 1 => {
            Err("one value; text with spaces in \"quotes\"")
        }
        (ValueKind::Text | ValueKind::Block, _) => Ok(SettingValue::Text(shown.to_owned())),
        (ValueKind::Number, _) if shown == "auto" && setting.theirs == "workers" => {
            Ok(SettingValue::Words(words()))
        }
        (ValueKind::Number, _) => shown
            .parse()
            .map(SettingValue::Number)
            .map_err(|_| "a whole number"),
        (ValueKind::Switch | ValueKind::SwitchOff, _) => {
            match shown.to_ascii_lowercase().as_str() {
                "on" | "yes" | "y" | "true" | "t" | "1" => Ok(SettingValue::Switch(true)),
                "off" | "no" | "n" | "false" | "f" | "0" => Ok(SettingValue::Switch(false)),
                _ => Err("on or off"),
            }
        }
    }
}
