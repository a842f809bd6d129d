//! Reads TOML into a [`File`] and finds every fault of its shape, with line and key path.
//!
//! serde stops at the first value that does not fit. So the text is parsed into a tree that
//! knows its spans; when serde stops, the fault is noted, the key that holds it is cut from the
//! tree, and serde starts again: cost is the size of the text times the number of faults, which
//! is bounded. Key paths name a table of an array by its `name` where that is unique, else by
//! its index, as `prepare.rs` does. Never panics, whatever the text.

use std::collections::HashMap;
use std::ops::Range;

use serde::Deserialize;
use toml::de::{DeTable, DeValue, Deserializer};

use crate::error::Problem;
use crate::file::File;

/// What a text contains.
#[derive(Debug)]
pub struct Reading {
    /// The parts of it that fit; absent when the text is not TOML.
    pub file: Option<File>,
    /// Syntax errors, or else unknown keys and wrong types, by line.
    pub problems: Vec<Problem>,
    /// Where each key is.
    pub lines: Lines,
}

/// Reads a text.
pub fn read(text: &str) -> Reading {
    let (root, errors) = DeTable::parse_recoverable(text);
    let index = LineIndex::new(text);
    if !errors.is_empty() {
        let problems = errors.iter().take(FAULTS).map(|error| Problem {
            line: error.span().map(|span| index.line(span.start)),
            ..Problem::new("", format!("not TOML: {}", error.message()))
        });
        let mut problems: Vec<Problem> = problems.collect();
        problems.sort_by_key(|problem| problem.line);
        return Reading {
            file: None,
            problems,
            lines: Lines::default(),
        };
    }

    let lines = Lines::of(root.get_ref(), &index);
    let mut problems = Vec::new();
    let mut rest = root;
    for place in misplaced_arrays(rest.get_ref()) {
        cut(rest.get_mut(), &place.steps);
        problems.push(Problem {
            line: Some(index.line(place.start)),
            ..Problem::new(place.path, "a list where none belongs").accepted("a table or a value")
        });
    }
    let file = loop {
        let error = match File::deserialize(Deserializer::from(rest.clone())) {
            Ok(file) => break Some(file),
            Err(error) => error,
        };
        let place = error.span().and_then(|span| locate(rest.get_ref(), &span));
        let Some(place) = place.filter(|_| problems.len() < FAULTS) else {
            problems.push(Problem::new("", error.message()));
            break None;
        };
        let mut problem = describe(error.message(), text.get(place.value.clone()));
        problem.line = Some(index.line(place.start));
        problem.path = place.path;
        problems.push(problem);
        cut(rest.get_mut(), &place.steps);
    };
    problems.sort_by_key(|problem| problem.line);
    Reading {
        file,
        problems,
        lines,
    }
}

/// Says what serde said, in the words of the file.
fn describe(message: &str, value: Option<&str>) -> Problem {
    let (fault, expected) = match message.split_once(", expected ") {
        Some((fault, expected)) => (fault, Some(expected)),
        None => (message, None),
    };
    let fault = match fault.split_once([' ', ':']) {
        Some(("unknown", rest)) if rest.starts_with("field") => "unknown key",
        Some(("unknown", rest)) if rest.starts_with("variant") => "not one of the choices",
        Some(("invalid", rest)) if rest.starts_with("type") => "wrong type",
        Some(("invalid", rest)) if rest.starts_with("value") => "not in range",
        _ => fault,
    };
    let mut problem = Problem::new("", fault);
    let value = value.filter(|_| fault != "unknown key");
    if let Some(first) = value.and_then(|value| value.lines().next()) {
        problem = problem.value(first.chars().take(SHOWN_CHARS).collect::<String>());
    }
    match expected {
        Some(expected) => problem.accepted(plain(expected)),
        None => problem,
    }
}

