//! The project's own rules that no compiler checks, as tests of the whole workspace.
//!
//! * [`rust`]: Rust sources: lengths, headers, words, names of types, and where `unsafe` is allowed;
//! * [`prose`]: all text: no unfinished marks, no paths of one machine, valid links;
//! * [`english`]: banned openings of sentences and banned words;
//! * [`log_lines`]: every log line is in the reference;
//! * [`arrows`]: allowed imports between crates;
//! * [`classics`]: every row about the classic articles has a state and a proof;
//! * [`shared`]: state that several threads write is listed;
//! * [`circles`]: no circle of imports within a crate;
//! * [`exceptions`]: known violations, which may only become fewer.
//!
//! Every rule is a function from text to faults, with a test next to its definition. The tests in this file apply the
//! rules to the workspace.
#![forbid(unsafe_code)]

mod arrows;
mod circles;
mod classics;
mod english;
mod exceptions;
mod log_lines;
mod parts;
mod paths;
mod prose;
mod rust;
mod shared;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::LazyLock;

use exceptions::demand_none;
use workspace::{File, Workspace};

static WORKSPACE: LazyLock<Workspace> = LazyLock::new(Workspace::find);

/// Returns the faults that `rule` finds, each after the name of its file.
fn faults<'a>(
    files: impl Iterator<Item = &'a File>,
    rule: impl Fn(&File) -> Vec<String>,
) -> Vec<String> {
    let each = files.map(|file| {
        rule(file)
            .into_iter()
            .map(|fault| format!("{}: {fault}", file.path))
    });
    each.flatten().collect()
}

#[test]
fn files_and_functions_are_short() {
    let workspace = &*WORKSPACE;
    let long = workspace
        .rust()
        .flat_map(|file| rust::too_long(&file.path, &file.text));
    demand_none("long", long.collect());
}

#[test]
fn every_source_file_begins_with_its_header() {
    let workspace = &*WORKSPACE;
    let sources = workspace.rust().filter(|file| file.path.contains("/src/"));
    let bare = sources.filter(|file| !rust::has_header(&file.text));
    demand_none(
        "begins without `//!`",
        bare.map(|file| file.path.clone()).collect(),
    );
}

#[test]
fn identifiers_and_file_names_contain_no_forbidden_words() {
    let workspace = &*WORKSPACE;
    let faults = faults(workspace.rust(), |file| {
        let mut words = rust::forbidden_words(&parts::code_of(&file.text));
        words.extend(rust::forbidden_words(&file.path));
        words.retain(|word| !is_excepted(&file.path, word));
        words
    });
    demand_none("a name says", faults);
}

/// Accepts words in names of other software: systemd(1) is a service manager, and `hyper_util` is a crate.
fn is_excepted(path: &str, word: &str) -> bool {
    match word {
        "manager" => {
            path.starts_with("crates/sys/") || path.starts_with("e2e/tests/socket_activation")
        }
        "util" => [
            "crates/acme/src/http.rs",
            "crates/control/src/admin_http.rs",
        ]
        .contains(&path),
        _ => false,
    }
}

/// Crates of the terminator. They are one program, in which each type has a unique name.
const PROGRAM: &[&str] = &[
    "becket",
    "cluster",
    "config",
    "control",
    "dialects",
    "http",
    "keys",
    "log",
    "multibuffer",
    "prepare",
    "process",
    "proto",
    "proxy",
    "stats",
    "sys",
    "tls",
];

#[test]
fn type_names_are_unique_per_program() {
    let mut places: BTreeMap<(&str, String), BTreeSet<&str>> = BTreeMap::new();
    let mut twice = BTreeSet::new();
    for (krate, file) in sources() {
        let is_part = krate
            .strip_prefix("crates/")
            .is_some_and(|name| PROGRAM.contains(&name));
        let program = if is_part { "becket" } else { krate };
        for name in rust::types(&file.text) {
            let files = places.entry((program, name.clone())).or_default();
            if !files.insert(krate) || files.len() > 1 {
                twice.insert(format!("{program} {name}"));
            }
        }
    }
    demand_none("two types", twice.into_iter().collect());
}

#[test]
fn structs_have_few_fields() {
    let wide = sources().flat_map(|(krate, file)| {
        let names = rust::wide_structs(&file.text).into_iter();
        names.map(move |name| format!("{krate} {name}"))
    });
    demand_none("many fields", wide.collect());
}

#[test]
fn imports_within_a_crate_have_no_cycle() {
    let mut crates: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for (krate, file) in sources() {
        let files = crates.entry(krate).or_default();
        files.push((&file.path, &file.text));
    }
    let circular = crates.values().flat_map(|files| circles::in_files(files));
    demand_none("circle", circular.collect());
}

/// Returns the sources of all crates, without files of unit tests, each with the folder of its crate.
fn sources() -> impl Iterator<Item = (&'static str, &'static File)> {
    WORKSPACE.rust().filter_map(|file| {
        let (krate, _) = file.path.split_once("/src/")?;
        (!is_of_tests(&file.path)).then_some((krate, file))
    })
}

