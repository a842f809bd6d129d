//! Parses the log lines in the code and in `docs/reference/log-lines.md`.

use std::collections::BTreeSet;

use crate::parts::{Part, parts};
use crate::rust::without_tests;

/// Level, name of the event, and text.
pub(crate) type Line = (String, String, String);

/// Returns level, event and text of the lines that a source logs at `info`, `warn` and `error`.
pub(crate) fn in_source(source: &str) -> BTreeSet<Line> {
    let mut found = BTreeSet::new();
    // `code` is the code since the last literal or call. `call` is the macro call being parsed: its levels, the number
    // of open brackets, the event name, and the last text among its arguments.
    let mut code = String::new();
    let mut call: Option<(Vec<&str>, usize, &str, &str)> = None;
    for part in parts(without_tests(source)) {
        match (part, &mut call) {
            (Part::Code(text), None) => {
                code.push_str(text);
                call = levels(&code).map(|levels| (levels, 1, "", ""));
            }
            (Part::Code(text), Some((levels, open, name, line))) => {
                code.push_str(text);
                *open += text.matches(['(', '{', '[']).count();
                *open = open.saturating_sub(text.matches([')', '}', ']']).count());
                if *open == 0 {
                    let line = plain(line);
                    let lines = levels
                        .iter()
                        .map(|level| (level.to_string(), plain(name), line.clone()));
                    found.extend(lines.filter(|(.., line)| !line.is_empty()));
                    (call, code) = (None, String::new());
                }
            }
            (Part::Literal(text), Some((_, 1, name, line))) => {
                *(if code.ends_with("name: ") { name } else { line }) = text;
            }
            (_, None) => code.clear(),
            (_, Some(_)) => {}
        }
    }
    found
}

/// Returns level, event and text of the rows of the page.
pub(crate) fn in_page(page: &str) -> BTreeSet<Line> {
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let level = cells.next().filter(|level| LEVELS.contains(level))?;
        let mut code = || cells.next()?.strip_prefix('`')?.strip_suffix('`');
        Some((level.to_owned(), code()?.to_owned(), code()?.to_owned()))
    });
    rows.collect()
}

/// Returns the log levels of the macro whose opening bracket is the end of `code`.
fn levels(code: &str) -> Option<Vec<&'static str>> {
    let call = code.strip_suffix("!(")?;
    if call.ends_with("$level") {
        return Some(vec!["info", "warn"]);
    }
    let level = LEVELS.iter().find(|level| {
        let before = call.strip_suffix(**level);
        before.is_some_and(|before| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
    });
    level.map(|level| vec![*level])
}

fn plain(literal: &str) -> String {
    let text = literal.trim_matches('"').replace("\\\n", "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

const LEVELS: &[&str] = &["info", "warn", "error"];

#[test]
fn log_lines_are_found_in_macro_calls_and_in_tables() {
    let source = "info!(name: \"set\", a = f(\"x\"), %b, \"ready\"); tracing::warn!(\"cannot\"); debug!(\"no\"); my_error!(\"no\"); $level!(name: \"both\", \"of two\")";
    let lines = [
        ("info", "both", "of two"),
        ("info", "set", "ready"),
        ("warn", "both", "of two"),
        ("warn", "", "cannot"),
    ];
    let lines = lines.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
    assert_eq!(in_source(source), lines.into());
    let page = "| level | event | line |\n|---|---|---|\n| warn | `a-b` | `cannot` | It. | Do. |\n";
    assert!(in_page(page).contains(&("warn".into(), "a-b".into(), "cannot".into())));
}