/// Rust's names of types, in plain words.
fn plain(expected: &str) -> String {
    match expected {
        "u32" | "u64" | "usize" => "a whole number, not negative".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list, such as [\"..\"]".to_owned(),
        other if other.starts_with("struct ") => "a table".to_owned(),
        other => other.replace('`', "").replacen("one of ", "", 1),
    }
}

/// Where a fault is.
struct Place {
    path: String,
    /// From the root to the key to cut.
    steps: Vec<Step>,
    /// Byte at which the key, or the element of an array, starts.
    start: usize,
    value: Range<usize>,
}

#[derive(Clone)]
enum Step {
    Key(String),
    Index(usize),
}

/// The innermost key or element that contains the start of `span`.
fn locate(root: &DeTable<'_>, span: &Range<usize>) -> Option<Place> {
    let mut best: Option<(usize, Place)> = None;
    walk(root, "", &mut Vec::new(), &mut |visit| {
        let spans = [visit.key.clone(), Some(visit.value.clone())];
        for candidate in spans.into_iter().flatten() {
            let hit = candidate.contains(&span.start) || candidate == *span;
            let length = candidate.len();
            // Of equals the later, deeper one: a table and its only key may start together.
            if hit && best.as_ref().is_none_or(|(least, _)| length <= *least) {
                best = Some((length, visit.place()));
            }
        }
    });
    best.map(|(_, place)| place)
}

/// serde takes a list for a table, its fields in order; people do not mean that.
fn misplaced_arrays(root: &DeTable<'_>) -> Vec<Place> {
    let mut places = Vec::new();
    walk(root, "", &mut Vec::new(), &mut |visit| {
        let misplaced = match visit.steps {
            [.., Step::Index(_)] => true,
            [Step::Key(key)] => TABLES.contains(&key.as_str()),
            _ => false,
        };
        if visit.is_array && misplaced && places.len() < FAULTS {
            places.push(visit.place());
        }
    });
    places
}

/// Removes the innermost key on the way to a place; elements of arrays stay, so that indices
/// keep their meaning.
fn cut(table: &mut DeTable<'_>, steps: &[Step]) {
    let last = steps.iter().rposition(|step| matches!(step, Step::Key(_)));
    let Some((Step::Key(key), way)) = last.and_then(|last| {
        let (way, rest) = steps.split_at(last);
        rest.first().map(|key| (key, way))
    }) else {
        return;
    };
    let mut way = way.iter();
    let Some(Step::Key(first)) = way.next() else {
        table.remove(key.as_str());
        return;
    };
    let mut at = table.get_mut(first.as_str()).map(toml::Spanned::get_mut);
    for step in way {
        at = match (at, step) {
            (Some(DeValue::Table(table)), Step::Key(key)) => {
                table.get_mut(key.as_str()).map(toml::Spanned::get_mut)
            }
            (Some(DeValue::Array(array)), Step::Index(index)) => {
                array.get_mut(*index).map(toml::Spanned::get_mut)
            }
            _ => None,
        };
    }
    if let Some(DeValue::Table(table)) = at {
        table.remove(key.as_str());
    }
}

/// One key or element of an array.
struct Visit<'a> {
    path: &'a str,
    steps: &'a [Step],
    key: Option<Range<usize>>,
    value: Range<usize>,
    is_array: bool,
}

impl Visit<'_> {
    fn place(&self) -> Place {
        Place {
            path: self.path.to_owned(),
            steps: self.steps.to_vec(),
            start: self.start(),
            value: self.value.clone(),
        }
    }

    fn start(&self) -> usize {
        self.key.as_ref().map_or(self.value.start, |key| key.start)
    }
}

/// Visits every key and every element, parents first.
fn walk(table: &DeTable<'_>, path: &str, steps: &mut Vec<Step>, visit: &mut dyn FnMut(Visit<'_>)) {
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let path = match path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        };
        steps.push(Step::Key(name.to_owned()));
        visit(Visit {
            path: &path,
            steps,
            key: Some(key.span()),
            value: value.span(),
            is_array: value.get_ref().is_array(),
        });
        match value.get_ref() {
            DeValue::Table(inner) => walk(inner, &path, steps, visit),
            DeValue::Array(_) => walk_array(value.get_ref(), &path, steps, visit),
            _ => {}
        }
        steps.pop();
    }
}

fn walk_array(
    array: &DeValue<'_>,
    path: &str,
    steps: &mut Vec<Step>,
    visit: &mut dyn FnMut(Visit<'_>),
) {
    let elements = array.as_array().into_iter().flat_map(|array| array.iter());
    let names = elements.clone().map(|element| {
        let table = element.get_ref().as_table();
        table.and_then(|table| table.get("name")?.get_ref().as_str())
    });
    for (index, (element, label)) in elements.zip(labels(names)).enumerate() {
        let path = format!("{path}[{label}]");
        steps.push(Step::Index(index));
        visit(Visit {
            path: &path,
            steps,
            key: None,
            value: element.span(),
            is_array: element.get_ref().is_array(),
        });
        match element.get_ref() {
            DeValue::Table(inner) => walk(inner, &path, steps, visit),
            DeValue::Array(_) => walk_array(element.get_ref(), &path, steps, visit),
            _ => {}
        }
        steps.pop();
    }
}

/// How paths name the elements of an array: by name where there is one that no earlier element
/// has, by index otherwise.
pub fn labels<'a>(names: impl Iterator<Item = Option<&'a str>>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    names
        .enumerate()
        .map(|(index, name)| match name {
            Some(name) if !name.is_empty() && seen.insert(name) => name.to_owned(),
            _ => index.to_string(),
        })
        .collect()
}

/// The line of every key path.
#[derive(Debug, Default)]
pub struct Lines {
    by_path: HashMap<String, usize>,
}

