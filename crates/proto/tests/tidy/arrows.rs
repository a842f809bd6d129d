//! Which crate of ours may import which: the arrows of `docs/architecture.md`, read from the `Cargo.toml` of each crate.

/// Imports of ours that no arrow allows.
pub(crate) fn faults(manifest: &str) -> Vec<String> {
    let Some(package) = package(manifest) else {
        return Vec::new();
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == package) else {
        return vec![format!(
            "crate {package} has no line in the table of arrows"
        )];
    };
    imports(manifest)
        .filter(|import| !allowed.contains(import))
        .map(|import| format!("{package} must not import {import}"))
        .collect()
}

fn package(manifest: &str) -> Option<&str> {
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix("name = "))?;
    Some(line.trim_matches('"'))
}

/// Crates of ours in `[dependencies]`, `[dev-dependencies]` and the like.
fn imports(manifest: &str) -> impl Iterator<Item = &str> {
    let mut within = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            within = line.contains("dependencies");
        }
        let name = line.split(['.', ' ', '=']).next()?;
        (within && name.starts_with("becket")).then_some(name)
    })
}

const ARROWS: &[(&str, &[&str])] = &[
    ("becket-proto", &[]),
    ("becket-sys", &[]),
    ("becket-stats", &[]),
    ("becket", &["becket-proto", "becket-sys", "becket-stats"]),
    (
        "becket-load",
        &["becket-proto", "becket-sys", "becket-stats"],
    ),
    (
        "becket-bench",
        &["becket-load", "becket-stats", "becket-sys"],
    ),
    ("becket-e2e", &[]),
    ("becket-fuzz", &["becket-proto"]),
];

#[test]
fn an_import_against_the_arrows_is_found() {
    let manifest =
        "[package]\nname = \"becket-proto\"\n[dependencies]\nbecket-sys.workspace = true\n";
    assert_eq!(
        faults(manifest),
        ["becket-proto must not import becket-sys"]
    );
    let manifest =
        "[package]\nname = \"becket-load\"\n[dependencies]\nbecket-sys = { path = \"../sys\" }\n";
    assert!(faults(manifest).is_empty());
    assert_eq!(faults("[package]\nname = \"becket-new\"\n").len(), 1);
}
