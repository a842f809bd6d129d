//! Allowed imports of crates, from their `Cargo.toml`; see `docs/architecture.md`.

/// Each crate with the crates of this workspace that it may import. Every crate may also import `becket-tidy`.
const CRATES: &[(&str, &[&str])] = &[
    ("becket-proto", &[]),
    ("becket-sys", &[]),
    ("becket-stats", &[]),
    ("becket-config", &["proto"]),
    ("becket-dialects", &["config"]),
    ("becket-gateway", &["config"]),
    ("becket-multibuffer", &["proto", "sys"]),
    ("becket-cluster", &["proto", "sys"]),
    ("becket-store", &["cluster", "config", "proto", "sys"]),
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
    (
        "becket-log",
        &["config", "keys", "proto", "stats", "sys", "tls"],
    ),
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
            "store", "sys", "tls",
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
    (
        "becket-acme",
        &["config", "keys", "log", "process", "proto", "sys"],
    ),
    ("becket-load", &["keys", "proto", "sys", "stats"]),
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
            "gateway",
            "http",
            "keys",
            "load",
            "log",
            "multibuffer",
            "prepare",
            "process",
            "proto",
            "proxy",
            "stats",
            "store",
            "sys",
            "tls",
        ],
    ),
];

/// Returns the imports of workspace crates in a manifest that [`CRATES`] does not allow.
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

#[test]
fn an_import_that_violates_the_layering_is_reported() {
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
