//! Rules for Rust sources. Each is a function from the text to its faults.

use crate::parts::code_of;

/// Maximum lines of a file, without its unit tests.
const LONGEST_FILE: usize = 600;
/// Maximum lines of a function, from `fn` to its last brace.
const LONGEST_FUNCTION: usize = 100;
/// Maximum fields of a struct.
const MOST_FIELDS: usize = 15;

struct Function {
    name: String,
    lines: usize,
}

/// Returns the source up to its unit tests.
pub(crate) fn without_tests(source: &str) -> &str {
    [
        "\n#[cfg(test)]\nmod ",
        "\n#[cfg(test)]\n#[path",
        "\n#[cfg(all(test, feature = \"models\"))]\nmod ",
    ]
    .iter()
    .filter_map(|tests| source.find(tests))
    .min()
    .map_or(source, |at| &source[..=at])
}

/// Returns the functions, and the file itself, if they exceed the maximum length.
pub(crate) fn too_long(path: &str, source: &str) -> Vec<String> {
    let functions = functions(source)
        .into_iter()
        .filter(|f| f.lines > LONGEST_FUNCTION);
    let mut faults: Vec<String> = functions.map(|f| format!("{path} {}", f.name)).collect();
    if without_tests(source).lines().count() > LONGEST_FILE {
        faults.push(path.into());
    }
    faults
}

/// Returns the names of the types that a file defines, without associated types.
pub(crate) fn types(source: &str) -> Vec<String> {
    let code = code_of(without_tests(source));
    let names = code.lines().filter_map(|line| {
        let (kind, rest) = without_visibility(line.trim_start()).split_once(' ')?;
        let kinds = ["struct", "enum", "trait", "union"];
        let is_alias = kind == "type" && !line.starts_with(' ');
        (kinds.contains(&kind) || is_alias).then(|| name_of(rest))
    });
    // A `$name` in a macro is not a name.
    names.filter(|name| !name.is_empty()).collect()
}

/// Returns the names of structs with more than [`MOST_FIELDS`] fields.
pub(crate) fn wide_structs(source: &str) -> Vec<String> {
    let code = code_of(without_tests(source));
    let starts = code.match_indices("struct ").map(|(at, _)| &code[at..]);
    let bodies = starts.filter_map(|item| Some((name_of(&item[7..]), body(item)?)));
    let wide = bodies.filter(|(_, body)| {
        let fields = body.lines().filter(|line| {
            let field = line.strip_prefix("    ").map(without_visibility);
            let name_ends = field.and_then(|field| field.find(|c: char| !is_name(c)));
            name_ends.is_some_and(|at| at > 0 && field.is_some_and(|f| f[at..].starts_with(": ")))
        });
        fields.count() > MOST_FIELDS
    });
    wide.map(|(name, _)| name).collect()
}

pub(crate) fn without_visibility(item: &str) -> &str {
    let Some(rest) = item.strip_prefix("pub") else {
        return item;
    };
    let inside = rest
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(") "));
    inside.map_or(rest.trim_start(), |(_, item)| item)
}

fn name_of(text: &str) -> String {
    text.chars().take_while(|c| is_name(*c)).collect()
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns all functions with a body.
fn functions(source: &str) -> Vec<Function> {
    let code = code_of(source);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let alone = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let name: String = code[at + 3..]
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        if alone
            && !name.is_empty()
            && let Some(body) = body(&code[at..])
        {
            let lines = body.lines().count();
            found.push(Function { name, lines });
        }
    }
    found
}

/// Returns the text up to the brace that closes the item at the start of `code`, or `None` if a semicolon ends the item
/// first.
fn body(code: &str) -> Option<&str> {
    let (mut braces, mut brackets) = (0, 0);
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            ';' if braces == 0 && brackets == 0 => return None,
            '{' => braces += 1,
            '}' => braces -= 1,
            _ => continue,
        }
        if c == '}' && braces == 0 && brackets == 0 {
            return Some(&code[..=at]);
        }
    }
    None
}

/// Returns whether the file begins with `//!`.
pub(crate) fn has_header(source: &str) -> bool {
    source
        .lines()
        .find(|line| !line.trim().is_empty())
        .is_some_and(|line| line.starts_with("//!"))
}

