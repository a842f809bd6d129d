//! Finds paths in documents and comments. Each must be the end of a path of the tree.

/// Returns the paths in code marks of a document. Skips fenced blocks, which are commands and examples.
pub(crate) fn in_document(text: &str) -> Vec<&str> {
    let mut is_fenced = false;
    let lines = text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    });
    lines.flat_map(in_marks).collect()
}

/// Returns the paths in code marks of `//!` and `///` comments.
pub(crate) fn in_comments(source: &str) -> Vec<&str> {
    let comments = source.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("//!")
            .or_else(|| line.strip_prefix("///"))
    });
    comments.flat_map(in_marks).collect()
}

/// Returns whether `named` is a file or a folder of the tree, from the root or from any folder below it.
pub(crate) fn is_in<'a>(mut tree: impl Iterator<Item = &'a str>, named: &str) -> bool {
    let named = format!("/{named}");
    tree.any(|path| {
        let path = format!("/{path}");
        path.ends_with(&named) || (named.ends_with('/') && path.contains(&named))
    })
}

/// Returns whether `named` is a path of another tree: a source of a library, or a folder of users.
pub(crate) fn is_excepted(named: &str) -> bool {
    EXCEPTIONS.contains(&named)
}

fn in_marks(line: &str) -> impl Iterator<Item = &str> {
    let marks = line.split('`').skip(1).step_by(2);
    marks
        .flat_map(|mark| mark.split([',', ' ']))
        .filter(|word| is_path(word))
}

fn is_path(word: &str) -> bool {
    let is_ours = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let starts = word.starts_with(|c: char| c.is_ascii_alphanumeric());
    starts && word.chars().all(is_ours) && (word.ends_with(".rs") || word.ends_with('/'))
}

const EXCEPTIONS: &[&str] = &[
    // Folders of certbot.
    "live/",
    "live/NAME/",
    // Sources of rustls and webpki.
    "msgs/persist.rs",
    "verify_cert.rs",
    "webpki/client_verifier.rs",
    "webpki/mod.rs",
];

#[test]
fn paths_are_found_in_inline_code_outside_of_fences() {
    let text = "See `a/b.rs`, c.rs, `/etc/x/`, `~/y/` and `d/`.\n```\n`e.rs`\n```\n`cat f.rs`\n";
    assert_eq!(in_document(text), ["a/b.rs", "d/", "f.rs"]);
    assert_eq!(
        in_comments("//! `a.rs`\n  /// `b/`\n// `c.rs`\nlet x = \"`d.rs`\";"),
        ["a.rs", "b/"]
    );
}

#[test]
fn a_path_matches_whole_components_of_a_path_in_the_tree() {
    let tree = ["crates/keys/src/signing/token/link.rs"];
    let is_there = |named| is_in(tree.iter().copied(), named);
    assert!(is_there("token/link.rs") && is_there("signing/") && is_there("crates/keys/"));
    assert!(!is_there("oken/link.rs") && !is_there("keys/signing/") && !is_there("token.rs"));
}
