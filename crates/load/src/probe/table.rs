//! Formats the rows of a probe as a table for a terminal.

use std::fmt::Write;

use crate::probe::offers::{Offers, ServerCertificate};

pub(super) fn page(all: &[Offers]) -> String {
    let mut rows = vec![HEADING.map(str::to_owned)];
    rows.extend(all.iter().map(row));
    let widths: [usize; HEADING.len()] = std::array::from_fn(|at| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.max().unwrap_or(0)
    });
    let mut out = String::new();
    for (row, error) in rows
        .iter()
        .zip(std::iter::once(&None).chain(all.iter().map(|o| &o.error)))
    {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _infallible = write!(line, "{cell:<width$}  ");
            if error.is_some() {
                break;
            }
        }
        line.push_str(error.as_deref().unwrap_or_default());
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn row(offers: &Offers) -> [String; HEADING.len()] {
    let or_none = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    let joined = |parts: Vec<String>| or_none(parts.join(" "));
    let versions = offers.versions.iter();
    let versions = versions.map(|version| version.trim_start_matches("TLSv").to_owned());
    let ways = offers.resumes_by.iter().map(|way| {
        let lifetime = offers.ticket_lifetime_s.get(way);
        lifetime.map_or_else(|| (*way).to_owned(), |s| format!("{way}({s} s)"))
    });
    let early = offers.early_data_bytes;
    let certificate = offers.certificate.as_ref();
    [
        offers.server.clone(),
        joined(versions.collect()),
        joined(offers.suites.values().rev().cloned().collect()),
        or_none(offers.group.clone().unwrap_or_default()),
        joined(ways.collect()),
        early.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes} bytes")),
        certificate.map_or_else(|| "-".to_owned(), described),
    ]
}

fn described(certificate: &ServerCertificate) -> String {
    let key = certificate.key.as_deref().unwrap_or("unknown key");
    let days = match certificate.days_left {
        Some(days @ 0..) => format!("{days} days left"),
        Some(days) => format!("expired {} days ago", -days),
        None => "unknown validity".to_owned(),
    };
    let shown = certificate.names.iter().take(NAMES_SHOWN);
    // Escapes the names, because the server chooses them and could otherwise send control sequences to the terminal.
    let mut names: Vec<_> = shown.map(|name| name.escape_debug().to_string()).collect();
    let more = certificate.names.len().saturating_sub(NAMES_SHOWN);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    let (chain, names) = (certificate.chain, names.join(" "));
    format!("{key}, {days}, chain of {chain}: {names}")
}

const HEADING: [&str; 7] = [
    "SERVER",
    "TLS",
    "SUITES",
    "GROUP",
    "RESUMES BY",
    "EARLY DATA",
    "CERTIFICATE",
];
const NAMES_SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_certificate_cannot_break_the_row() {
        let certificate = ServerCertificate {
            key: None,
            names: vec!["a\x1b[2J\nb".to_owned(); 9],
            days_left: Some(-2),
            chain: 1,
        };
        let offers = Offers {
            server: "a".to_owned(),
            certificate: Some(certificate),
            ..Offers::default()
        };
        let failed = Offers {
            server: "long.example".to_owned(),
            error: Some("refused".to_owned()),
            ..Offers::default()
        };
        let page = page(&[offers, failed]);
        let lines: Vec<_> = page.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            !page.contains('\x1b') && lines[1].ends_with("and 6 more"),
            "{page}"
        );
        assert!(lines[1].contains("expired 2 days ago"), "{page}");
        assert_eq!(lines[2], "long.example  refused");
    }
}
