//! Stores a run as a directory with `run.json` and its report.
//!
//! `run.json` is written after each scenario and marked as complete after the last one.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::result::{Run, SCHEMA_VERSION};

/// Creates the directory and checks that it is writable.
pub fn prepare(directory: &Path) -> Result<(), Error> {
    let failed = |e| Error::os(format!("cannot create {}", directory.display()), e);
    fs::create_dir_all(directory).map_err(failed)?;
    if directory.join(FILE).exists() {
        return Err(Error::Asked(format!(
            "{} already contains a run: choose another --out",
            directory.display()
        )));
    }
    let proof = directory.join("proof");
    fs::write(&proof, "").map_err(failed)?;
    fs::remove_file(proof).map_err(failed)
}

/// Stores a run, which may be incomplete.
pub fn run(directory: &Path, run: &Run) -> Result<PathBuf, Error> {
    let path = directory.join(FILE);
    write(&path, &json(&path, run)?)?;
    Ok(path)
}

pub fn read(directory: &Path) -> Result<Run, Error> {
    let path = directory.join(FILE);
    let wrong = |why: String| Error::Stored {
        path: path.clone(),
        why,
    };
    let text = fs::read_to_string(&path).map_err(|e| wrong(e.to_string()))?;
    let run: Run = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    if run.schema != SCHEMA_VERSION {
        return Err(wrong(format!(
            "schema version {} is not supported (accepted: {SCHEMA_VERSION})",
            run.schema
        )));
    }
    Ok(run)
}

/// Writes a temporary file and renames it, so that a full disk leaves no partial file.
pub fn write(path: &Path, text: &str) -> Result<(), Error> {
    let beside = path.with_extension("part");
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.map_err(|e| {
        drop(fs::remove_file(&beside));
        Error::os(format!("cannot write {}", path.display()), e)
    })
}

/// Serializes a run with one line per column, so that the file is small and its diffs are readable.
fn json(path: &Path, run: &Run) -> Result<String, Error> {
    let text = serde_json::to_string(run).map_err(|e| Error::Stored {
        path: path.to_owned(),
        why: e.to_string(),
    })?;
    Ok(text
        .replace("{\"peer\":", "\n{\"peer\":")
        .replace("{\"label\":", "\n{\"label\":")
        .replace("{\"id\":", "\n{\"id\":")
        + "\n")
}

const FILE: &str = "run.json";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Case, Column, Outcome};

    fn run() -> Run {
        Run {
            schema: SCHEMA_VERSION,
            complete: true,
            scenarios: vec![Outcome {
                cases: vec![Case {
                    columns: vec![Column::without("a", "b")],
                    ..Case::default()
                }],
                ..Outcome::default()
            }],
            ..Run::default()
        }
    }

    #[test]
    fn a_run_is_read_back_and_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path()).unwrap();
        super::run(directory.path(), &run()).unwrap();
        assert_eq!(read(directory.path()).unwrap(), run());
        assert!(
            prepare(directory.path())
                .unwrap_err()
                .to_string()
                .contains("already")
        );
    }

    #[test]
    fn every_stored_run_is_readable() {
        let stored = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/results"));
        let entries = fs::read_dir(stored).unwrap().flatten();
        let runs = entries.filter(|entry| {
            let name = entry.file_name();
            entry.path().is_dir() && name != "notes" && !name.to_string_lossy().ends_with("-scale")
        });
        let runs: Vec<Run> = runs.map(|entry| read(&entry.path()).unwrap()).collect();
        assert!(runs.len() >= 3);
    }
}
