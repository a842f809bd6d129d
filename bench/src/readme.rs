//! Generates the table of the README from a stored run. Two markers in the README enclose the table, and a test
//! verifies that it is current.

use std::fs;
use std::path::Path;

use crate::figure;
use crate::figures;
use crate::result::{Case, Column, Run};
use crate::table::Rows;
use crate::{Error, store, table};

pub fn write(file: &Path, directory: &Path) -> Result<(), Error> {
    let run = store::read(directory)?;
    let text = fs::read_to_string(file)
        .map_err(|e| Error::os(format!("cannot read {}", file.display()), e))?;
    let parts = split(&text).ok_or_else(|| Error::Stored {
        path: file.to_owned(),
        why: format!("the lines `{BEGIN}` and `{END}` are missing"),
    })?;
    store::write(
        file,
        &format!("{}{BEGIN}\n{}{END}{}", parts.0, section(&run), parts.2),
    )
}

/// Splits a README into the text before, between and after the markers.
pub fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (between, after) = rest.split_once(END)?;
    Some((before, between, after))
}

/// Returns the table with the cost of transactions and of an idle connection.
pub fn section(run: &Run) -> String {
    let peers: Vec<&str> = run.peers.iter().map(|peer| peer.name.as_str()).collect();
    let heads = run.peers.iter().map(|peer| {
        let version = peer.version.split('-').next().unwrap_or_default();
        format!("{} {version}", peer.name)
    });
    let own = |text: &str| std::iter::once(text.to_owned());
    let mut rows = Rows::new(own("").chain(heads).chain(own("becket's eta")));
    for (heading, id, settings) in ROWS {
        let has = |case: &&Case| {
            let mut each = settings.iter();
            each.all(|(name, value)| case.settings.get(*name).map(String::as_str) == Some(value))
        };
        let cases = run.outcome(id).map(|outcome| outcome.cases.iter());
        if let Some(case) = cases.and_then(|mut cases| cases.find(has)) {
            let becket = case.column("becket");
            let etas = becket.and_then(|column| table::etas(case, column));
            let eta = etas.unwrap_or_else(|| "-".to_owned());
            let cells = match *id {
                "idle" => cells(case, &peers, figures::PSS_PER_CONNECTION),
                _ => cells(case, &peers, figures::CPU),
            };
            rows.add(own(heading).chain(cells).chain(own(&eta)));
        }
    }
    rows.text()
}

fn cells(case: &Case, peers: &[&str], name: &str) -> Vec<String> {
    let figure = figure::less(name, "");
    let best = figure.best(case).map(|(_, value)| value);
    let median = |column: &Column| column.median(name);
    let cell = |peer: &&str| match case.column(peer).and_then(median) {
        None => "not available".to_owned(),
        Some(value) if Some(value) == best => format!("**{}**", figure.show(value)),
        Some(value) => figure.show(value),
    };
    peers.iter().map(cell).collect()
}

type Row = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const ROWS: &[Row] = &[
    ("full, TLS 1.3, P-256", "pq", &[("group", "x25519")]),
    (
        "full, TLS 1.3, P-256, X25519MLKEM768",
        "pq",
        &[("group", "x25519mlkem768")],
    ),
    ("full, TLS 1.3, RSA-2048", "key", &[("key", "rsa2048")]),
    (
        "full, TLS 1.2, P-256",
        "resumption",
        &[("resume-kind", "ticket"), ("resume", "never")],
    ),
    (
        "resumed, TLS 1.3",
        "resumption",
        &[("resume-kind", "psk"), ("resume", "always")],
    ),
    (
        "resumed, TLS 1.2, ticket",
        "resumption",
        &[("resume-kind", "ticket"), ("resume", "always")],
    ),
    (
        "resumed, TLS 1.2, session ID",
        "resumption",
        &[("resume-kind", "id"), ("resume", "always")],
    ),
    (
        "3 of 4 resumed, TLS 1.3, P-256",
        "implementations",
        &[("key", "p256"), ("tls", "1.3")],
    ),
    (
        "3 of 4 resumed, TLS 1.2, RSA-2048",
        "implementations",
        &[("key", "rsa2048"), ("tls", "1.2")],
    ),
    ("memory (PSS) per idle connection", "idle", &[]),
];
const BEGIN: &str = "<!-- figures: begin -->";
const END: &str = "<!-- figures: end -->";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_readme_is_split_at_its_markers() {
        assert_eq!(
            split(&format!("a\n{BEGIN}\nold\n{END}\nb")),
            Some(("a\n", "\nold\n", "\nb"))
        );
        assert_eq!(split("nothing"), None);
    }

    #[test]
    fn the_readme_matches_the_stored_run() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let text = fs::read_to_string(root.join("README.md")).unwrap();
        let (_, between, after) = split(&text).unwrap();
        let (_, link) = after.split_once("](bench/results/").unwrap();
        let name = link.split('/').next().unwrap();
        let run = store::read(&root.join("bench/results").join(name)).unwrap();
        assert_eq!(
            between.trim_start(),
            section(&run),
            "run `becket-bench report bench/results/{name} --readme README.md`"
        );
        assert_eq!(run.effort, "full");
    }

    #[test]
    fn every_row_of_the_readme_is_a_case_of_the_suite() {
        for (heading, id, settings) in ROWS {
            let scenario = &crate::catalog::find(&[(*id).to_owned()]).unwrap()[0];
            let cases = scenario.cases(false).unwrap();
            let found = cases.iter().any(|(_, case)| {
                settings
                    .iter()
                    .all(|(name, value)| case.text.get(*name).map(String::as_str) == Some(value))
            });
            assert!(found, "{heading}");
        }
    }
}
