//! Test fixtures: configurations of other programs, each with the expected TOML.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::migration::{Migration, migrate};
use super::{MigrationSource, SettingSupport};
use becket_config::file::File;
use becket_config::read::read;

/// Translates `text`. `parts` contains included files, with their paths relative to `/etc`.
pub(crate) fn migration(source: MigrationSource, text: &str, parts: &[(&str, &str)]) -> Migration {
    let parts = parts.iter().map(|(path, text)| {
        let path = Path::new("/etc").join(path);
        (path, text.as_bytes().to_vec())
    });
    let parts: BTreeMap<PathBuf, Vec<u8>> = parts.collect();
    let translation = source.translate(text.as_bytes(), Path::new("/etc"), &parts);
    let migration = migrate(source, "its.conf", &translation);
    if let Some(toml) = &migration.toml {
        let written =
            File::parse(toml).unwrap_or_else(|problems| panic!("{problems:?} of\n{toml}"));
        assert_eq!(Some(written), read("", &translation.table).file, "{toml}");
    }
    migration
}

/// Compares the translation of a fixture with the expected file next to it. If the environment
/// contains `BLESS`, writes the expected file first.
#[track_caller]
pub(crate) fn compare(
    source: MigrationSource,
    name: &str,
    text: &str,
    parts: &[(&str, &str)],
) -> Migration {
    let migration = migration(source, text, parts);
    let toml = migration.toml.as_deref();
    let toml = toml.unwrap_or_else(|| panic!("{:#?}", migration.errors));
    let folder = format!("src/{}/fixtures", source.name());
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(folder)
        .join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, toml).unwrap();
    }
    assert_eq!(toml, std::fs::read_to_string(path).unwrap());
    migration
}

/// Returns the support and the explanation for the directive `theirs` in line `line`.
pub(crate) fn outcome(
    migration: &Migration,
    theirs: &str,
    line: usize,
) -> (SettingSupport, String) {
    let mut remarks = migration.settings.iter();
    let remark = remarks
        .find(|it| it.theirs == theirs && it.line == Some(line) && it.file.is_none())
        .unwrap_or_else(|| panic!("no {theirs} in line {line} of\n{}", migration.page()));
    (remark.verdict, remark.why.clone())
}

pub(crate) fn errors(source: MigrationSource, text: &str) -> Vec<String> {
    let migration = migration(source, text, &[]);
    migration.errors.iter().map(ToString::to_string).collect()
}
