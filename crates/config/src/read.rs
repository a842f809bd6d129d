//! Reads TOML into a [`File`], and reports all syntax errors, unknown keys and invalid values with
//! line and key path.
//!
//! serde stops at the first invalid value, so the text is first parsed into a tree. After each
//! error, the invalid key or list element is removed from the tree and serde starts again. The
//! number of errors is limited. Values from the command line replace values of the text.
//!
//! Key paths identify a table of an array by its `name` if the name is unique, otherwise by its
//! index.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use crate::address::SectionName;
use crate::error::{Problem, shortened};
use crate::file::File;
use crate::hints;
use crate::notation::{SEPARATOR, Text, meant};

#[derive(Debug)]
pub struct Reading {
    /// Configuration without its invalid parts; `None` if the text is not valid TOML.
    pub file: Option<File>,
    /// The first syntax error, or otherwise all unknown keys and invalid values, sorted by line.
    pub problems: Vec<Problem>,
    pub places: KeyLocations,
}

impl File {
    /// Parses a configuration.
    ///
    /// # Errors
    /// Returns the first syntax error, or otherwise all unknown keys and invalid values.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let reading = read(text, &toml::Table::new());
        if reading.problems.is_empty() {
            Ok(reading.file.unwrap_or_default())
        } else {
            Err(reading.problems)
        }
    }
}

/// Reads a configuration. Values in `over`, from the command line, replace those in `text`.
pub fn read(text: &str, over: &toml::Table) -> Reading {
    // The spaces move the offsets of `over` past the end of `text`, so that an offset shows whether
    // a value comes from `text` or `over`.
    let over = " ".repeat(text.len() + 1) + &over.to_string();
    let (mut root, errors) = DeTable::parse_recoverable(text);
    if let Some(problem) = syntax(text, &errors) {
        return Reading {
            file: None,
            problems: vec![problem],
            places: KeyLocations::default(),
        };
    }
    let (replacing, _) = DeTable::parse_recoverable(&over);
    merge(root.get_mut(), replacing.into_inner());
    let mut places = KeyLocations::of(root.get_ref(), text, &over);
    let mut problems = Vec::new();
    let mut rest = DeValue::Table(root.into_inner());
    let file = loop {
        let DeValue::Table(table) = &rest else {
            break None;
        };
        let table = Spanned::new(0..0, table.clone());
        let error = match File::deserialize(Deserializer::from(table)) {
            Ok(file) => break Some(file),
            Err(error) => error,
        };
        let at = error.span().and_then(|span| places.locate(&span));
        let Some(at) = at.filter(|_| problems.len() < FAULTS) else {
            problems.push(Problem::new("", error.message()));
            break None;
        };
        let place = &mut places.all[at];
        place.is_cut = true;
        problems.push(Problem {
            path: place.path.clone(),
            ..describe(error.message(), &place.path)
        });
        cut(&mut rest, place);
    };
    for problem in &mut problems {
        places.complete(problem);
    }
    problems.sort_by_key(|problem| problem.line);
    Reading {
        file,
        problems,
        places,
    }
}

/// Returns the first syntax error as a problem. Later errors are mostly consequences of the first.
fn syntax(text: &str, errors: &[toml::de::Error]) -> Option<Problem> {
    let start = |error: &&toml::de::Error| error.span().map_or(usize::MAX, |span| span.start);
    let first = errors.iter().min_by_key(start)?;
    let at = start(&first).min(text.trim_end().len());
    let before = text.get(..at).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    let mut hint = String::new();
    if let Some((opens, bracket)) = hints::opened(text, line_start) {
        hint = format!(" (line {} opens `{bracket}`)", line(text, opens));
    } else if first.message().starts_with("key with no value") {
        let written = text.get(line_start..).unwrap_or_default();
        let word = written.split_whitespace().next().unwrap_or_default();
        if let Some(setting) = hints::foreign(word) {
            hint = format!(" (here it is {setting})");
        }
    }
    let fault = format!("not TOML: {}{hint}", first.message());
    Some(Problem {
        line: Some(line(text, at)),
        ..Problem::new("", fault)
    })
}

