//! Dialects: any file of hitch, stud, stunnel, HAProxy or nginx is either translated into a configuration, or rejected with reasons.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use becket_config::file::File;
use becket_config::read::read;
use becket_dialects::migration::migrate;
use becket_dialects::{Dialect, DialectCommand, Invocation, MigrationSource};

/// Checks one input. The first byte selects the program, and the rest is its configuration file. For hitch, stud and
/// stunnel, a command line precedes the file: words separated by NUL, ended by an empty word. Returns 1 if the result
/// is a valid configuration.
///
/// # Panics
///
/// If a rejection has no reason, or the configuration that is written differs from the translated one.
pub fn run(data: &[u8]) -> usize {
    let Some((first, rest)) = data.split_first() else {
        return 0;
    };
    let source = match usize::from(*first) % (Dialect::ALL.len() + 2) {
        3 => MigrationSource::Haproxy,
        4 => MigrationSource::Nginx,
        index => MigrationSource::DropIn(Dialect::ALL[index]),
    };
    let (invocation, text) = match source {
        MigrationSource::DropIn(dialect) => match invoked(dialect, rest) {
            Some(invoked) => invoked,
            None => return 0,
        },
        _ => (Invocation::default(), rest),
    };
    // The included file is the same text, so it may include itself.
    let parts = BTreeMap::from([(PathBuf::from("/srv/parts/1.conf"), text.to_vec())]);
    let folder = Path::new("/srv");
    let translation = match source {
        MigrationSource::DropIn(dialect) => dialect.translate(&invocation, text, folder, &parts),
        source => source.translate(text, folder, &parts),
    };
    assert!(
        translation.problems.len() <= 100,
        "more problems than the limit"
    );
    translation.remarks("fuzzed").for_each(drop);
    let migration = migrate(source, "its.conf", &translation);
    let lines = migration.page().lines().count();
    assert!(
        lines >= migration.settings.len(),
        "a setting without a line"
    );
    let Some(toml) = migration.toml else {
        assert!(!migration.errors.is_empty(), "a rejection has a reason");
        return 0;
    };
    let meant = read("", &translation.table).file;
    assert_eq!(File::parse(&toml).ok(), meant, "{toml}");
    1
}

/// Returns the command line at the beginning of an input, and the file after it.
fn invoked(dialect: Dialect, input: &[u8]) -> Option<(Invocation, &[u8])> {
    let end = input.windows(2).position(|two| two == [0, 0]);
    let (line, text) = input.split_at(end.map_or(input.len(), |end| end + 2));
    let words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    let words: Vec<String> = words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    match dialect.command(&words) {
        Ok(DialectCommand::Run(invocation)) => Some((invocation, text)),
        Ok(_) => None,
        Err(said) => {
            assert!(!said.to_string().is_empty(), "a rejection has a reason");
            None
        }
    }
}
