//! Rules for all text: nothing unfinished, no path of one machine, links that lead somewhere.

/// Returns unfinished marks and paths of one machine, with their lines.
pub(crate) fn marks(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for mark in UNFINISHED {
            if words(line).any(|word| word == *mark) {
                found.push(format!("line {} says {mark}", number + 1));
            }
        }
        for path in MACHINE {
            if line
                .match_indices(path)
                .any(|(at, _)| begins_a_path(line, at))
            {
                found.push(format!(
                    "line {} names a path of one machine, {path}",
                    number + 1
                ));
            }
        }
    }
    found
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Returns whether an absolute path begins at `at`. The `/x/` in `a/x/` belongs to a relative path.
fn begins_a_path(line: &str, at: usize) -> bool {
    !line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}'))
}

/// Returns the targets of relative Markdown links. Skips code.
pub(crate) fn relative_links(text: &str) -> Vec<&str> {
    let mut links = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for (at, _) in line.match_indices("](") {
            // After an even number of backticks, the link is not within inline code.
            let target = line[at + 2..]
                .split_once(')')
                .map_or("", |(target, _)| target);
            if line[..at].matches('`').count() % 2 == 0
                && !target.contains("://")
                && !target.starts_with("mailto:")
            {
                links.push(target);
            }
        }
    }
    links
}

/// Returns the anchors of headings, as forges build them: lower case, dashes instead of spaces, no punctuation.
pub(crate) fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

// Each word is split, so that the rule does not find it in this file.
const UNFINISHED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
];
const MACHINE: &[&str] = &[
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/Us", "ers/"),
    concat!("/ho", "me/"),
];

#[test]
fn todo_marks_are_found_as_whole_words() {
    assert_eq!(marks(concat!("a\n// TO", "DO: b\n")).len(), 1);
    assert!(marks(concat!("TO", "DOS are many, MAXX", "XX is not one")).is_empty());
}

#[test]
fn machine_specific_paths_are_found_and_relative_ones_ignored() {
    assert_eq!(
        marks(concat!("see /ho", "me/someone/x and `/ro", "ot/y`")).len(),
        2
    );
    assert!(marks(concat!("crates/wo", "rk/x, $HOME/y")).is_empty());
}

#[test]
fn relative_links_are_found_outside_of_code() {
    let text = "[a](b.md) `[c](d.md)` [e](https://f/) [g](h.md#i)\n```\n[j](k.md)\n```\n";
    assert_eq!(relative_links(text), ["b.md", "h.md#i"]);
}

#[test]
fn headings_become_anchors() {
    let found: Vec<String> = anchors("# A b\ntext\n## `becket run`, twice\n").collect();
    assert_eq!(found, ["a-b", "becket-run-twice"]);
}