impl Lines {
    fn of(root: &DeTable<'_>, index: &LineIndex) -> Self {
        let mut by_path = HashMap::new();
        walk(root, "", &mut Vec::new(), &mut |visit| {
            by_path
                .entry(visit.path.to_owned())
                .or_insert_with(|| index.line(visit.start()));
        });
        Self { by_path }
    }

    /// The line of a key, or of the table that lacks it.
    pub fn line(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(line) = self.by_path.get(path) {
                return Some(*line);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }
}

/// Starts of lines, for turning offsets into numbers.
struct LineIndex {
    starts: Vec<usize>,
}

impl LineIndex {
    fn new(text: &str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self {
            starts: breaks.map(|(at, _)| at + 1).collect(),
        }
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.starts.partition_point(|start| *start <= offset)
    }
}

/// The keys of [`File`] that are one table each.
const TABLES: [&str; 7] = [
    "limits",
    "timeouts",
    "sessions",
    "admission",
    "log",
    "admin",
    "process",
];

/// Faults reported of one text: more than anybody corrects in one go.
const FAULTS: usize = 100;

/// Enough of a value to recognise it.
const SHOWN_CHARS: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(text: &str) -> Vec<String> {
        let problems = read(text).problems;
        problems.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_reported_together_with_path_and_line() {
        let text = r#"
colour = "red"
[[listener]]
name = "web"
bind = ["127.0.0.1:1", 5]
backlok = 1
certificates = [ { chian = "a" } ]
[limits]
connections = -1
handshakes = "many"
[timeouts]
handshake = true
[[policy]]
name = "p"
versions = ["1.1"]
[process]
pin = "yes"
[log]
format = "xml"
"#;
        let found = lines_of(text);
        let expected = [
            "line 2: colour: unknown key; accepted: ",
            "line 5: listener[web].bind[1] = 5: wrong type; accepted: a string",
            "line 6: listener[web].backlok: unknown key; accepted: ",
            "line 7: listener[web].certificates[0].chian: unknown key; accepted: chain or key",
            "line 9: limits.connections = -1: not in range; accepted: a whole number, not negative",
            "line 10: limits.handshakes = \"many\": wrong type; accepted: a whole number, not negative",
            "line 12: timeouts.handshake = true: wrong type; accepted: a string or a whole number",
            "line 15: policy[p].versions[0] = \"1.1\": not one of the choices; accepted: 1.2 or 1.3",
            "line 17: process.pin = \"yes\": wrong type; accepted: true or false",
            "line 19: log.format = \"xml\": not one of the choices; accepted: text or json",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} is not {expected}");
        }
    }

    #[test]
    fn what_fits_is_kept_beside_what_does_not() {
        let reading = read("[limits]\nconnections = 5\nfoo = 1\n[timeouts]\nidle = \"1s\"\n");
        let file = reading.file.unwrap();
        assert_eq!(file.limits.connections, Some(5));
        assert_eq!(file.timeouts.idle, "1s".into());
        assert_eq!(reading.problems.len(), 1);
    }

    #[test]
    fn every_syntax_error_has_its_line() {
        let found = lines_of("a = \n\nb = [\n[limits]\nconnections = = 3\n");
        assert!(found.len() > 1, "{found:?}");
        assert!(found[0].starts_with("line 1: not TOML: "), "{found:?}");
    }

    #[test]
    fn tables_of_a_wrong_shape_are_faults() {
        let found = lines_of("listener = 1\nlimits = []\n[[timeouts]]\nidle = \"1s\"\n");
        assert_eq!(found.len(), 3, "{found:#?}");
        let found = lines_of("[listener]\nname = \"a\"\n");
        assert_eq!(found.len(), 1, "{found:#?}");
    }

    #[test]
    fn paths_use_names_while_they_are_unique() {
        let names = [Some("a"), Some("a"), None, Some("b"), Some("")];
        assert_eq!(labels(names.into_iter()), ["a", "1", "2", "b", "4"]);
    }

    #[test]
    fn a_missing_key_is_placed_at_its_table() {
        let reading = read("\n[[listener]]\nname = \"web\"\n");
        assert_eq!(reading.lines.line("listener[web].bind"), Some(2));
        assert_eq!(reading.lines.line("listener[web].name"), Some(3));
        assert_eq!(reading.lines.line("policy[x]"), None);
    }

    #[test]
    fn odd_texts_do_not_panic() {
        for text in [
            "",
            "\u{feff}",
            "é=1",
            "[é]\né=é",
            "a.b.c=1\na.b=2",
            "[[a]]\n[a]",
            "limits.é = 1",
        ] {
            read(text);
        }
        read(&"[".repeat(10_000));
        read(&"x = 1\n".repeat(300));
    }
}
