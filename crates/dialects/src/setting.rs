//! The settings of a dialect as data: what each is called, which key of ours it is, and how much of it holds here.
//!
//! One table per dialect drives its reader, the report of a migration, and `docs/reference/drop-in.md`.

use serde::Serialize;

/// How much of a setting holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingSupport {
    /// It does what it does there.
    Same,
    /// It does something else, which is said and safe.
    Different,
    /// Nothing starts with it: that would be less safe, or not what was asked for.
    Refused,
    /// It has no effect here, and none is missed.
    Ignored,
}

impl SettingSupport {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Different => "different",
            Self::Refused => "refused",
            Self::Ignored => "ignored",
        }
    }
}

/// What the value of a setting looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// Any text.
    Text,
    /// A whole number.
    Number,
    /// Yes or no; what the table says holds for yes.
    Switch,
    /// Yes or no; what the table says holds for no.
    SwitchOff,
    /// Words without quotes, one or more (hitch's `tls-protos`).
    Words,
    /// Text or a `{ block }`.
    Block,
}

/// One setting of another program.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name there.
    pub theirs: &'static str,
    /// The key, or keys, that it is here; empty where there is none.
    pub ours: &'static str,
    /// What holds for every value, or for the usual ones.
    pub verdict: SettingSupport,
    /// What differs and why; empty where nothing does.
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
}

/// What became of a setting that was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// Its name there.
    pub theirs: &'static str,
    /// The part of the configuration that has it, where that is a file of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Box<str>>,
    /// Where it is; absent on a command line.
    pub line: Option<usize>,
    /// Its value as written.
    pub value: String,
    /// The key that it is here.
    pub ours: &'static str,
    /// How much of it holds.
    pub verdict: SettingSupport,
    /// What differs and why.
    pub why: String,
}

impl Remark {
    /// Its line, and the part that has it; empty on a command line.
    pub(super) fn place(&self) -> String {
        match (&self.file, self.line) {
            (_, None) => String::new(),
            (None, Some(line)) => format!("line {line}"),
            (Some(file), Some(line)) => format!("{file} line {line}"),
        }
    }
}
