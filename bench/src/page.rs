//! The report as one HTML page: no script, no network, light and dark.

use pulldown_cmark::{Event, Options, Parser, html};

use crate::conditions::stamp;
use crate::report;
use crate::result::Run;

/// Returns the page.
pub fn html(run: &Run) -> String {
    let text = report::for_page(run);
    // Blocks of HTML are the report's own; what stands within a line is text.
    let events = Parser::new_ext(&text, Options::ENABLE_TABLES).map(|event| match event {
        Event::InlineHtml(text) => Event::Text(text),
        event => event,
    });
    let date = stamp(run.conditions.started_unix_s);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>becket-bench {date}</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    );
    html::push_html(&mut page, events);
    page + "</main>\n</body>\n</html>\n"
}

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Case, Column, Outcome};

    #[test]
    fn the_page_asks_nothing_of_the_network() {
        let run = Run {
            scenarios: vec![Outcome {
                id: "key".to_owned(),
                cases: vec![Case {
                    label: "<script>".to_owned(),
                    columns: vec![Column::without("becket", "none & nothing")],
                    ..Case::default()
                }],
                ..Outcome::default()
            }],
            ..Run::default()
        };
        let page = html(&run);
        // A link asks for nothing until somebody follows it.
        let page = page.replace("<a href=\"https://", "");
        for foreign in [
            "=\"http",
            "src=",
            "<link rel=\"stylesheet",
            "<script",
            "@import",
            "url(",
        ] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(page.contains("none &amp; nothing"));
    }
}