fn line(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// Adds the values of `over` to `root`, and replaces existing values.
fn merge<'i>(root: &mut DeTable<'i>, over: DeTable<'i>) {
    for (key, mut value) in over {
        let known = root.get_mut(key.get_ref().as_ref());
        match (known.map(Spanned::get_mut), value.get_mut()) {
            (Some(DeValue::Table(known)), DeValue::Table(table)) => {
                merge(known, std::mem::take(table));
            }
            _ => {
                root.remove(key.get_ref().as_ref());
                root.insert(key, value);
            }
        }
    }
}

fn describe(message: &str, path: &str) -> Problem {
    let mut parts = message.split(SEPARATOR);
    if let (Some(fault), Some(accepted)) = (parts.next(), parts.next()) {
        return Problem::new("", fault).accepted(accepted);
    }
    let Some((fault, expected)) = message.split_once(", expected ") else {
        return Problem::new("", message);
    };
    let (fault, found) = match fault.split_once('`') {
        Some((fault, rest)) => (fault.trim_end(), rest.split('`').next().unwrap_or_default()),
        None => (fault, ""),
    };
    let fault = match fault {
        "unknown field" => "unknown key",
        "unknown variant" => "not one of the choices",
        fault if fault.starts_with("invalid type") => "wrong type",
        fault if fault.starts_with("invalid value") => "not in range",
        fault => fault,
    };
    let choices = || expected.split('`').skip(1).step_by(2);
    let foreign = hints::foreign(found).filter(|_| fault == "unknown key");
    let choice = meant(found, choices()).filter(|_| !found.is_empty());
    let fault = match (foreign, choice) {
        (Some(setting), _) => format!("{fault} (here it is {setting})"),
        (None, Some(choice)) => format!("{fault} (did you mean {choice}?)"),
        (None, None) => fault.to_owned(),
    };
    let accepted = match expected {
        "a boolean" => "true or false",
        "a sequence" => "a list, such as [\"..\"]",
        _ if expected.starts_with("struct ") || path.is_empty() => "a table",
        expected => &expected.replace('`', "").replacen("one of ", "", 1),
    };
    Problem::new("", fault).accepted(accepted)
}

#[derive(Debug, Default)]
pub struct KeyLocations {
    /// All keys and list elements; parents precede their children.
    all: Vec<KeyLocation>,
    by_path: HashMap<String, usize>,
}

#[derive(Debug)]
struct KeyLocation {
    path: String,
    /// Position of the key; `None` for an element of a list.
    key: Option<Range<usize>>,
    value: Range<usize>,
    /// Line of the value; `None` if the value comes from the command line.
    line: Option<usize>,
    /// Value as written; `None` if it is too long for an error message.
    shown: Option<String>,
    is_cut: bool,
}

impl KeyLocations {
    fn of(root: &DeTable<'_>, text: &str, over: &str) -> Self {
        let mut places = Self::default();
        let mut walk = LocationVisitor {
            all: &mut places.all,
            text,
            over,
            line_ends: text.match_indices('\n').map(|(at, _)| at).collect(),
        };
        walk.table(root, "");
        for (at, place) in places.all.iter().enumerate() {
            places.by_path.entry(place.path.clone()).or_insert(at);
        }
        places
    }

    /// Returns the index of the innermost key or list element that contains the start of `span`.
    fn locate(&self, span: &Range<usize>) -> Option<usize> {
        let mut best: Option<(usize, usize)> = None;
        for (at, place) in self.all.iter().enumerate() {
            for candidate in place.key.iter().chain([&place.value]) {
                let hit = candidate.contains(&span.start) || candidate == span;
                // If a table and its only key have the same span, the key is chosen.
                if hit && best.is_none_or(|(least, _)| candidate.len() <= least) {
                    best = Some((candidate.len(), at));
                }
            }
        }
        best.map(|(_, at)| at)
    }

