//! Allowed imports: of crates, from their `Cargo.toml`, and of modules within a crate, from its sources; see `docs/architecture.md`.
//!
//! A module is a file or a folder right below `src`. It imports only modules of the rows below its own, so there is no circle. Files within
//! a module may name each other. Unit tests may import every module.

use std::collections::BTreeSet;

use crate::blank::code_of;
use crate::rust::without_tests;

/// Crates, and which others of ours each may import; the tests of each also what tests share.
const CRATES: &[(&str, &[&str])] = &[
    ("becket-proto", &[]),
    ("becket-sys", &[]),
    ("becket-stats", &[]),
    ("becket-config", &["proto"]),
    ("becket-dialects", &["config"]),
    ("becket-multibuffer", &["proto", "sys"]),
    ("becket-cluster", &["config", "proto", "sys"]),
    ("becket-http", &["config", "proto", "sys"]),
    ("becket-keys", &["config", "multibuffer", "proto", "sys"]),
    (
        "becket-tls",
        &[
            "cluster",
            "config",
            "http",
            "keys",
            "multibuffer",
            "proto",
            "sys",
        ],
    ),
    ("becket-log", &["config", "keys", "proto", "sys", "tls"]),
    (
        "becket-prepare",
        &[
            "cluster",
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
            "cluster",
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
        &["config", "keys", "log", "prepare", "proto", "sys", "tls"],
    ),
    (
        "becket-control",
        &[
            "cluster", "config", "http", "keys", "log", "prepare", "process", "proto", "proxy",
            "sys", "tls",
        ],
    ),
    (
        "becket",
        &[
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
        ],
    ),
];

/// Modules of each crate of the terminator, from the top down.
const MODULES: &[(&str, &[&[&str]])] = &[
    (
        "keys",
        &[
            &["certificates"],
            &["authorities", "ocsp"],
            &["keys"],
            &["client_names", "pem"],
            &[
                "digest",
                "facts",
                "files",
                "identity",
                "presented",
                "signing",
                "watch",
            ],
        ],
    ),
    (
        "tls",
        &[
            &["to_servers", "verifier"],
            &["server_rules"],
            &["path"],
            &["chain", "hello_router"],
            &["engine", "route_configs"],
            &["deferred", "metered", "skipping"],
            &["sessions"],
            &["admission"],
            &["config"],
            &["side", "trial"],
            &[
                "ja4",
                "key_log",
                "names",
                "policy",
                "resumption",
                "scratch",
                "secret",
            ],
        ],
    ),
    (
        "log",
        &[
            &["access_log"],
            &["syslog"],
            &["backlog"],
            &["output"],
            &[
                "access",
                "escape",
                "last_words",
                "rate",
                "syslog_daemon",
                "timestamp",
            ],
        ],
    ),
    (
        "prepare",
        &[
            &["source"],
            &["names", "onward", "policies", "renewal"],
            &[
                "backends",
                "cluster",
                "crl",
                "descriptors",
                "edits",
                "flags",
                "listeners",
                "resolver",
                "stud",
            ],
        ],
    ),
    (
        "proxy",
        &[
            &["worker"],
            &["connection"],
            &["leg"],
            &["pipes", "shared"],
            &["metrics"],
            &["backend", "memory", "socket"],
        ],
    ),
    (
        "process",
        &[
            &["enter"],
            &["carried"],
            &["run"],
            &["child"],
            &["resources"],
            &["link", "needs", "signals", "supervisor"],
            &["pid_file", "protocol"],
        ],
    ),
    (
        "control",
        &[
            &["launch"],
            &["server"],
            &["admin"],
            &["admin_http"],
            &["answers"],
            &["trials"],
            &["connections"],
            &["state"],
            &["api", "exposition", "temporary"],
            &["snapshot", "web"],
            &["history", "reload"],
            &[
                "certificates",
                "cluster",
                "ebb",
                "handover",
                "host",
                "page",
                "process",
                "refusals",
                "rotation",
                "sandbox",
                "sockets",
                "totals",
                "visitors",
            ],
        ],
    ),
    (
        "becket",
        &[
            &["main"],
            &["cli"],
            &["ctl", "dropin", "reload", "top"],
            &["check", "demo", "secret_command", "status"],
        ],
    ),
];

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
pub(crate) fn of_module(path: &str, source: &str) -> Vec<String> {
    let in_crate = |(name, _): &&(&str, _)| path.starts_with(&format!("crates/{name}/src/"));
    let Some((name, rows)) = MODULES.iter().find(in_crate) else {
        return Vec::new();
    };
    let path = path.trim_start_matches(&format!("crates/{name}/src/"));
    let path = path.trim_end_matches(".rs");
    let modules: Vec<&str> = path.split('/').filter(|name| *name != "mod").collect();
    let is_checked = |module: &&&str| !["lib", "sample"].contains(*module);
    let Some(module) = modules.first().filter(is_checked) else {
        return Vec::new();
    };
    let row_of = |module: &str| rows.iter().position(|row| row.contains(&module));
    let Some(row) = row_of(module) else {
        return vec![format!("{module} is not in the list of modules of {name}")];
    };
    if modules.contains(&"tests") {
        return Vec::new();
    }
    let imported = imports(&code_of(without_tests(source)), modules.len());
    let others = imported.into_iter().filter(|to| to != module);
    let up = others.filter(|to| row_of(to).is_some_and(|other| other <= row));
    up.map(|to| format!("{module} imports {to}")).collect()
}

/// The modules that code names from the root of the crate, as `crate::module`, `crate::{module, ..}`, by `super`, or in the program
/// as `becket::module`.
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
    let module = |path: &str, source: &str| of_module(&format!("crates/{path}"), source);
    assert_eq!(
        module("proxy/src/leg/a.rs", "use crate::worker::W;"),
        ["leg imports worker"]
    );
    assert_eq!(
        module(
            "proxy/src/leg/mod.rs",
            "use crate::{metrics::{C, D}, connection, worker::W};"
        ),
        ["leg imports connection", "leg imports worker"]
    );
    assert_eq!(
        module(
            "proxy/src/leg/a/b.rs",
            "fn f() { super::super::super::worker::f() }"
        ),
        ["leg imports worker"]
    );
    assert!(
        module(
            "proxy/src/leg/a/b.rs",
            "use super::super::worker; use crate::leg::c; use crate::metrics;"
        )
        .is_empty()
    );
    assert!(
        module(
            "proxy/src/leg/a.rs",
            "//! See crate::worker\n#[cfg(test)]\nmod tests { use crate::worker; }"
        )
        .is_empty()
    );
    assert_eq!(
        module("proxy/src/shed/a.rs", ""),
        ["shed is not in the list of modules of proxy"]
    );
}
