//! The house rules that no compiler knows, held for the whole workspace.
//!
//! * [`rust`]: what Rust sources look like: lengths, headers, words, where `unsafe` lives;
//! * [`prose`]: what all text looks like: no unfinished business, no paths of one machine, links that resolve;
//! * [`arrows`]: which crate may import which;
//! * [`allowance`]: the few files and functions that are longer than the rule, and may only shrink.
//!
//! Every rule is a function from text to faults and is shown, beside its definition, to find what it looks for. The tests in
//! this file run the rules over the workspace.
#![forbid(unsafe_code)]

mod allowance;
mod arrows;
mod blank;
mod prose;
mod rust;
mod workspace;

use allowance::{Allowance, Length};
use workspace::Workspace;

/// Fails with all faults at once, a line each.
fn demand_none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn files_and_functions_are_short_or_on_the_list_that_only_shrinks() {
    let workspace = Workspace::find();
    let mut lengths = Vec::new();
    for file in workspace.rust() {
        lengths.push(Length::file(
            &file.path,
            rust::lines_before_tests(&file.text),
        ));
        for function in rust::functions(&file.text) {
            lengths.push(Length::function(&file.path, &function.name, function.lines));
        }
    }
    let allowance = Allowance::parse(include_str!("allowance.txt"));
    demand_none(allowance.faults(&lengths));
}

#[test]
fn every_source_file_begins_with_its_header() {
    let workspace = Workspace::find();
    let sources = workspace.rust().filter(|file| file.path.contains("/src/"));
    let bare = sources.filter(|file| !rust::has_header(&file.text));
    demand_none(
        bare.map(|file| format!("{}: begins without `//!`", file.path))
            .collect(),
    );
}

#[test]
fn identifiers_and_file_names_keep_to_the_lexicon() {
    let workspace = Workspace::find();
    let mut faults = Vec::new();
    for file in workspace.rust() {
        for word in rust::forbidden_words(&file.path) {
            faults.push(format!("{}: the name says `{word}`", file.path));
        }
        let words = rust::forbidden_words(&blank::code_of(&file.text)).into_iter();
        for word in words.filter(|word| !is_excepted(&file.path, word)) {
            faults.push(format!(
                "{}: an identifier says `{word}`; see docs/lexicon.md",
                file.path
            ));
        }
    }
    demand_none(faults);
}

/// systemd(1) is a service manager, and calls itself so; `hyper_util` is the name of a crate.
fn is_excepted(path: &str, word: &str) -> bool {
    match word {
        "manager" => path.starts_with("crates/sys/"),
        "util" => path == "crates/becket/src/control/visits.rs",
        _ => false,
    }
}

#[test]
fn unsafe_lives_in_sys_alone() {
    let workspace = Workspace::find();
    let outside = workspace
        .rust()
        .filter(|file| !file.path.starts_with("crates/sys/"));
    let found = outside.filter(|file| rust::uses_unsafe(&file.text));
    demand_none(
        found
            .map(|file| format!("{}: unsafe outside crates/sys", file.path))
            .collect(),
    );
}

#[test]
fn nothing_is_left_for_later_and_no_path_is_of_one_machine() {
    let workspace = Workspace::find();
    let mut faults = Vec::new();
    for file in &workspace.files {
        for mark in prose::marks(&file.text) {
            faults.push(format!("{}: {mark}", file.path));
        }
    }
    demand_none(faults);
}

#[test]
fn links_between_documents_resolve() {
    let workspace = Workspace::find();
    let mut faults = Vec::new();
    for file in workspace
        .files
        .iter()
        .filter(|file| file.path.ends_with(".md"))
    {
        for link in prose::relative_links(&file.text) {
            if let Some(fault) = workspace.fault_of_link(&file.path, link) {
                faults.push(format!("{}: {fault}", file.path));
            }
        }
    }
    demand_none(faults);
}

#[test]
fn crates_import_along_the_arrows() {
    let workspace = Workspace::find();
    let mut faults = Vec::new();
    for file in workspace
        .files
        .iter()
        .filter(|file| file.path.ends_with("/Cargo.toml"))
    {
        faults.extend(
            arrows::faults(&file.text)
                .into_iter()
                .map(|fault| format!("{}: {fault}", file.path)),
        );
    }
    demand_none(faults);
}
