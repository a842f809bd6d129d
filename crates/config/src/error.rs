//! Errors and warnings about a configuration.
//!
//! A [`Problem`] is one fault with its key path, line, value as written and accepted values; it
//! prints as one line. [`Report`] collects all errors and warnings, not only the first.
//! [`Rejected`] is returned if there is at least one error.

use std::borrow::Cow;
use std::fmt;
use std::io;

use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Key path, such as `listener[web].bind[1]`, or a command-line flag. Empty if the problem
    /// concerns the whole file.
    pub path: String,
    /// File that contains the problem: the configuration, or a file that it includes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<Box<str>>,
    /// Line in the file, counted from 1; `None` for flags.
    pub line: Option<usize>,
    /// Value as written, strings in quotes; `None` if the key is missing.
    pub value: Option<String>,
    pub fault: String,
    pub accepted: Option<Box<str>>,
}

impl Problem {
    pub fn new(path: impl Into<String>, fault: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            fault: fault.into(),
            ..Self::default()
        }
    }

    /// Returns the key by which problems are sorted: file, then line. The main file comes first.
    pub fn place(&self) -> (Option<&str>, Option<usize>) {
        (self.file.as_deref(), self.line)
    }

    pub fn text(self, value: &str) -> Self {
        self.value(format!("{:?}", shortened(value)))
    }

    pub fn line(mut self, line: usize) -> Self {
        self.line = Some(line);
        self
    }

    /// Adds the invalid value as written in the file.
    pub fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    pub fn accepted(mut self, accepted: impl Into<String>) -> Self {
        self.accepted = Some(accepted.into().into());
        self
    }

    /// Returns the problem as one line: file, line, `label` (such as `error: `), key path, value, fault and accepted
    /// values.
    pub fn labelled(&self, label: &str) -> String {
        let place = match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}: "),
            (Some(file), None) => format!("{file}: "),
            (None, Some(line)) => format!("line {line}: "),
            (None, None) => String::new(),
        };
        let key = match self.subject() {
            key if key.is_empty() => key,
            key => key + ": ",
        };
        let line = format!("{place}{label}{key}{}", self.fault);
        match &self.accepted {
            Some(accepted) => format!("{line}; accepted: {accepted}"),
            None => line,
        }
    }

    /// Returns the key path and the value, joined by ` = `; empty if both are unknown.
    pub fn subject(&self) -> String {
        match (self.path.as_str(), &self.value) {
            (path, None) => path.to_owned(),
            ("", Some(value)) => value.clone(),
            (path, Some(value)) => format!("{path} = {value}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.labelled(""))
    }
}

/// Fault of a value. `accepted` is set only if it differs from the accepted values of the notation.
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

impl<T: Into<Cow<'static, str>>> From<T> for ValueError {
    fn from(fault: T) -> Self {
        Self {
            fault: fault.into(),
            accepted: None,
        }
    }
}

#[derive(Debug, Default)]
pub struct Report {
    pub errors: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl Report {
    pub fn error(&mut self, problem: Problem) {
        self.errors.push(problem);
    }

    pub fn warn(&mut self, problem: Problem) {
        self.warnings.push(problem);
    }

    pub fn refuse(
        &mut self,
        path: impl Into<String>,
        fault: impl Into<String>,
        accepted: impl Into<String>,
    ) {
        self.error(Problem::new(path, fault).accepted(accepted));
    }

    pub fn remark(&mut self, path: impl Into<String>, fault: impl Into<String>) {
        self.warn(Problem::new(path, fault));
    }
}

/// Expands to the key path of a field: `key!(path, listener.bind)`. The compiler checks that the
/// field exists.
#[macro_export]
macro_rules! key {
    ($path:expr, $section:ident.$field:ident) => {{
        let _ = &$section.$field;
        let key = stringify!($field).replace('_', "-");
        format!("{}.{key}", $path)
    }};
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// File name of the configuration, or `command line`; empty if unknown.
    pub origin: String,
    /// Errors; at least one.
    pub errors: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

impl Rejected {
    /// Creates a rejection of unknown origin, without warnings.
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
            write!(f, "\n{}", problem.labelled("error: "))?;
        }
        for problem in &self.warnings {
            write!(f, "\n{}", problem.labelled("warning: "))?;
        }
        Ok(())
    }
}

impl std::error::Error for Rejected {}

/// Returns the value truncated for display. Removes the PIN from a token's URI, and user and password
/// from a URL.
pub fn shortened(value: &str) -> String {
    if let Some((scheme, rest)) = value.split_once("://")
        && let Some((_, host)) = rest.rsplit_once('@')
    {
        return format!("{scheme}://…@{}", shortened(host));
    }
    // A token URI may contain the PIN, which must not be logged.
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

/// Maximum number of characters of a value in an error. Longer than a usual path, shorter than a
/// pasted key.
const SHOWN_CHARS: usize = 120;

/// Returns the text of a system error without its error number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    // Convert only system errors to lower case, because other messages may contain paths and names.
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
        let located = Problem {
            file: Some("becket.toml".into()),
            ..problem
        };
        let line = located.labelled("error: ");
        assert!(line.starts_with("becket.toml:7: error: listener[web]"));
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
            "becket.toml: 2 errors\nerror: a: bad\nerror: b: worse\nwarning: c: odd"
        );
    }

    #[test]
    fn a_long_value_is_cut_when_shown() {
        let problem = Problem::new("a", "bad").text(&"é".repeat(500));
        assert!(problem.to_string().chars().count() < 200);
    }
}
