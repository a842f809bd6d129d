//! Circles of imports: within a crate, no file and no folder directly below `src` may import itself through other
//! files.
//!
//! An import is a `use`, or a path in the code that begins with `crate`, `super`, `self` or a module of the file. Unit tests may
//! import everything.

use std::collections::{BTreeMap, BTreeSet};

use crate::parts::code_of;
use crate::rust::without_tests;

/// A file's place in its crate: the names of its modules from the root.
type Module = Vec<String>;
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Returns the files of one crate that are part of a circle. `files` has their paths from the workspace, with their
/// sources.
pub(crate) fn in_files(files: &[(&str, &str)]) -> BTreeSet<String> {
    let modules: BTreeMap<Module, (&str, &str)> = files
        .iter()
        .filter(|(path, _)| !path.ends_with("/tests.rs") && !path.contains("/tests/"))
        .map(|(path, source)| (module_of(path), (*path, *source)))
        .collect();
    let known: BTreeSet<Module> = modules.keys().cloned().collect();
    let imports: Imports = modules
        .iter()
        .map(|(module, (_, source))| (module.clone(), imports(module, source, &known)))
        .collect();
    let folders = folders(&imports);
    let of_files = circular(&imports).into_iter();
    let is_folder = |module: &&Module| {
        known
            .iter()
            .any(|file| file.len() > 1 && file[0] == module[0])
    };
    let of_folders = circular(&folders).into_iter().filter(is_folder);
    let src = files.first().and_then(|(path, _)| path.split_once("/src/"));
    let krate = src.map_or("", |(krate, _)| krate);
    let folders = of_folders.map(|module| format!("{krate}/src/{} as a whole", module[0]));
    let files = of_files.map(|module| modules[module].0.to_owned());
    files.chain(folders).collect()
}

fn module_of(path: &str) -> Module {
    let inside = path.split_once("/src/").map_or(path, |(_, inside)| inside);
    let mut module: Module = inside
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if module
        .last()
        .is_some_and(|last| ["mod", "lib"].contains(&last.as_str()))
    {
        module.pop();
    }
    module
}

/// Returns the imports between the folders and files directly below `src`.
fn folders(imports: &Imports) -> Imports {
    let mut folders = Imports::new();
    for (from, to) in imports {
        let outer = |module: &Module| module.first().cloned();
        let others = to.iter().filter_map(outer);
        if let Some(from) = outer(from) {
            let others = others.filter(|to| *to != from).map(|to| vec![to]);
            folders
                .entry(vec![from.clone()])
                .or_default()
                .extend(others.collect::<Vec<_>>());
        }
    }
    folders
}

/// Returns the modules that import themselves through other modules.
fn circular(imports: &Imports) -> BTreeSet<&Module> {
    let reaches_itself = |start: &&Module| {
        let mut seen = BTreeSet::new();
        let mut next = vec![*start];
        while let Some(module) = next.pop() {
            let to = imports.get(module).into_iter().flatten();
            next.extend(to.filter(|to| seen.insert(*to)));
        }
        seen.contains(start)
    };
    imports.keys().filter(reaches_itself).collect()
}

/// Returns the other modules of the crate that a source imports.
fn imports(module: &Module, source: &str, known: &BTreeSet<Module>) -> BTreeSet<Module> {
    let code = code_of(without_tests(source));
    let mut found = BTreeSet::new();
    let mut at = 0;
    while let Some(length) = code[at..].find("::") {
        let end = at + length;
        at = end + 2;
        let start = code[..end]
            .rfind(|c: char| !is_name(c))
            .map_or(0, |before| before + 1);
        let first = &code[start..end];
        let is_first = !code[..start].trim_end().ends_with("::") && !code[..start].ends_with('$');
        let mut base: Module = match first {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            name => [module.as_slice(), &[name.to_owned()]].concat(),
        };
        let is_ours = matches!(first, "crate" | "self" | "super") || known.contains(&base);
        if !is_first || !is_ours {
            continue;
        }
        let mut rest = &code[at..];
        while let Some(after) = rest.strip_prefix("super::") {
            base.pop();
            rest = after;
        }
        let mut paths = Vec::new();
        expand(&base, rest, &mut paths);
        found.extend(paths.into_iter().map(|path| file_of(path, known)));
    }
    found.remove(module);
    found
}

