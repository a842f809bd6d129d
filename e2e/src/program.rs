//! The tested programs, each built once per test run.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use becket_tidy::build;

use crate::uml;

/// Returns the path of the load generator, which also probes servers.
pub fn load_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build("becket-load"))
}

/// Returns the path of the bench.
pub fn bench_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build("becket-bench"))
}

pub fn becket_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| uml::program().unwrap_or_else(|| build("becket")))
}

/// Builds the ACME companion. It is in the folder of [`becket_program`], where becket looks for it.
pub(crate) fn acme_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build("becket-acme"))
}
