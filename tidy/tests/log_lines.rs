//! Log lines of the terminator, as the code and as `docs/reference/log-lines.md` has them.

use std::collections::BTreeSet;

use crate::parts::{Part, parts};
use crate::rust::without_tests;

/// Level and text of the lines that a source logs at `info`, `warn` and `error`.
pub(crate) fn in_source(source: &str) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    // Code since the last literal; the call that is being read, with its open brackets and the last text among its arguments.
    let mut code = String::new();
    let mut call: Option<(Vec<&str>, usize, &str)> = None;
    for part in parts(without_tests(source)) {
        match (part, &mut call) {
            (Part::Code(text), None) => {
                code.push_str(text);
                call = levels(&code).map(|levels| (levels, 1, ""));
            }
            (Part::Code(text), Some((levels, open, line))) => {
                *open += text.matches(['(', '{', '[']).count();
                *open = open.saturating_sub(text.matches([')', '}', ']']).count());
                if *open == 0 {
                    let lines = levels.iter().map(|level| (level.to_string(), plain(line)));
                    found.extend(lines.filter(|(_, line)| !line.is_empty()));
                    (call, code) = (None, String::new());
                }
            }
            (Part::Literal(text), Some((_, 1, line))) => *line = text,
            _ => code.clear(),
        }
    }
    found
}

/// Level and text of the rows of the page.
pub(crate) fn in_page(page: &str) -> BTreeSet<(String, String)> {
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let level = cells.next().filter(|level| LEVELS.contains(level))?;
        let text = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((level.to_owned(), text.to_owned()))
    });
    rows.collect()
}

/// The levels of the macro of which `code` ends with the opening bracket.
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
fn lines_are_found_in_calls_and_in_tables() {
    let source = "info!(a = f(\"x\"), %b, \"ready\"); tracing::warn!(\"cannot\"); debug!(\"no\"); my_error!(\"no\"); $level!(\"both\")";
    let lines = [
        ("info", "both"),
        ("info", "ready"),
        ("warn", "both"),
        ("warn", "cannot"),
    ];
    let lines: BTreeSet<_> = lines.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
    assert_eq!(in_source(source), lines);
    let page = "| level | line |\n|---|---|\n| warn | `cannot` | It. | Do. |\n";
    assert!(in_page(page).contains(&("warn".into(), "cannot".into())));
}
