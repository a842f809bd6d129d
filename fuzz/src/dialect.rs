//! Dialects: any file of hitch, stud or stunnel is either translated into a configuration, or rejected with reasons.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use becket_config::file::File;
use becket_config::read::read;
use becket_dialects::migration::migrate;
use becket_dialects::{Dialect, DialectCommand};

/// Checks one input: a byte that chooses the dialect, a command line of words separated by NUL, and after an empty word the file.
/// Returns 1 if it is a valid configuration.
///
/// # Panics
///
/// If a rejection has no reason, or the configuration that is written differs from the translated one.
pub fn run(data: &[u8]) -> usize {
    let Some((first, rest)) = data.split_first() else {
        return 0;
    };
    let dialect = Dialect::ALL[usize::from(*first) % Dialect::ALL.len()];
    let end = rest.windows(2).position(|two| two == [0, 0]);
    let (line, text) = rest.split_at(end.map_or(rest.len(), |end| end + 2));
    let words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    let words: Vec<String> = words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let invocation = match dialect.command(&words) {
        Ok(DialectCommand::Run(invocation)) => invocation,
        Ok(_) => return 0,
        Err(said) => {
            assert!(!said.to_string().is_empty(), "a rejection has a reason");
            return 0;
        }
    };
    // The included file is the same text, so it may include itself.
    let parts = BTreeMap::from([(PathBuf::from("/srv/parts/1.conf"), text.to_vec())]);
    let translation = dialect.translate(&invocation, text, Path::new("/srv"), &parts);
    assert!(
        translation.problems.len() <= 100,
        "more problems than the limit"
    );
    translation.remarks("fuzzed").for_each(drop);
    let migration = migrate(dialect, "its.conf", &translation);
    assert!(!migration.page().is_empty());
    let Some(toml) = migration.toml else {
        assert!(!migration.errors.is_empty(), "a rejection has a reason");
        return 0;
    };
    let meant = read("", &translation.table).file;
    assert_eq!(File::parse(&toml).ok(), meant, "{toml}");
    1
}
