//! Converts Markdown, as far as `docs/` uses it, to a manual page (man(7)).
//!
//! A row of a table becomes an entry of its own, because cells of prose do not fit side by side on
//! a terminal. A link becomes its text, followed by its address if that is on the web.

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, line_break, roman};

/// Returns the page `title(section)`. Its first heading of the second level must be the name.
pub(crate) fn page(title: &str, section: &str, version: &str, markdown: &str) -> String {
    let mut page = Page::default();
    // The version takes the field of the date, so that builds are reproducible.
    page.roff
        .control("TH", [title, section, &format!("becket {version}")]);
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        page.take(event);
    }
    page.roff.render()
}

#[derive(Default)]
struct Page {
    roff: Roff,
    /// Text of the current block.
    line: Vec<Inline>,
    strong: bool,
    emphasis: bool,
    /// A heading has just ended; the next block needs no space before it.
    after_heading: bool,
    code: Option<String>,
    /// Number of open lists.
    lists: usize,
    /// The bullet of the current item is not written yet.
    begins_item: bool,
    address: String,
    /// Head of the current table.
    heads: Vec<String>,
    /// Cells of the current row.
    cells: Vec<Vec<Inline>>,
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => self.text(&text),
            Event::Code(text) => self.line.push(bold(text.as_ref())),
            Event::SoftBreak => self.line.push(roman(" ")),
            Event::HardBreak => self.line.push(line_break()),
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::CodeBlock(_) => self.code = Some(String::new()),
            Tag::List(_) => {
                if self.lists > 0 {
                    self.flush();
                    self.roff.control("RS", ["4"]);
                }
                self.lists += 1;
            }
            Tag::Item => self.begins_item = true,
            Tag::Strong => self.strong = true,
            Tag::Emphasis => self.emphasis = true,
            Tag::Link { dest_url, .. } => self.address = dest_url.into_string(),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => self.heading(level),
            TagEnd::Paragraph => self.paragraph(),
            TagEnd::Item => self.flush(),
            TagEnd::List(_) => {
                self.lists -= 1;
                if self.lists > 0 {
                    self.roff.control("RE", []);
                }
            }
            TagEnd::CodeBlock => self.example(),
            TagEnd::Strong => self.strong = false,
            TagEnd::Emphasis => self.emphasis = false,
            TagEnd::Link => self.link(),
            TagEnd::TableCell => self.cells.push(std::mem::take(&mut self.line)),
            TagEnd::TableHead => self.head(),
            TagEnd::TableRow => self.row(),
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        match &mut self.code {
            Some(code) => code.push_str(text),
            None if self.strong => self.line.push(bold(text)),
            None if self.emphasis => self.line.push(italic(text)),
            None => self.line.push(roman(text)),
        }
    }

    fn link(&mut self) {
        let address = std::mem::take(&mut self.address);
        if address.starts_with("http") {
            self.line.push(roman(format!(" <{address}>")));
        }
    }

    fn heading(&mut self, level: HeadingLevel) {
        let words = plain(&std::mem::take(&mut self.line));
        match level {
            // The page header has this title already.
            HeadingLevel::H1 => return,
            HeadingLevel::H2 => _ = self.roff.control("SH", [words.to_uppercase().as_str()]),
            _ => _ = self.roff.control("SS", [words.as_str()]),
        }
        self.after_heading = true;
    }

    /// In a list, the first paragraph is next to its bullet, and the others are below it.
    fn paragraph(&mut self) {
        if self.lists == 0 {
            self.space();
        } else if !self.begins_item {
            self.roff.control("IP", ["", "2"]);
        }
        self.flush();
    }

    fn space(&mut self) {
        if !self.after_heading {
            self.roff.control("PP", []);
        }
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.begins_item) {
            self.roff.control("IP", ["\u{2022}", "2"]);
        }
        self.after_heading = false;
        if !self.line.is_empty() {
            self.roff.text(std::mem::take(&mut self.line));
        }
    }

    fn example(&mut self) {
        let Some(code) = self.code.take() else { return };
        self.space();
        self.after_heading = false;
        self.roff.control("RS", ["4"]).control("nf", []);
        for line in code.lines() {
            self.roff.text([roman(line)]);
        }
        self.roff.control("fi", []).control("RE", []);
    }

    fn head(&mut self) {
        let heads = std::mem::take(&mut self.cells);
        self.heads = heads.iter().map(|cell| plain(cell)).collect();
    }

    fn row(&mut self) {
        let mut cells = std::mem::take(&mut self.cells).into_iter();
        let Some(first) = cells.next() else { return };
        self.roff.control("TP", []).text(first);
        let heads = self.heads.iter().skip(1);
        let filled: Vec<_> = heads
            .zip(cells)
            .filter(|(_, cell)| !cell.is_empty())
            .collect();
        let mut entry = Vec::new();
        for (head, cell) in filled {
            if !entry.is_empty() {
                entry.push(line_break());
            }
            // A column of prose needs no label.
            if !matches!(head.as_str(), "" | "meaning" | "what" | "do") && self.heads.len() > 2 {
                entry.push(italic(format!("{head}: ")));
            }
            entry.extend(cell);
        }
        self.roff.text(entry);
    }
}

fn plain(line: &[Inline]) -> String {
    line.iter()
        .map(|inline| match inline {
            Inline::Roman(text) | Inline::Italic(text) | Inline::Bold(text) => text.as_str(),
            Inline::LineBreak => " ",
        })
        .collect()
}
