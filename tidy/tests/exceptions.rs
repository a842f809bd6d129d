//! The ratchet: known violations of the rules, one per line in `exceptions.txt`, each group after its reason.
//!
//! A violation that is not in the list fails the test. In CI, an entry without a violation fails as well, so that the
//! list only becomes shorter.

use std::collections::BTreeSet;
use std::env;

/// Panics if faults of one kind have no exception, and in CI also if exceptions have no fault. The message lists all of
/// them.
pub(crate) fn demand_none(kind: &str, faults: Vec<String>) {
    let is_ci = env::var_os("CI").is_some();
    let verdict = verdict(include_str!("../exceptions.txt"), kind, faults, is_ci);
    assert!(verdict.is_empty(), "\n{}\n", verdict.join("\n"));
}

fn verdict(list: &str, kind: &str, faults: Vec<String>, is_ci: bool) -> Vec<String> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let kind = format!("{kind}: ");
    let excused: BTreeSet<&str> = lines.filter(|line| line.starts_with(&kind)).collect();
    let found: BTreeSet<String> = faults.iter().map(|f| format!("{kind}{f}")).collect();
    let stale = excused
        .iter()
        .filter(|line| is_ci && !found.contains(**line));
    let stale = stale.map(|line| format!("needs no exception any more: {line}"));
    let new = found.iter().filter(|f| !excused.contains(f.as_str()));
    new.cloned().chain(stale).collect()
}

#[test]
fn unlisted_faults_and_unused_exceptions_are_reported() {
    let list = "# why\nlong: a.rs\nlong: b.rs\ntwin: c\n";
    let verdict = |faults: &[&str], is_ci| {
        let faults = faults.iter().map(|f| f.to_string()).collect();
        verdict(list, "long", faults, is_ci)
    };
    assert!(verdict(&["a.rs", "b.rs"], true).is_empty());
    assert_eq!(verdict(&["a.rs", "b.rs", "d.rs"], true), ["long: d.rs"]);
    assert!(verdict(&["a.rs"], false).is_empty());
    assert_eq!(
        verdict(&["a.rs"], true),
        ["needs no exception any more: long: b.rs"]
    );
}
