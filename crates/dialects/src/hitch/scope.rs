//! What is said in a block, or outside of all, and the shapes that values have.

use std::collections::BTreeMap;

use super::super::draft::Origin;
use super::super::setting::{Kind, Setting};

/// A value as it is written.
#[derive(Debug)]
pub(in super::super) enum Written {
    /// In quotes, or on a command line.
    Text(String),
    /// Without quotes.
    Words(Vec<String>),
}

/// A value that has the shape of its setting.
#[derive(Clone, Debug)]
pub(super) enum Held {
    Text(String),
    Number(i64),
    Switch(bool),
    Words(Vec<String>),
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub(in super::super) struct Pem {
    pub(super) path: String,
    pub(super) key: Option<String>,
    pub(super) ocsp: Option<String>,
    /// Verification of clients that get it, if its block sets that.
    pub(super) verify: Given,
    pub(super) origin: Origin,
}

impl Pem {
    /// Chain and key in one file.
    pub(super) fn new(path: String, origin: Origin) -> Self {
        Self {
            path,
            key: None,
            ocsp: None,
            verify: Given::new(),
            origin,
        }
    }
}

/// Values by the names of their settings.
pub(super) type Given = BTreeMap<&'static str, (Held, Origin)>;

/// Settings of a block, or of none.
#[derive(Debug, Default)]
pub(in super::super) struct Scope {
    /// The block itself.
    pub(super) origin: Option<Origin>,
    pub(super) held: Given,
    pub(in super::super) certificates: Vec<Pem>,
}

impl Scope {
    pub(in super::super) fn new(origin: Origin) -> Self {
        Self {
            origin: Some(origin),
            ..Self::default()
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<(&str, Origin)> {
        match self.held.get(name)? {
            (Held::Text(text), origin) => Some((text, *origin)),
            _ => None,
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<(i64, Origin)> {
        match self.held.get(name)? {
            (Held::Number(number), origin) => Some((*number, *origin)),
            _ => None,
        }
    }

    pub(super) fn switch(&self, name: &str) -> Option<(bool, Origin)> {
        match self.held.get(name)? {
            (Held::Switch(switch), origin) => Some((*switch, *origin)),
            _ => None,
        }
    }

    /// Where it is switched on.
    pub(super) fn on(&self, name: &str) -> Option<Origin> {
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
    written: &Written,
    shown: &str,
) -> Result<Held, &'static str> {
    if shown.contains(char::REPLACEMENT_CHARACTER) {
        return Err("text in UTF-8");
    }
    let words = || match written {
        Written::Text(text) => text
            .split([' ', '\t', ','])
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect(),
        Written::Words(words) => words.clone(),
    };
    match (setting.kind, written) {
        (Kind::Words, _) => Ok(Held::Words(words())),
        (_, Written::Words(words)) if words.len() > 1 => {
            Err("one value; text with spaces in \"quotes\"")
        }
        (Kind::Text | Kind::Block, _) => Ok(Held::Text(shown.to_owned())),
        (Kind::Number, _) if shown == "auto" && setting.theirs == "workers" => {
            Ok(Held::Words(words()))
        }
        (Kind::Number, _) => shown
            .parse()
            .map(Held::Number)
            .map_err(|_| "a whole number"),
        (Kind::Switch | Kind::SwitchOff, _) => match shown.to_ascii_lowercase().as_str() {
            "on" | "yes" | "y" | "true" | "t" | "1" => Ok(Held::Switch(true)),
            "off" | "no" | "n" | "false" | "f" | "0" => Ok(Held::Switch(false)),
            _ => Err("on or off"),
        },
    }
}
