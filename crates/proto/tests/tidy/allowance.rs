//! The ratchet: what is longer than the rule is listed with its length, and every line of the list may only shrink.
//!
//! What grows beyond its allowance fails; so does an allowance that is much larger than what it allows, so that a gain is kept. A
//! line of the list is `LENGTH PATH` for a file and `LENGTH PATH NAME` for a function. Adding a line needs a reason in the
//! review.

use std::collections::BTreeMap;

/// How long something is.
pub(crate) struct Length {
    name: String,
    lines: usize,
    ceiling: usize,
}

impl Length {
    /// Of a file, without its unit tests.
    pub(crate) fn file(path: &str, lines: usize) -> Self {
        Self {
            name: path.into(),
            lines,
            ceiling: LONGEST_FILE,
        }
    }

    /// Of a function.
    pub(crate) fn function(path: &str, name: &str, lines: usize) -> Self {
        Self {
            name: format!("{path} {name}"),
            lines,
            ceiling: LONGEST_FUNCTION,
        }
    }
}

/// What may be longer.
pub(crate) struct Allowance<'a>(BTreeMap<&'a str, usize>);

impl<'a> Allowance<'a> {
    /// Reads the list; `#` begins a comment.
    pub(crate) fn parse(list: &'a str) -> Self {
        let lines = list
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(
            lines
                .filter_map(|line| line.split_once(' '))
                .map(|(n, name)| (name, n.parse().expect("a length")))
                .collect(),
        )
    }

    /// What is too long, and what the list allows for nothing.
    pub(crate) fn faults(&self, lengths: &[Length]) -> Vec<String> {
        let mut longest: BTreeMap<&str, &Length> = BTreeMap::new();
        for length in lengths {
            let entry = longest.entry(&length.name).or_insert(length);
            if entry.lines < length.lines {
                *entry = length;
            }
        }
        let mut faults = Vec::new();
        for (name, length) in &longest {
            let allowed = self.0.get(name).copied().unwrap_or(length.ceiling);
            if length.lines > allowed {
                faults.push(format!(
                    "{name}: {} lines, {allowed} are allowed",
                    length.lines
                ));
            }
        }
        for (name, allowed) in &self.0 {
            match longest.get(name) {
                Some(length)
                    if length.lines > length.ceiling && length.lines + SLACK < *allowed =>
                {
                    faults.push(format!(
                        "{name}: has shrunk, so allow {} and not {allowed}",
                        length.lines
                    ));
                }
                Some(length) if length.lines > length.ceiling => {}
                _ => faults.push(format!(
                    "{name}: needs no allowance any more; remove its line"
                )),
            }
        }
        faults
    }
}

/// Lines of a file before its unit tests.
const LONGEST_FILE: usize = 600;
/// A smaller gain is not worth a line in the list's history.
const SLACK: usize = 9;
/// Lines of a function.
const LONGEST_FUNCTION: usize = 70;

#[test]
fn what_is_too_long_or_allowed_for_nothing_is_a_fault() {
    let allowance = Allowance::parse("# why\n700 a.rs\n90 b.rs f\n");
    let faults = |file, function| {
        allowance.faults(&[
            Length::file("a.rs", file),
            Length::function("b.rs", "f", function),
        ])
    };
    assert!(faults(700, 90).is_empty());
    assert_eq!(faults(701, 90), ["a.rs: 701 lines, 700 are allowed"]);
    assert_eq!(
        faults(690, 90),
        ["a.rs: has shrunk, so allow 690 and not 700"]
    );
    assert_eq!(
        faults(700, 70),
        ["b.rs f: needs no allowance any more; remove its line"]
    );
    assert_eq!(
        Allowance::parse("").faults(&[Length::file("c.rs", 601)]),
        ["c.rs: 601 lines, 600 are allowed"]
    );
    assert_eq!(
        Allowance::parse("").faults(&[Length::function("c.rs", "g", 71)]),
        ["c.rs g: 71 lines, 70 are allowed"]
    );
}