#[test]
fn unsafe_code_occurs_only_in_sys() {
    let workspace = &*WORKSPACE;
    let outside = workspace
        .rust()
        .filter(|file| !file.path.starts_with("crates/sys/"));
    let found = outside.filter(|file| rust::uses_unsafe(&file.text));
    demand_none(
        "unsafe outside crates/sys",
        found.map(|file| file.path.clone()).collect(),
    );
}

#[test]
fn files_contain_no_todo_marks_and_no_machine_specific_paths() {
    let workspace = &*WORKSPACE;
    demand_none(
        "mark",
        faults(workspace.files.iter(), |file| prose::marks(&file.text)),
    );
}

#[test]
fn links_between_documents_resolve() {
    let workspace = &*WORKSPACE;
    let documents = workspace
        .files
        .iter()
        .filter(|file| file.path.ends_with(".md"));
    let faults = faults(documents, |file| {
        let links = prose::relative_links(&file.text).into_iter();
        links
            .filter_map(|link| workspace.fault_of_link(&file.path, link))
            .collect()
    });
    demand_none("link", faults);
}

/// Comments, logs, errors, help and documents.
#[test]
fn prose_is_plain_english() {
    let faults = faults(WORKSPACE.files.iter(), |file| {
        let text = &file.text;
        match file.path.rsplit_once('.') {
            _ if file.path.starts_with("bench/results/2") => Vec::new(),
            Some((_, "rs")) if is_product(&file.path) => {
                let mut faults = english::in_comments(text);
                faults.extend(english::in_literals(text));
                faults
            }
            Some((_, "rs")) => english::in_comments(text),
            Some((_, "md")) => english::in_markdown(text),
            Some((_, "toml" | "sh")) => english::in_hash_comments(text),
            _ => Vec::new(),
        }
    });
    demand_none("English", faults);
}

/// Returns whether a source is part of a program that operators run.
fn is_product(path: &str) -> bool {
    let is_ours = path.starts_with("crates/") || path.starts_with("bench/");
    is_ours && path.contains("/src/") && !is_of_tests(path)
}

fn is_of_tests(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Limits the length of documents. Tables of the reference, of the architecture and of the classic articles do not
/// count: readers look up single rows, and tests compare the tables with the code.
#[test]
fn documents_are_short() {
    let words = |file: &File| {
        let held = [
            "docs/reference/",
            "docs/architecture.md",
            "docs/classics.md",
        ];
        let is_held = held.iter().any(|path| file.path.starts_with(path));
        let lines = file
            .text
            .lines()
            .filter(|line| !is_held || !line.starts_with('|'));
        lines
            .map(|line| line.split_whitespace().count())
            .sum::<usize>()
    };
    let pages = || {
        let is_page = |file: &&File| file.path.starts_with("docs/") && file.path.ends_with(".md");
        WORKSPACE.files.iter().filter(is_page)
    };
    let long = pages().filter(|file| {
        let is_decision = file.path.starts_with("docs/decisions/0");
        is_decision && words(file) > DECISION_WORDS
    });
    let mut faults: Vec<String> = long.map(|file| file.path.clone()).collect();
    let all: usize = pages().map(words).sum();
    if all > ALL_WORDS {
        faults.push(format!("docs/, {all} words"));
    }
    demand_none("long document", faults);
}

/// Maximum words of a decision.
const DECISION_WORDS: usize = 400;
/// Maximum words of all documents together.
const ALL_WORDS: usize = 61_000;

#[test]
fn each_log_line_is_documented() {
    let page = WORKSPACE
        .files
        .iter()
        .find(|file| file.path == "docs/reference/log-lines.md");
    let page = log_lines::in_page(&page.expect("a page").text);
    let program =
        sources().filter(|(krate, _)| krate.starts_with("crates/") && *krate != "crates/load");
    let code: BTreeSet<_> = program
        .flat_map(|(_, file)| log_lines::in_source(&file.text))
        .collect();
    assert!(code.len() > 100, "the lines were not found: {}", code.len());
    let absent = code
        .difference(&page)
        .map(|(level, event, line)| format!("{level} {event:?} {line}"));
    demand_none("not in log-lines.md", absent.collect());
    let stale = page
        .difference(&code)
        .map(|(level, event, line)| format!("{level} {event} {line}"));
    demand_none("logged by no source", stale.collect());
    let mut texts: BTreeMap<&str, &str> = BTreeMap::new();
    let twice = page.iter().filter(|(_, event, line)| {
        let other = texts.insert(event, line);
        other.is_some_and(|other| other != line)
    });
    let twice = twice.map(|(_, event, _)| event.clone());
    demand_none("event with two texts", twice.collect());
}

#[test]
fn each_page_is_listed_in_the_summary() {
    let files = &WORKSPACE.files;
    let summary = files.iter().find(|file| file.path == "docs/SUMMARY.md");
    let listed: BTreeSet<&str> = prose::relative_links(&summary.expect("a summary").text)
        .into_iter()
        .collect();
    let pages = files
        .iter()
        .filter_map(|file| file.path.strip_prefix("docs/"));
    let pages = pages.filter(|page| page.ends_with(".md") && *page != "SUMMARY.md");
    let absent = pages.filter(|page| !listed.contains(page));
    demand_none(
        "not in docs/SUMMARY.md",
        absent.map(str::to_owned).collect(),
    );
}

/// Every ignored test states the reason and the command that runs it.
#[test]
fn tests_are_ignored_only_if_slow() {
    let faults = faults(WORKSPACE.rust(), |file| {
        let marks = file
            .text
            .lines()
            .filter(|line| line.starts_with("#[ignore"));
        let others = marks.filter(|line| *line != SLOW);
        others.map(str::to_owned).collect()
    });
    demand_none("ignored", faults);
}

const SLOW: &str = "#[ignore = \"slow: .ci/run test\"]";

/// Writes directly to standard error, because libtest hides the output of successful tests.
#[test]
fn skipped_tests_are_listed_at_the_end() {
    let mut text = String::new();
    let skipped = becket_tidy::take_skipped();
    if !skipped.is_empty() {
        text += &format!(
            "\n{} tests were skipped, or a part of them:\n  {}\n",
            skipped.len(),
            skipped.join("\n  ")
        );
    }
    if !std::env::args().any(|argument| argument.contains("ignored")) {
        let lines = WORKSPACE.rust().flat_map(|file| file.text.lines());
        let slow = lines.filter(|line| *line == SLOW).count();
        text += &format!(
            "\n{slow} slow tests did not run. Run them with `.ci/run test`, or some with\n  \
             cargo test -p becket-e2e --test promises -- --include-ignored NAME\n"
        );
    }
    io::stderr()
        .write_all(text.as_bytes())
        .expect("standard error");
}

#[test]
fn crate_imports_follow_the_layering() {
    let workspace = &*WORKSPACE;
    let manifests = workspace
        .files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"));
    let faults = manifests.flat_map(|file| arrows::of_crate(&file.text));
    demand_none("arrow", faults.collect());
}

/// Readers find files by the tables of `docs/architecture.md`. Each path in a first column must exist in the crate of
/// its heading.
#[test]
fn files_named_in_the_architecture_exist() {
    let workspace = &*WORKSPACE;
    let page = workspace
        .files
        .iter()
        .find(|file| file.path == "docs/architecture.md");
    let (mut krate, mut paths) = ("", Vec::new());
    for line in page.expect("the page").text.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            krate = heading;
        } else if let Some((cell, _)) = line.split_once(" | ")
            && krate.starts_with("crates/")
        {
            let named = paths::in_document(cell);
            paths.extend(named.iter().map(|path| format!("{krate}/src/{path}")));
        }
    }
    assert!(paths.len() > 150, "the tables were not found");
    paths.retain(|path| !workspace.rust().any(|file| file.path.starts_with(path)));
    demand_none("no file", paths);
}

