//! Who may import whom: crates, from their `Cargo.toml`, and rooms of the terminator, from its sources; see
//! `docs/architecture.md`.
//!
//! A room is a file or a folder right below `crates/becket/src`. It imports only rooms of the rows below its own, so there is
//! no circle. Files within a room may name each other. Unit tests may import what they like.

use std::collections::BTreeSet;

use crate::blank::code_of;
use crate::rust::without_tests;

/// Crates, and which others of ours each may import; the tests of each also what tests share.
const CRATES: &[(&str, &[&str])] = &[
    ("becket-proto", &[]),
    ("becket-sys", &[]),
    ("becket-stats", &[]),
    ("becket-config", &["proto"]),
    ("becket-dialects", &["config", "proto"]),
    ("becket-cluster", &["config", "proto", "sys"]),
    ("becket-http", &["config", "proto", "sys"]),
    ("becket-multibuffer", &["proto", "sys"]),
    ("becket-keys", &["config", "multibuffer", "proto", "sys"]),
    (
        "becket",
        &[
            "config",
            "dialects",
            "http",
            "keys",
            "log",
            "proxy",
            "multibuffer",
            "proto",
            "sys",
            "stats",
            "tls",
        ],
    ),
    (
        "becket-tls",
        &["config", "http", "keys", "multibuffer", "proto", "sys"],
    ),
    ("becket-log", &["config", "keys", "proto", "sys", "tls"]),
    (
        "becket-prepare",
        &[
            "config",
            "dialects",
            "http",
            "keys",
            "log",
            "multibuffer",
            "proto",
            "sys",
            "tls",
        ],
    ),
    (
        "becket-proxy",
        &[
            "config",
            "http",
            "keys",
            "log",
            "multibuffer",
            "prepare",
            "proto",
            "sys",
            "tls",
        ],
    ),
    (
        "becket-process",
        &[
            "config", "dialects", "keys", "log", "prepare", "proto", "sys", "tls",
        ],
    ),
    (
        "becket-control",
        &[
            "config",
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
        ],
    ),
    ("becket-load", &["proto", "sys", "stats"]),
    ("becket-bench", &["load", "stats", "sys"]),
    ("becket-e2e", &[]),
    ("becket-tidy", &[]),
    (
        "becket-fuzz",
        &[
            "becket",
            "config",
            "dialects",
            "http",
            "keys",
            "multibuffer",
            "proto",
            "sys",
        ],
    ),
];

/// Rooms of the terminator, from the top of the house to its cellar.
const ROOMS: &[&[&str]] = &[
    &["main"],
    &["cli", "dropin", "secret_command"],
    &["demo"],
    &["ctl", "top"],
    &["reload"],
    &["check", "status"],
    &["close_reason", "docroot"],
    &["labelled"],
];

const SOURCES: &str = "crates/becket/src/";

/// Imports of ours in a manifest that no arrow allows.
pub(crate) fn of_crate(manifest: &str) -> Vec<String> {
    let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
    let Some(package) = manifest.get("package") else {
        return Vec::new();
    };
    let package = package["name"].as_str().expect("a package has a name");
    let Some((_, allowed)) = CRATES.iter().find(|(from, _)| *from == package) else {
        return vec![format!("{package} is not in the table of crates")];
    };
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let tables = kinds
        .iter()
        .filter_map(|kind| manifest.get(*kind)?.as_table());
    let ours = tables
        .flat_map(|table| table.keys())
        .filter(|name| name.starts_with("becket"));
    let forbidden = ours.filter(|name| {
        *name != "becket-tidy" && !allowed.contains(&name.trim_start_matches("becket-"))
    });
    forbidden
        .map(|name| format!("{package} must not import {name}"))
        .collect()
}

/// Imports in a source that run up, or within a row.
pub(crate) fn of_room(path: &str, source: &str) -> Vec<String> {
    let Some(path) = path
        .strip_prefix(SOURCES)
        .and_then(|path| path.strip_suffix(".rs"))
    else {
        return Vec::new();
    };
    let modules: Vec<&str> = path.split('/').filter(|name| *name != "mod").collect();
    let Some(room) = modules.first().filter(|room| **room != "lib") else {
        return Vec::new();
    };
    let row = |room: &str| ROOMS.iter().position(|row| row.contains(&room));
    let Some(from) = row(room) else {
        return vec![format!("{room} is not in the list of rooms")];
    };
    if modules.contains(&"tests") {
        return Vec::new();
    }
    let rooms = imports(&code_of(without_tests(source)), modules.len());
    let others = rooms.into_iter().filter(|to| to != room);
    let up = others.filter(|to| row(to).is_some_and(|to| to <= from));
    up.map(|to| format!("{room} imports {to}")).collect()
}

/// The rooms that code names from the root of the crate, as `crate::room`, `crate::{room, ..}`, by `super`, or in the program
/// as `becket::room`.
fn imports(code: &str, depth: usize) -> BTreeSet<String> {
    let root = "super::".repeat(depth);
    let mut found = BTreeSet::new();
    for prefix in ["crate::", "becket::", &root] {
        for (at, _) in code.match_indices(prefix) {
            let whole =
                !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if whole {
                found.extend(first_names(&code[at + prefix.len()..]));
            }
        }
    }
    found
}

/// The first name of a path, or of each path of a `{group}`.
fn first_names(path: &str) -> Vec<String> {
    let name = |path: &str| -> String {
        let path = path.trim_start();
        path.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let Some(group) = path.strip_prefix('{') else {
        return vec![name(path)];
    };
    let (mut depth, mut names, mut start) = (1, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 || (depth == 1 && c == ',') {
            names.push(name(&group[start..at]));
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    names
}

#[test]
fn an_import_against_the_arrows_is_found() {
    let manifest = |name: &str, import: &str| {
        of_crate(&format!(
            "[package]\nname = \"{name}\"\n[dev-dependencies]\n{import}\n"
        ))
    };
    assert_eq!(
        manifest("becket-proto", "becket-sys.workspace = true"),
        ["becket-proto must not import becket-sys"]
    );
    assert!(manifest("becket-load", "becket-sys = { path = \"../sys\" }").is_empty());
    assert_eq!(manifest("becket-new", "").len(), 1);
}

#[test]
fn an_arrow_that_runs_up_is_found_however_it_is_written() {
    let room = |path: &str, source: &str| of_room(&format!("{SOURCES}{path}"), source);
    assert_eq!(
        room("tls/a.rs", "use crate::worker::W;"),
        ["tls imports worker"]
    );
    assert_eq!(
        room(
            "tls/mod.rs",
            "use crate::{config::{C, D}, server, worker::W};"
        ),
        ["tls imports server", "tls imports worker"]
    );
    assert_eq!(
        room("tls/a/b.rs", "fn f() { super::super::super::worker::f() }"),
        ["tls imports worker"]
    );
    assert!(
        room(
            "tls/a/b.rs",
            "use super::super::worker; use crate::tls::c; use crate::config;"
        )
        .is_empty()
    );
    assert!(
        room(
            "tls/a.rs",
            "//! See crate::worker\n#[cfg(test)]\nmod tests { use crate::worker; }"
        )
        .is_empty()
    );
    assert_eq!(room("shed/a.rs", ""), ["shed is not in the list of rooms"]);
}
