//! nginx 1: what its file means here, as far as it terminates or passes TLS and leads connections to servers.
//!
//! `syntax` reads statements, `table` has the directives, `reader` notes them, `listeners` makes listeners of the servers that
//! listen, and `servers` backends of what they pass to.

mod listeners;
mod reader;
mod servers;
mod syntax;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

use self::reader::NginxTranslator;
use self::syntax::StatementReader;
use super::translation::Translation;
use becket_config::parts::IncludedFiles;

/// Reads a configuration of nginx. Relative paths start at `folder`, as those of nginx at the folder of its file.
pub(super) fn translate(text: &[u8], folder: &Path, parts: &dyn IncludedFiles) -> Translation {
    let mut translator = NginxTranslator::new(folder);
    let mut reader = StatementReader::new(folder, parts);
    match reader.read(&String::from_utf8_lossy(text), None) {
        Ok(statements) => {
            let main = translator.note(statements, None);
            translator.process(&main);
            for (module, is_http) in [("http", true), ("stream", false)] {
                for block in main.all(module) {
                    translator.module(&block.inner, is_http);
                }
            }
        }
        Err(problem) => translator.out.problem(problem),
    }
    translator.out.finish(table::DIRECTIVES, false)
}
