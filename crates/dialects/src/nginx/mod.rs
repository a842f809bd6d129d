//! Translates nginx 1 configurations: TLS termination and relaying to servers.
//!
//! `table` lists the directives, `reader` parses them, `listeners` translates `listen` directives,
//! and `servers` the targets of `proxy_pass`.

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

/// Translates a configuration of nginx. Relative paths start at `folder`.
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
        // The text may be the file of one site, with `server` blocks outside of `http`.
        translator.module(&main, true);
    }
    translator.out.settle();
    translator.out.finish(table::DIRECTIVES, false)
}
