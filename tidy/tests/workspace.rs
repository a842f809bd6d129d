//! Reads the files that the rules examine, and resolves links between documents.
//!
//! Reads only folders of the project, so that build output and fuzzing corpora are skipped.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::prose;

/// A text file.
pub(crate) struct File {
    /// Path from the root, with `/` as the separator.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// All text files of the project.
pub(crate) struct Workspace {
    root: PathBuf,
    pub(crate) files: Vec<File>,
}

impl Workspace {
    /// Reads all files.
    pub(crate) fn find() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut workspace = Self {
            root,
            files: Vec::new(),
        };
        for folder in FOLDERS {
            workspace.walk(Path::new(folder));
        }
        workspace.take(Path::new("fuzz/Cargo.toml"));
        for entry in fs::read_dir(&workspace.root).expect("the root is readable") {
            let path = PathBuf::from(entry.expect("an entry").file_name());
            workspace.take(&path);
        }
        let sources = workspace.rust().count();
        assert!(
            sources > 50,
            "only {sources} Rust files: the walk is broken"
        );
        workspace
    }

    /// Returns the Rust files.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }

    /// Returns the fault of a relative link in the document at `from`.
    pub(crate) fn fault_of_link(&self, from: &str, link: &str) -> Option<String> {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = match path {
            "" => PathBuf::from(from),
            _ => normal(&Path::new(from).parent()?.join(path)),
        };
        if !self.root.join(&target).exists() {
            return Some(format!("link to {link}, which does not exist"));
        }
        let text = self
            .files
            .iter()
            .find(|file| Path::new(&file.path) == target)
            .map(|file| &file.text);
        match text {
            Some(text)
                if !anchor.is_empty() && !prose::anchors(text).any(|known| known == anchor) =>
            {
                Some(format!("link to {link}, which has no such heading"))
            }
            _ => None,
        }
    }

    fn walk(&mut self, folder: &Path) {
        let Ok(entries) = fs::read_dir(self.root.join(folder)) else {
            return;
        };
        for entry in entries {
            let entry = entry.expect("an entry");
            let path = folder.join(entry.file_name());
            if entry.file_type().expect("a type").is_dir() {
                self.walk(&path);
            } else {
                self.take(&path);
            }
        }
    }

    fn take(&mut self, path: &Path) {
        let name = path.to_string_lossy().replace('\\', "/");
        if !ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            return;
        }
        // Ignore a file that an editor or a test has just removed.
        if let Ok(text) = fs::read_to_string(self.root.join(path)) {
            self.files.push(File { path: name, text });
        }
    }
}

/// Resolves `.` and `..` without access to the file system.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

const FOLDERS: &[&str] = &[
    "crates",
    "bench",
    "e2e",
    "tidy",
    "fuzz/src",
    "fuzz/targets",
    "docs",
    "examples",
    ".ci",
];
const ENDINGS: &[&str] = &[".rs", ".md", ".toml", ".1", ".sh", "justfile", ".ci/run"];

#[test]
fn dots_in_paths_are_resolved() {
    assert_eq!(
        normal(Path::new("docs/decisions/../security-analysis.md")),
        Path::new("docs/security-analysis.md")
    );
    assert_eq!(normal(Path::new("./docs/a.md")), Path::new("docs/a.md"));
}

#[test]
fn a_link_must_match_an_existing_file_and_heading() {
    let text = "# Top\n\n## What it does (and not)\n".to_string();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf();
    let files = vec![File {
        path: "Cargo.toml".into(),
        text,
    }];
    let workspace = Workspace { root, files };
    assert_eq!(workspace.fault_of_link("src/x.md", "../Cargo.toml"), None);
    assert_eq!(
        workspace.fault_of_link("src/x.md", "../Cargo.toml#what-it-does-and-not"),
        None
    );
    assert!(
        workspace
            .fault_of_link("src/x.md", "../Cargo.toml#elsewhere")
            .is_some()
    );
    assert!(workspace.fault_of_link("src/x.md", "nowhere.md").is_some());
}