    /// Adds line and value to a problem found in the valid part of the file. A missing key is
    /// reported on the line of its table.
    pub fn place(&self, problem: &mut Problem) {
        problem.path = self.original(&problem.path);
        self.complete(problem);
    }

    fn complete(&self, problem: &mut Problem) {
        let exact = self.by_path.get(&problem.path).map(|at| &self.all[*at]);
        if let Some(place) = exact
            && problem.value.is_none()
            && !problem.fault.starts_with("unknown key")
            && !problem.fault.starts_with("missing")
        {
            problem.value = place.shown.clone();
        }
        let mut path = problem.path.as_str();
        problem.line = loop {
            if let Some(at) = self.by_path.get(path) {
                break self.all[*at].line;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => break None,
            }
        };
    }

    /// Returns whether the key at this path, its parent or one of its children was removed because
    /// of an error.
    pub fn is_cut(&self, path: &str) -> bool {
        let mut cut = self.all.iter().filter(|place| place.is_cut);
        cut.any(|place| leads_to(path, &place.path) || leads_to(&place.path, path))
    }

    /// Converts a path in the reduced tree to the path in the original text, in which removed list
    /// elements count.
    fn original(&self, path: &str) -> String {
        let Some((list, rest)) = path.rsplit_once('[') else {
            return path.to_owned();
        };
        let Some((Ok(mut index), rest)) =
            rest.split_once(']').map(|(n, r)| (n.parse::<usize>(), r))
        else {
            return path.to_owned();
        };
        let is_cut = |index: usize| {
            let at = self.by_path.get(&format!("{list}[{index}]"));
            at.is_some_and(|at| self.all[*at].is_cut)
        };
        let mut left = index;
        index = 0;
        while is_cut(index) || left > 0 {
            left -= usize::from(!is_cut(index));
            index += 1;
        }
        format!("{list}[{index}]{rest}")
    }
}

/// Returns whether `path` is equal to `other` or contains it.
fn leads_to(path: &str, other: &str) -> bool {
    let rest = other.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Removes the key or list element at `place` from the tree. Returns whether it was present.
fn cut(value: &mut DeValue<'_>, place: &KeyLocation) -> bool {
    match value {
        DeValue::Table(table) => {
            let is_it = |key: &Spanned<_>| Some(key.span()) == place.key;
            let found = table
                .iter()
                .find(|(key, value)| is_it(key) && value.span() == place.value);
            if let Some(key) = found.map(|(key, _)| key.get_ref().clone().into_owned()) {
                return table.remove(key.as_str()).is_some();
            }
            table
                .iter_mut()
                .any(|(_, value)| cut(value.get_mut(), place))
        }
        DeValue::Array(array) => {
            let is_it = |element: &Spanned<_>| element.span() == place.value;
            if place.key.is_none() && array.iter().any(is_it) {
                let left = std::mem::replace(array, DeArray::new()).into_iter();
                *array = left.filter(|element| !is_it(element)).collect();
                return true;
            }
            array
                .iter_mut()
                .any(|element| cut(element.get_mut(), place))
        }
        _ => false,
    }
}

/// Collects the locations of all keys and list elements, parents first.
struct LocationVisitor<'a> {
    all: &'a mut Vec<KeyLocation>,
    text: &'a str,
    over: &'a str,
    line_ends: Vec<usize>,
}