/// A value that several workers write moves its cache line between them, so `shared.txt` states when each is written.
#[test]
fn state_that_workers_share_is_listed() {
    let listed = shared::listed(include_str!("../shared.txt"));
    let of_workers = sources().filter(|(krate, _)| shared::CRATES.contains(krate));
    let found: BTreeSet<_> = of_workers
        .flat_map(|(_, file)| {
            let names = shared::names(&file.text).into_iter();
            names.map(|name| (file.path.clone(), name))
        })
        .collect();
    assert!(found.len() > 50, "the state was not found: {}", found.len());
    let text = |(path, name): &(String, String)| format!("{path} {name}");
    demand_none(
        "shared, but not in shared.txt",
        found.difference(&listed).map(text).collect(),
    );
    demand_none(
        "listed, but not shared",
        listed.difference(&found).map(text).collect(),
    );
}

#[test]
fn each_row_of_the_classics_page_is_valid() {
    let workspace = &*WORKSPACE;
    let mut files = workspace.files.iter();
    let page = files.find(|file| file.path == "docs/classics.md");
    let has = |path: &str| workspace.files.iter().any(|file| file.path == path);
    let page = &page.expect("the page").text;
    assert!(page.lines().count() > 90, "rows were lost");
    demand_none("row", classics::faults(page, has));
}

#[test]
fn paths_in_documents_and_comments_exist() {
    let workspace = &*WORKSPACE;
    let missing = |named: Vec<&str>| -> Vec<String> {
        let tree = || workspace.files.iter().map(|file| file.path.as_str());
        let mut named = named;
        named.retain(|path| !paths::is_excepted(path) && !paths::is_in(tree(), path));
        named.into_iter().map(str::to_owned).collect()
    };
    let is_document = |file: &&File| {
        file.path.starts_with("docs/") && file.path.ends_with(".md")
            || ["CONTRIBUTING.md", "README.md"].contains(&file.path.as_str())
    };
    let documents = workspace.files.iter().filter(is_document);
    let mut absent = faults(documents, |file| missing(paths::in_document(&file.text)));
    let sources = workspace
        .rust()
        .filter(|file| file.path.starts_with("crates/"));
    absent.extend(faults(sources, |file| {
        missing(paths::in_comments(&file.text))
    }));
    demand_none("no such path", absent);
}
