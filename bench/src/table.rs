//! Formats the tables and remarks of a report.

use crate::figure::{self, Figure};
use crate::figures;
use crate::result::{Case, Column, Outcome, Run};
use crate::spread;

pub(crate) struct Rows {
    head: String,
    rows: String,
}

impl Rows {
    pub(crate) fn new(cells: impl IntoIterator<Item: AsRef<str>>) -> Self {
        let head = line(cells);
        let rule = "---|".repeat(head.matches(" |").count());
        Self {
            head: format!("{head}|{rule}\n"),
            rows: String::new(),
        }
    }

    pub(crate) fn add(&mut self, cells: impl IntoIterator<Item: AsRef<str>>) {
        self.rows += &line(cells);
    }

    /// Returns the Markdown, or an empty string if the table has no rows.
    pub(crate) fn text(self) -> String {
        match self.rows.as_str() {
            "" => String::new(),
            rows => self.head + rows,
        }
    }
}

fn line(cells: impl IntoIterator<Item: AsRef<str>>) -> String {
    let mut text = "|".to_owned();
    for cell in cells {
        let cell = cell.as_ref();
        let space = if cell.is_empty() { "" } else { " " };
        text += &format!("{space}{cell} |");
    }
    text + "\n"
}

/// Returns the name of a column, followed by the version and the TLS library of its program.
pub fn column_head(run: &Run, peer: &str) -> String {
    // The name of a column may have a suffix after a comma, as in `becket, cluster`.
    let program = peer.split(',').next().unwrap_or(peer);
    let known = |name: &str| run.peers.iter().find(|known| known.name == name);
    // A column such as `becket@copies` may have no program of that name. Use the program named before the `@`.
    let own = || known(program.split('@').next().unwrap_or(program));
    let known = known(program).or_else(own);
    match known {
        Some(known) => format!("{peer} {} ({})", known.version, known.library),
        None => heading(peer).to_owned(),
    }
}

/// Returns the heading of a column: a description of a floor, or the name of a server.
pub fn heading(peer: &str) -> &str {
    match peer {
        figures::RELAY => "plain TCP relay",
        figures::ANSWER => "plain socket that answers",
        figures::ROUND_TRIP => "relay that answers a hello",
        figures::LIBRARY => "library in memory",
        other => other,
    }
}

/// Returns the names of all columns of an outcome, floors last.
pub fn peers(outcome: &Outcome) -> Vec<&str> {
    let mut peers: Vec<&str> = Vec::new();
    for column in outcome.cases.iter().flat_map(|case| &case.columns) {
        if !peers.contains(&column.peer.as_str()) {
            peers.push(&column.peer);
        }
    }
    peers.sort_by_key(|peer| figures::is_floor(peer));
    peers
}

pub(crate) fn cell(case: &Case, peer: &str, figure: &Figure) -> String {
    let Some(column) = case.column(peer) else {
        return "-".to_owned();
    };
    if let Some(words) = column.missing() {
        return words.to_owned();
    }
    let value = marked(case, column, figure);
    let eta = if figure.name == figures::CPU && column.peer.starts_with("becket") {
        etas(case, column).map_or(String::new(), |eta| format!(", eta {eta}"))
    } else {
        String::new()
    };
    value + &eta
}

/// Formats the median of a figure with its spread, in bold if it is the best of the case.
pub(crate) fn marked(case: &Case, column: &Column, figure: &Figure) -> String {
    let is_best = |(best, _): (&Column, f64)| best.peer == column.peer;
    match value(column, figure) {
        None => "-".to_owned(),
        Some(value) if figure.best(case).is_some_and(is_best) => format!("**{value}**"),
        Some(value) => value,
    }
}

/// Formats the eta of a column: the limit of the case divided by the measured CPU time. Adds the value for the stricter
/// limit if it was measured.
pub fn etas(case: &Case, column: &Column) -> Option<String> {
    let eta = |relay| figure::eta(case, column, relay).map(|eta| format!("{eta:.2}"));
    let true_eta =
        eta(figures::ROUND_TRIP).map_or_else(String::new, |eta| format!(" (true {eta})"));
    Some(eta(figures::RELAY)? + &true_eta)
}

/// Formats the median of a figure with its spread.
pub fn value(column: &Column, figure: &Figure) -> Option<String> {
    let values = column.values(&figure.name);
    let median = spread::median(&values)?;
    let bound = figure.name == figures::CAPACITY && figure::is_lower_bound(column);
    let spread = match spread::relative(&values) {
        Some(share) if values.len() > 1 && share >= 0.005 => format!(" ±{:.0} %", share * 100.0),
        _ => String::new(),
    };
    let least = if bound { "at least " } else { "" };
    Some(format!("{least}{}{spread}", figure.show(median)))
}

/// Returns all remarks and the reasons for missing figures. Equal texts become one line that lists their peers and
/// cases; texts that differ only in their numbers count as equal.
pub fn notes(outcome: &Outcome) -> Vec<String> {
    let mut remarks: Vec<Remark<'_>> = Vec::new();
    for case in &outcome.cases {
        for column in &case.columns {
            let reason = column.not_available.iter().chain(&column.not_measured);
            let missing = column.missing().unwrap_or_default();
            let reason = reason.map(|reason| format!("{missing}: {reason}"));
            let beaten = figure::beaten(case, column, figures::RELAY)
                .or_else(|| figure::beaten(case, column, figures::ROUND_TRIP));
            let slow = figure::client_was_slow(column);
            let own = reason.chain(held(column)).chain(beaten).chain(slow);
            for text in own.chain(column.notes.iter().cloned()) {
                let shape = shape(&text);
                let known = remarks
                    .iter()
                    .position(|known| self::shape(&known.text) == shape);
                let index = known.unwrap_or(remarks.len());
                if known.is_none() {
                    remarks.push(Remark {
                        text,
                        ..Remark::default()
                    });
                }
                note(&mut remarks[index].peers, heading(&column.peer));
                note(&mut remarks[index].cases, &case.label);
            }
        }
    }
    let everywhere = outcome.cases.len();
    let lines = remarks.iter().map(|Remark { text, peers, cases }| {
        let line = format!("{}: {text}", peers.join(", "));
        match cases.len() {
            count if count == everywhere => line,
            _ => format!("{line} ({})", cases.join("; ")),
        }
    });
    lines.collect()
}

#[derive(Default)]
struct Remark<'a> {
    text: String,
    peers: Vec<&'a str>,
    cases: Vec<&'a str>,
}

fn note<'a>(list: &mut Vec<&'a str>, name: &'a str) {
    if !list.contains(&name) {
        list.push(name);
    }
}

/// Removes the digits of a remark, so that remarks that differ only in numbers compare as equal. Keeps the digits of
/// reasons and of lists of loads.
fn shape(text: &str) -> String {
    if text.starts_with("not ") || text.starts_with(figure::CLIENT_WAS_SLOW) {
        return text.to_owned();
    }
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Returns a remark with the number of open connections, because the limit on open files may have reduced it.
fn held(column: &Column) -> Option<String> {
    let count = column.median(figures::HELD)?;
    Some(format!("{count:.0} connections held"))
}