impl LocationVisitor<'_> {
    fn table(&mut self, table: &DeTable<'_>, path: &str) {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let path = match path {
                "" => name.to_owned(),
                path => format!("{path}.{name}"),
            };
            self.visit(path, Some(key.span()), value);
        }
    }

    fn visit(&mut self, path: String, key: Option<Range<usize>>, value: &Spanned<DeValue<'_>>) {
        let span = value.span();
        let start = key.as_ref().map_or(span.start, |key| key.start);
        let written = self.text.get(span.clone()).filter(|text| !text.is_empty());
        let written = written.or_else(|| self.over.get(span.clone()));
        self.all.push(KeyLocation {
            path: path.clone(),
            key,
            line: (start < self.text.len())
                .then(|| 1 + self.line_ends.partition_point(|end| *end < start)),
            shown: match value.get_ref() {
                DeValue::String(text) => Some(format!("{:?}", shortened(text))),
                DeValue::Array(list) if !list.is_empty() => None,
                DeValue::Table(_) => None,
                _ => written.map(shortened),
            },
            is_cut: false,
            value: span,
        });
        match value.get_ref() {
            DeValue::Table(inner) => self.table(inner, &path),
            DeValue::Array(elements) => {
                let names = elements.iter().map(|element| {
                    let name = element
                        .get_ref()
                        .as_table()?
                        .get("name")?
                        .get_ref()
                        .as_str()?;
                    SectionName::parse(name).ok()
                });
                for (label, element) in labels(names).into_iter().zip(elements) {
                    self.visit(format!("{path}[{label}]"), None, element);
                }
            }
            _ => {}
        }
    }
}

/// Returns the labels of an array's tables in key paths: the name if no earlier table has it,
/// otherwise the index.
pub fn labels(names: impl Iterator<Item = Option<SectionName>>) -> Vec<String> {
    let mut seen = HashSet::new();
    names
        .enumerate()
        .map(|(index, name)| match name {
            Some(name) if !name.is_empty() && seen.insert(name.clone()) => name.to_string(),
            _ => index.to_string(),
        })
        .collect()
}

