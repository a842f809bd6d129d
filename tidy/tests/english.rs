//! Plain technical English: openings of sentences and words that the project does not use.
//!
//! A sentence begins with a named thing or a verb, so none begins with "Of", "Who" or "What", except for a question.
//! Code marks and fenced blocks are not prose.

use crate::parts::{Part, parts};
use crate::rust::without_tests;

/// Returns the faults in the comments of a Rust source.
pub(crate) fn in_comments(source: &str) -> Vec<String> {
    // Code between two comments ends a paragraph, as an empty line does.
    let mut text = String::new();
    for part in parts(source) {
        match part {
            Part::Comment(line) => text.push_str(line.trim_start_matches(['/', '!', '*'])),
            Part::Code(blank) if blank.trim().is_empty() => text.push_str(blank),
            Part::Code(_) | Part::Literal(_) if text.ends_with("\n\n") => {}
            Part::Code(_) | Part::Literal(_) => text.push_str("\n\n"),
        }
    }
    in_markdown(&text)
}

/// Returns the faults in the strings of a Rust source, without its unit tests: logs, errors, help.
pub(crate) fn in_literals(source: &str) -> Vec<String> {
    let literals = parts(without_tests(source));
    let texts = literals.iter().filter_map(|part| match part {
        Part::Literal(text) if text.contains(' ') => Some(text.trim_matches(['"', '#', 'r', 'b'])),
        _ => None,
    });
    let paragraphs = texts.flat_map(|text| text.split("\\n"));
    paragraphs.flat_map(|text| faults(&plain(text))).collect()
}

/// Returns the faults in `#` comments of a TOML file or a script.
pub(crate) fn in_hash_comments(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| {
        let mut marks = line.match_indices('#').map(|(at, _)| at);
        // A `#` within quotes begins no comment.
        let begins = marks.find(|at| line[..*at].matches('"').count() % 2 == 0);
        begins.map_or("", |at| &line[at + 1..])
    });
    in_markdown(&lines.collect::<Vec<_>>().join("\n"))
}

/// Returns the faults in a Markdown text.
pub(crate) fn in_markdown(text: &str) -> Vec<String> {
    let (mut found, mut paragraph, mut is_fenced) = (Vec::new(), String::new(), false);
    for line in text.lines().chain([""]) {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        let is_text = !is_fenced && !is_fence && !line.starts_with(['#', '<', '|']);
        let ends = !is_text || line.is_empty() || begins_an_item(line);
        if ends && !paragraph.is_empty() {
            found.extend(faults(&plain(&std::mem::take(&mut paragraph))));
        }
        if is_text {
            paragraph.push_str(without_bullet(line));
            paragraph.push(' ');
        } else if line.starts_with('|') && !is_fenced {
            found.extend(line.split('|').flat_map(|cell| faults(&plain(cell))));
        } else if line.starts_with('#') && !is_fenced {
            found.extend(words(&plain(line)));
        }
    }
    found
}

fn begins_an_item(line: &str) -> bool {
    without_bullet(line).len() < line.len()
}

fn without_bullet(line: &str) -> &str {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let marks = if rest.len() < line.len() { ". " } else { "*" };
    let is_item = ["* ", "- "].iter().any(|bullet| line.starts_with(bullet));
    match rest.strip_prefix(marks) {
        Some(rest) if marks == ". " => rest,
        _ if is_item => &line[2..],
        _ => line,
    }
}

/// Returns the text without code marks, targets of links and emphasis, on one line.
fn plain(text: &str) -> String {
    let outside = text.split('`').step_by(2).collect::<Vec<_>>().join("x");
    let mut kept = String::new();
    let mut rest = outside.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        kept.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    kept.push_str(rest);
    kept.retain(|c| !matches!(c, '[' | ']' | '*' | '\\'));
    kept.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the banned openings of sentences and the banned words in a paragraph.
fn faults(text: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut begin = 0;
    for (at, end) in text.match_indices(['.', '?', '!']) {
        if text[at + end.len()..].starts_with(' ') {
            sentences.push(&text[begin..=at]);
            begin = at + 2;
        }
    }
    sentences.push(&text[begin..]);
    let wrong = sentences.iter().filter(|sentence| {
        let sentence = sentence.trim_start_matches(['(', '"', ' ']);
        !sentence.ends_with('?')
            && !sentence.starts_with("By default")
            && OPENINGS.iter().any(|opening| {
                let rest = sentence.strip_prefix(opening);
                rest.is_some_and(|rest| rest.starts_with([' ', ',']))
            })
    });
    let mut found: Vec<String> = wrong.map(|sentence| excerpt(sentence)).collect();
    found.extend(words(text));
    found
}

fn words(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let whole = |at: usize, length: usize| {
        let (before, after) = (&lower[..at], &lower[at + length..]);
        // A quoted name of a user or file is not prose.
        let is_name = before.ends_with('"') && after.starts_with('"');
        !before.ends_with(is_word) && !after.starts_with(is_word) && !is_name
    };
    let mut found = Vec::new();
    for phrase in PHRASES {
        let hits = lower.match_indices(phrase);
        found.extend(
            hits.filter(|(at, _)| whole(*at, phrase.len()))
                .map(|(at, _)| excerpt(&lower[at..])),
        );
    }
    let counted = lower.match_indices("some ").filter(|(at, some)| {
        whole(*at, 4) && lower[at + some.len()..].starts_with(|c: char| c.is_ascii_digit())
    });
    found.extend(counted.map(|(at, _)| excerpt(&lower[at..])));
    found
}

fn excerpt(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').take(7).collect();
    format!("\"{}\"", words.join(" "))
}

/// Words with which no sentence begins.
const OPENINGS: &[&str] = &[
    "Of", "By", "Who", "Whose", "Whoever", "Whether", "Whatever", "Those", "What", "Where",
    "Likewise", "The same",
];

/// Banned words: they replace the name of a thing, or engineers do not use them.
const PHRASES: &[&str] = &[
    "anew",
    "are gone",
    "are told",
    "beside",
    "by then",
    "go on",
    "goes on",
    "in the place of",
    "is gone",
    "is had",
    "is told",
    "nobody",
    "so many",
    "somebody",
    "those that",
    "was made use of",
    "what comes",
    "who waits",
    "whoever",
];

#[test]
fn banned_openings_and_words_are_found_outside_of_code() {
    let count = |text: &str| in_markdown(text).len();
    assert_eq!(
        count("Of the last who waits. A lock. What is it? Those go on.\n"),
        4
    );
    assert_eq!(
        count(
            "The user `nobody`, besides a [link](beside.md).\n```\nnobody\n```\nBy default it is off."
        ),
        0
    );
    assert_eq!(
        count("* Who\n* Whose socket\n1. By hand\n\n| Where it is | some 20 |\n## What it is\n"),
        4
    );
}

#[test]
fn comments_are_joined_across_lines_and_test_strings_are_ignored() {
    let source = "/// Returns what\n/// comes.\nfn a() { log(\"it is\\nWhere it goes on\") } // Of b\n#[cfg(test)]\nmod tests { \"nobody is\" }";
    assert_eq!(in_comments(source), ["\"what comes.\"", "\"Of b\""]);
    assert_eq!(in_literals(source), ["\"Where it goes on\"", "\"goes on\""]);
    assert_eq!(in_hash_comments("a = \"#\" # Of b\n# is gone\n").len(), 2);
}