/// Returns the words of identifiers in `code` that the lexicon forbids.
pub(crate) fn forbidden_words(code: &str) -> Vec<String> {
    let mut found: Vec<String> = words(code)
        .into_iter()
        .filter(|word| FORBIDDEN.contains(&word.as_str()))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Splits identifiers at underscores and capitals, and everything else at non-letters, into lower-case words.
fn words(code: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in code.chars() {
        if !c.is_ascii_alphabetic() || (c.is_ascii_uppercase() && before.is_ascii_lowercase()) {
            words.push(String::new());
        }
        if c.is_ascii_alphabetic()
            && let Some(word) = words.last_mut()
        {
            word.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    words
}

/// Returns whether the code has the word `unsafe`.
pub(crate) fn uses_unsafe(source: &str) -> bool {
    let code = code_of(source);
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|word| word == "unsafe")
}

const FORBIDDEN: &[&str] = &[
    "upstream",
    "upstreams",
    "downstream",
    "downstreams",
    "manager",
    "managers",
    "handler",
    "handlers",
    "helper",
    "helpers",
    "util",
    "utils",
    "crew",
    "errand",
    "guest",
    "rehearsal",
    "shelf",
];

#[test]
fn unit_tests_are_excluded_from_the_line_count() {
    assert_eq!(
        without_tests("//! a\nfn b() {}\n#[cfg(test)]\nmod tests {\n}\n"),
        "//! a\nfn b() {}\n"
    );
    assert_eq!(
        without_tests("//! a\n#[cfg(test)]\nfn b() {}\n")
            .lines()
            .count(),
        3
    );
    assert_eq!(too_long("a.rs", &"\n".repeat(601)), ["a.rs"]);
    assert_eq!(
        too_long("a.rs", &format!("fn b() {{{}}}", "\n".repeat(100))),
        ["a.rs b"]
    );
}

#[test]
fn struct_enum_and_type_names_are_found() {
    let source = "pub struct A<T>(T);\nstruct B;\npub(crate) enum C {}\n// pub type D = u8;\n\
                  pub fn e() {}\nimpl F for B {\n    type Item = A;\n}\ntype G = A;\n";
    assert_eq!(types(source), ["A", "B", "C", "G"]);
}

#[test]
fn a_struct_with_too_many_fields_is_found() {
    let fields = |many| "    pub(crate) a: [u8; 4],\n".repeat(many);
    let source = |many| format!("struct A;\npub struct B<T> {{\n{}}}\n", fields(many));
    assert!(wide_structs(&source(15)).is_empty());
    assert_eq!(wide_structs(&source(16)), ["B"]);
}

#[test]
fn functions_are_measured_from_their_first_line_to_their_last_brace() {
    let source = "trait A { fn declared(&self) -> [u8; 4]; }\n\
                  pub fn long(\n    a: u8,\n) -> Vec<u8> {\n    if a == b'}' {\n        \"}\".into()\n    }\n}\n\
                  type F = fn (u8); fn short() {}\n";
    let found: Vec<(String, usize)> = functions(source)
        .into_iter()
        .map(|f| (f.name, f.lines))
        .collect();
    assert_eq!(found, [("long".to_string(), 7), ("short".to_string(), 1)]);
}

#[test]
fn a_header_comes_before_all_code() {
    assert!(has_header("\n//! What it is.\n"));
    assert!(!has_header("use std::io;\n//! Too late.\n"));
    assert!(!has_header("/// Of the next item.\nfn a() {}\n"));
}

#[test]
fn forbidden_words_are_found_as_whole_words_of_a_name() {
    assert_eq!(
        forbidden_words("struct ConnManager; let http_util = 1;"),
        ["manager", "util"]
    );
    assert_eq!(
        forbidden_words("fn upstreamer() { utility() }"),
        Vec::<String>::new()
    );
    assert_eq!(forbidden_words("crates/becket/src/helper.rs"), ["helper"]);
}

#[test]
fn unsafe_is_found_in_code_and_not_in_lints_or_comments() {
    assert!(uses_unsafe("fn a() { unsafe { b() } }"));
    assert!(!uses_unsafe(
        "#![forbid(unsafe_code)] // unsafe\nconst A: &str = \"unsafe\";"
    ));
}