/// Maximum number of reported errors.
const FAULTS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(text: &str) -> Reading {
        read(text, &toml::Table::new())
    }

    fn lines_of(text: &str) -> Vec<String> {
        let problems = reading(text).problems;
        problems.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn every_invalid_key_and_value_is_reported_with_path_and_line() {
        let text = r#"
colour = "red"
[[listener]]
name = "web"
bind = ["127.0.0.1:1", 5, "nowhere", "x:70000"]
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
suites = ["TLS_AES_128_GCM_SHA265"]
[process]
pin = "yes"
[log]
format = "jason"
"#;
        let found = lines_of(text);
        let expected = [
            "line 2: colour: unknown key; accepted: ",
            "line 5: listener[web].bind[1] = 5: no port (did you mean :5?); accepted: HOST:PORT, [V6]:PORT or :PORT",
            "line 5: listener[web].bind[2] = \"nowhere\": no port; accepted: ",
            "line 5: listener[web].bind[3] = \"x:70000\": not a port; accepted: ",
            "line 6: listener[web].backlok: unknown key (did you mean backlog?); accepted: ",
            "line 7: listener[web].certificates[0].chian: unknown key (did you mean chain?); accepted: chain, key, ocsp",
            "line 9: limits.connections = -1: not in range; accepted: 1 to 100000000",
            "line 10: limits.handshakes = \"many\": wrong type; accepted: 1 to 100000000",
            "line 12: timeouts.handshake = true: wrong type; accepted: a duration such as",
            "line 15: policy[p].versions[0] = \"1.1\": not a version (did you mean \"1.2\"?); accepted: \"1.2\", \"1.3\"",
            "line 16: policy[p].suites[0] = \"TLS_AES_128_GCM_SHA265\": not a suite (did you mean \"TLS_AES_128_GCM_SHA256\"?)",
            "line 18: process.pin = \"yes\": wrong type; accepted: true or false",
            "line 20: log.format = \"jason\": not one of the choices (did you mean json?); accepted: text, json, short",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} is not {expected}");
        }
    }

    #[test]
    fn valid_values_alongside_invalid_ones_are_kept_with_their_lines() {
        let text = "[limits]\nconnections = 5\nfoo = 1\n[timeouts]\nidle = \"1s\"\n\
                    [[listener]]\nbind = [\"x\", \":1\", \"y\", \":2\"]\n";
        let reading = reading(text);
        let file = reading.file.unwrap();
        assert_eq!(file.limits.connections, Some(5));
        assert_eq!(file.timeouts.idle, std::time::Duration::from_secs(1));
        let bind = file.listener[0].bind.iter().map(|one| one.text.to_string());
        assert_eq!(bind.collect::<Vec<_>>(), [":1", ":2"]);
        assert_eq!(reading.problems.len(), 3);
        let mut problem = Problem::new("listener[0].bind[1]", "taken");
        reading.places.place(&mut problem);
        assert_eq!(
            problem.to_string(),
            "line 7: listener[0].bind[3] = \":2\": taken"
        );
    }

    #[test]
    fn overridden_values_have_no_line_number() {
        let over = "[process]\nworkers = '0'\n[admin]\naddress = ':1'"
            .parse()
            .unwrap();
        let reading = read("[process]\nworkers = 5\npin = false\n", &over);
        let file = reading.file.unwrap();
        assert_eq!((file.process.workers, file.process.pin), (None, false));
        let problems = reading.problems.iter().map(Problem::to_string);
        let starts = [
            "admin.address = \":1\": the",
            "process.workers = \"0\": not",
        ];
        for (problem, start) in problems.zip(starts) {
            assert!(problem.starts_with(start), "{problem}");
        }
        assert_eq!(reading.problems.len(), 2);
    }

    #[test]
    fn the_first_syntax_error_is_reported_with_the_line_that_opens_its_bracket() {
        for (text, line, ends) in [
            (
                "[[listener]]\nbind = [\":1\"\nname = \"a\"\n\n[log]\nlevel = 'info'\n",
                3,
                "missing comma between array elements, expected `,` (line 2 opens `[`)",
            ),
            ("a = [\n[limits]\nb = 3\n", 2, "(line 1 opens `[`)"),
            ("a = '''\n\nb = 1\n", 3, "(line 1 opens `'''`)"),
            (
                "b = 1\nlisten 443 ssl;\n\nserver_name a.test;\n",
                2,
                "key with no value, expected `=` (here it is bind of a [[listener]])",
            ),
            ("a = \n\nb = [\n", 1, ""),
        ] {
            let found = lines_of(text);
            assert_eq!(found.len(), 1, "{found:?}");
            let starts = format!("line {line}: not TOML: ");
            assert!(found[0].starts_with(&starts), "{found:?}");
            assert!(found[0].ends_with(ends), "{found:?}");
        }
    }

    #[test]
    fn a_key_of_another_program_and_a_number_in_quotes_are_named() {
        let found = lines_of("[limits]\nconnections = \"100\"\n[[policy]]\nssl_ciphers = \"a\"\n");
        let expected = [
            "line 2: limits.connections = \"100\": a number in quotes; accepted: 1 to 100000000, without quotes",
            "line 4: policy[0].ssl_ciphers: unknown key (here it is suites of a [[policy]]); accepted: ",
        ];
        assert_eq!(found.len(), 2, "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[test]
    fn tables_of_a_wrong_shape_are_errors() {
        for text in [
            "listener = 1\n",
            "limits = 1\n",
            "[[timeouts]]\nidle = \"1s\"\n",
            "[listener]\nname = \"a\"\n",
        ] {
            assert_eq!(lines_of(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn paths_use_names_while_they_are_unique() {
        let names = [Some("a"), Some("a"), None, Some("b"), Some("")];
        let names = names.map(|name| name.map(|name| SectionName(name.into())));
        assert_eq!(labels(names.into_iter()), ["a", "1", "2", "b", "4"]);
    }

    #[test]
    fn a_missing_key_is_placed_at_its_table() {
        let reading = reading("\n[[listener]]\nname = \"web\"\n");
        for (path, line) in [
            ("listener[web].bind", Some(2)),
            ("listener[web].name", Some(3)),
            ("policy[x]", None),
        ] {
            let mut problem = Problem::new(path, "missing");
            reading.places.place(&mut problem);
            assert_eq!(problem.line, line, "{path}");
        }
    }
}
