//! nginx 1: what its file means here, as far as it terminates or passes TLS and leads connections to servers.
//!
//! `table` has the directives, `reader` reads and notes them, `listeners` makes listeners of the servers that listen, and `servers`
//! backends of what they pass to.

mod listeners;
mod reader;
mod servers;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

use self::reader::NginxTranslator;
use super::directive::Directives;
use super::translation::Translation;
use becket_config::parts::IncludedFiles;

/// Reads a configuration of nginx. Relative paths start at `folder`, as those of nginx at the folder of its file.
pub(super) fn translate(text: &[u8], folder: &Path, parts: &dyn IncludedFiles) -> Translation {
    let mut translator = NginxTranslator::new(folder, parts);
    let mut main = Directives::default();
    if translator.file(text, None, &mut main).is_some() {
        translator.process(&main);
        for (module, is_http) in [("http", true), ("stream", false)] {
            for block in main.all(module) {
                translator.module(&block.inner, is_http);
            }
        }
        // The file of a site, without nginx.conf around it.
        translator.module(&main, true);
    }
    translator.out.settle();
    translator.out.finish(table::DIRECTIVES, false)
}
