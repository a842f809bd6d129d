//! The settings of a dialect as data: name, becket's key, and support.
//!
//! One table per dialect drives its reader, the report of a migration, and
//! `docs/reference/drop-in.md`.

use serde::Serialize;

/// Support of a setting in becket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingSupport {
    /// The setting has the same effect.
    Same,
    /// The effect differs in a documented and safe way.
    Different,
    /// becket does not start, because ignoring the setting would be less safe or not as intended.
    Refused,
    /// The setting has no effect, and none is needed.
    #[serde(rename = "not needed")]
    Ignored,
    /// The setting has no counterpart in the file. The reason says what to do instead.
    Lost,
}

impl SettingSupport {
    /// Returns the word for the support in reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Different => "different",
            Self::Refused => "refused",
            Self::Ignored => "not needed",
            Self::Lost => "lost",
        }
    }
}

/// Kind of a setting's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// Any text.
    Text,
    /// A whole number.
    Number,
    /// Yes or no; support and key in the table are for yes.
    Switch,
    /// Yes or no; support and key in the table are for no.
    SwitchOff,
    /// One or more words without quotes (hitch's `tls-protos`).
    Words,
    /// Text or a `{ block }`.
    Block,
    /// Path of a file.
    Path,
    /// Time; a number without a unit is in milliseconds.
    Millis,
    /// Time; a number without a unit is in seconds.
    Seconds,
    /// Comma-separated list.
    List,
    /// No value; the key is set to `true`.
    Flag,
    /// No value; the key is set to this value.
    Const(&'static str),
    /// One of these values, each with the value of becket's key; if that is empty, no key is
    /// needed.
    Choice(&'static [(&'static str, &'static str)]),
    /// No value; code translates the setting.
    Mark,
    /// One value; code translates the setting.
    Own,
}

/// A setting of another program.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name in the other program.
    pub theirs: &'static str,
    /// Equivalent key or keys of becket; empty if becket has no such key.
    pub ours: &'static str,
    /// Support of all usual values.
    pub verdict: SettingSupport,
    /// Difference and reason; empty if there is no difference.
    pub why: &'static str,
    pub(super) kind: ValueKind,
}

impl Setting {
    const fn new(
        kind: ValueKind,
        (theirs, ours): (&'static str, &'static str),
        verdict: SettingSupport,
        why: &'static str,
    ) -> Self {
        Self {
            theirs,
            ours,
            verdict,
            why,
            kind,
        }
    }

    pub(super) const fn same(kind: ValueKind, theirs: &'static str, ours: &'static str) -> Self {
        Self::new(kind, (theirs, ours), SettingSupport::Same, "")
    }

    pub(super) const fn differs(
        kind: ValueKind,
        theirs: &'static str,
        ours: &'static str,
        why: &'static str,
    ) -> Self {
        Self::new(kind, (theirs, ours), SettingSupport::Different, why)
    }

    pub(super) const fn refused(kind: ValueKind, theirs: &'static str, why: &'static str) -> Self {
        Self::new(kind, (theirs, ""), SettingSupport::Refused, why)
    }

    pub(super) const fn ignored(kind: ValueKind, theirs: &'static str, why: &'static str) -> Self {
        Self::new(kind, (theirs, ""), SettingSupport::Ignored, why)
    }

    pub(super) const fn lost(kind: ValueKind, theirs: &'static str, why: &'static str) -> Self {
        Self::new(kind, (theirs, ""), SettingSupport::Lost, why)
    }

    /// Creates a setting for which becket supports some values; other values are lost.
    pub(super) const fn partly(
        kind: ValueKind,
        theirs: &'static str,
        ours: &'static str,
        why: &'static str,
    ) -> Self {
        Self::new(kind, (theirs, ours), SettingSupport::Lost, why)
    }
}

/// Result of the translation of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// Name in the other program.
    pub theirs: &'static str,
    /// Included file of the setting, if it is not in the main file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Box<str>>,
    /// Line of the setting; absent on a command line.
    pub line: Option<usize>,
    /// Value as written.
    pub value: String,
    /// The equivalent key of becket.
    pub ours: &'static str,
    /// Support of the setting.
    pub verdict: SettingSupport,
    /// Difference and reason.
    pub why: String,
}

impl Remark {
    /// Returns line and included file of the setting; empty on a command line.
    pub(super) fn place(&self) -> String {
        match (&self.file, self.line) {
            (_, None) => String::new(),
            (None, Some(line)) => format!("line {line}"),
            (Some(file), Some(line)) => format!("{file} line {line}"),
        }
    }
}