/// Returns the module whose file defines the end of a path.
fn file_of(mut path: Module, known: &BTreeSet<Module>) -> Module {
    while !path.is_empty() && !known.contains(&path) {
        path.pop();
    }
    path
}

/// Adds all paths that begin with `base` and continue in `rest`, which may be a `{group}`. Returns the number of bytes
/// parsed.
fn expand(base: &Module, rest: &str, paths: &mut Vec<Module>) -> usize {
    let mut path = base.clone();
    let mut at = 0;
    loop {
        at += rest[at..].len() - rest[at..].trim_start().len();
        if rest[at..].starts_with('{') {
            at += 1;
            while !rest[at..].starts_with('}') && at < rest.len() {
                at += expand(&path, &rest[at..], paths);
                // A comma, white space, or the rest of `name as other`.
                at += rest[at..].find(['}', ',']).unwrap_or(rest.len() - at);
                at += usize::from(rest[at..].starts_with(','));
                at += rest[at..].len() - rest[at..].trim_start().len();
            }
            return at + 1;
        }
        let length = rest[at..].find(|c| !is_name(c)).unwrap_or(rest.len() - at);
        if length > 0 && &rest[at..at + length] != "self" {
            path.push(rest[at..at + length].to_owned());
        }
        at += length;
        if !rest[at..].starts_with("::") {
            paths.push(path);
            return at;
        }
        at += 2;
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<(String, &str)> = files
        .iter()
        .map(|(path, source)| (format!("crates/x/src/{path}.rs"), *source))
        .collect();
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, source)| (path.as_str(), *source))
        .collect();
    in_files(&files)
        .into_iter()
        .map(|path| {
            path.trim_start_matches("crates/x/")
                .replace("src/", "")
                .replace(".rs", "")
        })
        .collect()
}

#[test]
fn import_cycles_of_files_are_found_in_every_notation() {
    assert_eq!(
        found(&[
            ("lib", "mod a; mod b; pub use a::A;"),
            ("a", "use crate::b::B;"),
            ("b", "struct B;")
        ]),
        Vec::<String>::new()
    );
    assert_eq!(
        found(&[
            ("lib", ""),
            ("a", "use crate::{b::{self, B as C}, d};"),
            ("b", "fn f() { super::a::f() }"),
            ("d", "")
        ]),
        ["a", "b"]
    );
    assert_eq!(
        found(&[
            ("a/mod", "mod b; fn f() { b::f() }"),
            ("a/b", "use super::A;")
        ]),
        ["a/b", "a/mod"]
    );
    assert_eq!(
        found(&[
            ("a/mod", "mod b; mod c; pub use {b::B, c::C};"),
            ("a/b", "use super::c::C;"),
            ("a/c", "")
        ]),
        Vec::<String>::new()
    );
    assert_eq!(
        found(&[
            (
                "a",
                "use crate::b;\n#[cfg(test)]\nmod tests { use super::*; }"
            ),
            (
                "b",
                "// crate::a\n#[cfg(test)]\nmod tests { use crate::a; }"
            )
        ]),
        Vec::<String>::new()
    );
}

#[test]
fn a_cycle_of_folders_is_found_without_a_cycle_of_files() {
    assert_eq!(
        found(&[
            ("a/b", "use crate::c::d;"),
            ("c/d", ""),
            ("c/e", "use crate::a::f;"),
            ("a/f", "")
        ]),
        ["a as a whole", "c as a whole"]
    );
}
