//! The help of each program, and the default configuration. A test writes the tables of
//! `docs/reference/drop-in.md`.

use super::{Dialect, command_line, hitch};

pub fn help(dialect: Dialect) -> String {
    if dialect == Dialect::Stunnel {
        return "Usage: stunnel [FILE | -fd 0 | -help | -version]\n\nThis is becket, a drop-in replacement for stunnel. See docs/reference/drop-in.md for differences.\n".to_owned();
    }
    let options = hitch::options(dialect.settings());
    let mut grammar = command_line::grammar(dialect.name(), &options);
    grammar.render_help().to_string()
}

/// The default configuration of hitch and stud.
pub const DEFAULTS: &str = "\
frontend = \"[*]:8443\"
backend = \"[127.0.0.1]:8000\"
workers = 1
backlog = 100
keepalive = 3600
";

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// Formats the settings of a dialect as a table of the page.
    fn table(dialect: Dialect) -> String {
        let mut page = "| setting | becket key | | difference |\n|---|---|---|---|\n".to_owned();
        for setting in dialect.settings() {
            let ours = match setting.ours {
                "" => String::new(),
                ours => format!("`{ours}`"),
            };
            let word = setting.verdict.word();
            let _infallible = writeln!(
                page,
                "| `{}` | {ours} | {word} | {} |",
                setting.theirs, setting.why
            );
        }
        page
    }

    /// With `BLESS` in the environment, the test writes the tables.
    #[test]
    fn the_page_has_the_table_of_each_dialect() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/drop-in.md"
        );
        let mut page = std::fs::read_to_string(path).unwrap();
        for dialect in Dialect::ALL {
            let table = table(dialect);
            if std::env::var_os("BLESS").is_some() {
                let begin = page.find(&format!("\n## {}\n", dialect.name())).unwrap() + 1;
                let begin = begin + page[begin..].find("\n| setting |").unwrap() + 1;
                let end = page[begin..]
                    .find("\n\n")
                    .map_or(page.len(), |end| begin + end + 1);
                page.replace_range(begin..end, &table);
                std::fs::write(path, &page).unwrap();
            }
            assert!(
                page.contains(&table),
                "{} is not as BLESS=1 writes it",
                dialect.name()
            );
        }
    }
}
