//! Settings of a dialect as data: name, becket's key, and support.
//!
//! One table per dialect controls the parser, the report of a migration, and
//! `docs/reference/drop-in.md`.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingSupport {
    /// The setting has the same effect.
    Same,
    /// The effect differs in a documented and safe way.
    Different,
    /// becket refuses to start, because ignoring the setting would be unsafe or unintended.
    Refused,
    /// The setting needs no translation, because becket has no need for it.
    #[serde(rename = "not needed")]
    Ignored,
    /// The setting has no counterpart in `becket.toml`. The reason explains what to do instead.
    Lost,
}

impl SettingSupport {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Text,
    /// Text; the values of several lines accumulate.
    Repeated,
    Number,
    /// Yes or no. The key and the support in the table row apply to the value `yes`.
    Switch,
    /// Yes or no. The key and the support in the table row apply to the value `no`.
    SwitchOff,
    /// One or more words without quotes (hitch's `tls-protos`).
    Words,
    /// Text or a `{ block }`.
    Block,
    Path,
    /// Time; a number without a unit is in milliseconds.
    Millis,
    /// Time; a number without a unit is in seconds.
    Seconds,
    List,
    /// No value; the key is set to `true`.
    Flag,
    /// No value; the key is set to this value.
    Const(&'static str),
    /// One of the left values, each paired with the value of becket's key. An empty right value
    /// sets no key.
    Choice(&'static [(&'static str, &'static str)]),
    /// No value; code translates the setting.
    Mark,
    /// One value; code translates the setting.
    Own,
}

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name of the setting in the other program.
    pub theirs: &'static str,
    /// becket's key or keys; empty if becket has no equivalent.
    pub ours: &'static str,
    /// Support of the setting, unless its value determines another support.
    pub verdict: SettingSupport,
    /// Explanation of the difference; empty if the effect is the same.
    pub why: &'static str,
    pub(super) kind: ValueKind,
    /// Short form of the option with the name of the setting, or nothing if the option has only the
    /// long form. `None` if there is no option.
    pub(super) option: Option<&'static str>,
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
            option: None,
        }
    }

    /// Adds an option of the command line.
    pub(super) const fn option(self, short: &'static str) -> Self {
        Self {
            option: Some(short),
            ..self
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

    /// Creates a setting of which becket supports only some values; other values are lost.
    pub(super) const fn partly(
        kind: ValueKind,
        theirs: &'static str,
        ours: &'static str,
        why: &'static str,
    ) -> Self {
        Self::new(kind, (theirs, ours), SettingSupport::Lost, why)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    pub theirs: &'static str,
    /// Included file of the setting; `None` for the main file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Box<str>>,
    /// Line of the setting; `None` on a command line.
    pub line: Option<usize>,
    /// Value as written in the file, possibly shortened.
    pub value: String,
    pub ours: &'static str,
    pub verdict: SettingSupport,
    pub why: String,
}

impl Remark {
    /// Formats the line and the included file of the setting. Empty on a command line.
    pub(super) fn place(&self) -> String {
        match (&self.file, self.line) {
            (_, None) => String::new(),
            (None, Some(line)) => format!("line {line}"),
            (Some(file), Some(line)) => format!("{file} line {line}"),
        }
    }
}
