//! Finds state that several threads may write, so that `tidy/shared.txt` can list all of it.

use std::collections::BTreeSet;

use crate::parts::code_of;
use crate::rust::{without_tests, without_visibility};

/// Returns the names of fields and statics whose types are atomic or contain a lock, and of tuple structs with such a
/// field.
pub(crate) fn names(source: &str) -> Vec<String> {
    let code = code_of(without_tests(source));
    let lines = code.lines().map(str::trim);
    let shared = lines.filter(|line| KINDS.iter().any(|kind| line.contains(kind)));
    shared.filter_map(name).collect()
}

fn name(line: &str) -> Option<String> {
    let item = without_visibility(line);
    if let Some(tuple) = item.strip_prefix("struct ") {
        return Some(tuple.split(['(', '<']).next()?.to_owned());
    }
    let is_static = item.starts_with("static ");
    let (name, kind) = item.trim_start_matches("static ").split_once(": ")?;
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    // A parameter or a variable ends otherwise. A field that borrows is not the state itself.
    let is_field = is_static
        || kind.ends_with(',')
            && !["&", "::new(", "::default("]
                .iter()
                .any(|other| kind.contains(other));
    (is_name && is_field).then(|| name.to_owned())
}

/// Returns path and name of the state in the list, whose lines are `PATH: NAME, NAME`.
pub(crate) fn listed(list: &str) -> BTreeSet<(String, String)> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.filter_map(|line| line.split_once(": "));
    let each = rows.flat_map(|(path, names)| names.split(", ").map(move |name| (path, name)));
    each.map(|(path, name)| (path.to_owned(), name.to_owned()))
        .collect()
}

/// Crates whose code runs on workers.
pub(crate) const CRATES: &[&str] = &[
    "crates/cluster",
    "crates/http",
    "crates/keys",
    "crates/log",
    "crates/proto",
    "crates/proxy",
    "crates/sys",
    "crates/tls",
];
const KINDS: &[&str] = &[
    "AtomicU",
    "AtomicBool",
    "Mutex<",
    "RwLock<",
    "OnceLock<",
    "Condvar",
    "SharedCount",
];

#[test]
fn fields_statics_and_tuples_are_found() {
    let source = "struct A {\n    pub(crate) count: Arc<AtomicU64>,\n    /// Text: AtomicU8,\n    held: Mutex<u8>,\n    plain: u8,\n}\n\
                  pub struct B(AtomicU64);\nstatic ALL: OnceLock<u8> = OnceLock::new();\n\
                  fn f(a: &Mutex<u8>, b: u8) {\n    let c = AtomicU64::new(0);\n    A { count: AtomicU64::new(0), }\n}\n";
    assert_eq!(names(source), ["count", "held", "B", "ALL"]);
}
