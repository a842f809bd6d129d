//! What can be wrong with a configuration: a list, never the first fault only.
//!
//! A [`Problem`] is one fault with its key path, the line, the value as written and what would
//! be accepted; it prints as one line. [`Report`] collects them while a configuration is
//! prepared and keeps warnings apart; [`Rejected`] is the outcome when there was any error.
//! Nothing in here decides what is a fault.

use std::borrow::Cow;
use std::fmt;
use std::io;

use serde::Serialize;

/// One fault of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Key path, such as `listener[web].bind[1]`, or the flag; empty for the text as a whole.
    pub path: String,
    /// The part of the configuration that has it, where that is a file of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Box<str>>,
    /// Line in the file, counted from 1; unknown for flags.
    pub line: Option<usize>,
    /// The value as written, strings in quotes; absent when the key is.
    pub value: Option<String>,
    /// What is wrong with it.
    pub fault: String,
    /// What is accepted instead.
    pub accepted: Option<Box<str>>,
}

impl Problem {
    /// Describes a fault of the key at `path`.
    pub fn new(path: impl Into<String>, fault: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            fault: fault.into(),
            ..Self::default()
        }
    }

    /// By what problems are sorted: the parts of a configuration come behind its file.
    pub fn place(&self) -> (Option<&str>, Option<usize>) {
        (self.file.as_deref(), self.line)
    }

    /// Adds the string that was found.
    pub fn text(self, value: &str) -> Self {
        self.value(format!("{:?}", shortened(value)))
    }

    /// Adds the value that was found, already in the notation of the file.
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// Adds what would be accepted.
    pub fn accepted(mut self, accepted: impl Into<String>) -> Self {
        self.accepted = Some(accepted.into().into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            if let Some(file) = &self.file {
                write!(f, "{file} ")?;
            }
            write!(f, "line {line}: ")?;
        }
        match (self.path.as_str(), &self.value) {
            ("", None) => {}
            ("", Some(value)) => write!(f, "{value}: ")?,
            (path, None) => write!(f, "{path}: ")?,
            (path, Some(value)) => write!(f, "{path} = {value}: ")?,
        }
        f.write_str(&self.fault)?;
        match &self.accepted {
            Some(accepted) => write!(f, "; accepted: {accepted}"),
            None => Ok(()),
        }
    }
}

/// What is wrong with a value, and what is accepted where that is more than its notation says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError {
    pub(crate) fault: Cow<'static, str>,
    pub(crate) accepted: Option<String>,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fault)
    }
}

impl std::error::Error for ValueError {}

impl From<ValueError> for String {
    fn from(error: ValueError) -> Self {
        error.fault.into_owned()
    }
}

impl From<&'static str> for ValueError {
    fn from(fault: &'static str) -> Self {
        let fault = fault.into();
        Self {
            fault,
            accepted: None,
        }
    }
}

impl From<String> for ValueError {
    fn from(fault: String) -> Self {
        let fault = fault.into();
        Self {
            fault,
            accepted: None,
        }
    }
}

/// Faults found so far.
#[derive(Debug, Default)]
pub struct Report {
    /// Any of these refuses the configuration.
    pub errors: Vec<Problem>,
    /// These do not.
    pub warnings: Vec<Problem>,
}

impl Report {
    /// Adds an error.
    pub fn error(&mut self, problem: Problem) {
        self.errors.push(problem);
    }

    /// Adds a warning.
    pub fn warn(&mut self, problem: Problem) {
        self.warnings.push(problem);
    }

    /// Adds an error of the key at `path`, whose value is added where it is known as written.
    pub fn refuse(
        &mut self,
        path: impl Into<String>,
        fault: impl Into<String>,
        accepted: impl Into<String>,
    ) {
        self.error(Problem::new(path, fault).accepted(accepted));
    }

    /// As [`Self::refuse`], where something is wrong.
    pub(crate) fn refuse_if(&mut self, is_wrong: bool, path: String, fault: &str, accepted: &str) {
        if is_wrong {
            self.refuse(path, fault, accepted);
        }
    }

    /// Adds a warning about the key at `path`.
    pub fn remark(&mut self, path: impl Into<String>, fault: impl Into<String>) {
        self.warn(Problem::new(path, fault));
    }
}

/// The key path of a field of a section: `key!(path, listener.bind)`. The compiler knows the field.
#[macro_export]
macro_rules! key {
    ($path:expr, $section:ident.$field:ident) => {{
        let _ = &$section.$field;
        let key = stringify!($field).replace('_', "-");
        format!("{}.{key}", $path)
    }};
}

/// A configuration that is not used, with all that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The file, or `command line`; empty when it is not known.
    pub origin: String,
    /// At least one.
    pub errors: Vec<Problem>,
    /// What else was noticed.
    pub warnings: Vec<Problem>,
}

impl Rejected {
    /// Rejects a configuration of unknown origin, without warnings.
    pub fn of(errors: Vec<Problem>) -> Self {
        Self {
            origin: String::new(),
            errors,
            warnings: Vec::new(),
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.origin.as_str() {
            "" => "configuration",
            origin => origin,
        };
        let count = self.errors.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{origin}: {count} error{plural}")?;
        for problem in &self.errors {
            write!(f, "\n  error: {problem}")?;
        }
        for problem in &self.warnings {
            write!(f, "\n  warning: {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Rejected {}

/// The value, cut where it would fill the screen.
pub fn shortened(value: &str) -> String {
    // Where a key is on a token, somebody may have written the PIN, and this goes to logs.
    if let Some((before, _)) = value.split_once("pin-value=") {
        return format!("{before}pin-value=…");
    }
    if value.chars().count() <= SHOWN_CHARS {
        return value.to_owned();
    }
    let mut short: String = value.chars().take(SHOWN_CHARS).collect();
    short.push('…');
    short
}

/// A path of usual length fits; a pasted key does not.
const SHOWN_CHARS: usize = 120;

/// Returns the text of a system error without its number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    // Other texts may have paths and names in them.
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_with_path_value_fault_and_what_is_accepted() {
        let problem = Problem {
            line: Some(7),
            ..Problem::new("listener[web].bind[1]", "no port")
                .text("foo\nbar")
                .accepted("HOST:PORT")
        };
        assert_eq!(
            problem.to_string(),
            r#"line 7: listener[web].bind[1] = "foo\nbar": no port; accepted: HOST:PORT"#
        );
    }

    #[test]
    fn a_rejection_lists_every_error_before_the_warnings() {
        let rejected = Rejected {
            origin: "becket.toml".into(),
            errors: vec![Problem::new("a", "bad"), Problem::new("b", "worse")],
            warnings: vec![Problem::new("c", "odd")],
        };
        assert_eq!(
            rejected.to_string(),
            "becket.toml: 2 errors\n  error: a: bad\n  error: b: worse\n  warning: c: odd"
        );
    }

    #[test]
    fn a_long_value_is_cut_when_shown() {
        let problem = Problem::new("a", "bad").text(&"é".repeat(500));
        assert!(problem.to_string().chars().count() < 200);
    }
}
