//! Generates the table of the README from a stored run. Two markers in the README enclose the table, and a test
//! verifies that it is current.

use std::fs;
use std::path::Path;

use crate::figure;
use crate::figures;
use crate::peer::AWSLC;
use crate::result::{Case, Column, PeerFacts, Run};
use crate::table::Rows;
use crate::{Error, store, table, verdict};

pub fn write(file: &Path, directory: &Path) -> Result<(), Error> {
    replace(file, &section(&store::read(directory)?))
}

/// Replaces the text between the markers of a page.
pub fn replace(file: &Path, section: &str) -> Result<(), Error> {
    let text = fs::read_to_string(file)
        .map_err(|e| Error::os(format!("cannot read {}", file.display()), e))?;
    let parts = split(&text).ok_or_else(|| Error::Stored {
        path: file.to_owned(),
        why: format!("the lines `{BEGIN}` and `{END}` are missing"),
    })?;
    store::write(
        file,
        &format!("{}{BEGIN}\n{section}{END}{}", parts.0, parts.2),
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
    let is_built = |peer: &&PeerFacts| peer.name.ends_with(AWSLC);
    let built: Vec<&PeerFacts> = run.peers.iter().filter(is_built).collect();
    let peers: Vec<&PeerFacts> = run.peers.iter().filter(|peer| !is_built(peer)).collect();
    let heads = peers.iter().map(|peer| named(peer));
    let own = |text: &str| std::iter::once(text.to_owned());
    let best = built.first().map(|first| {
        let names: Vec<String> = built.iter().map(|peer| named(peer)).collect();
        let (names, library) = (names.join(" or "), &first.library);
        format!("best with {library} ({names}), relative to becket")
    });
    let heads = own("").chain(heads).chain(best);
    let mut rows = Rows::new(heads.chain(own("becket's eta")));
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
            let name = match *id {
                "idle" => figures::PSS_PER_CONNECTION,
                _ => figures::CPU,
            };
            let best = built.first().map(|_| best_built(run, case, name));
            let cells = cells(case, &peers, name).into_iter().chain(best);
            rows.add(own(heading).chain(cells).chain(own(&eta)));
        }
    }
    rows.text()
}

/// Returns the name of a peer without the suffix of its build, and its version.
fn named(peer: &PeerFacts) -> String {
    let version = peer.version.split('-').next().unwrap_or_default();
    let name = peer.name.strip_suffix(AWSLC).unwrap_or(&peer.name);
    format!("{name} {version}")
}

fn cells(case: &Case, peers: &[&PeerFacts], name: &str) -> Vec<String> {
    let columns = peers.iter().map(|peer| case.column(&peer.name));
    columns.map(|column| cell(case, column, name)).collect()
}

/// Formats the median of a column, in bold if it is the best of the case.
fn cell(case: &Case, column: Option<&Column>, name: &str) -> String {
    let figure = figure::less(name, "");
    let best = figure.best(case).map(|(_, value)| value);
    match column.and_then(|column| column.median(name)) {
        None => "not available".to_owned(),
        Some(value) if Some(value) == best => format!("**{}**", figure.show(value)),
        Some(value) => figure.show(value),
    }
}

/// Formats the best of the peers that were built with AWS-LC, and the ratio of its figure to becket's.
fn best_built(run: &Run, case: &Case, name: &str) -> String {
    let built = case
        .columns
        .iter()
        .filter(|column| column.peer.ends_with(AWSLC));
    let best = figure::less(name, "")
        .best_of(built)
        .map(|(column, _)| column);
    let cell = cell(case, best, name);
    let Some(best) = best else {
        return cell;
    };
    let interval =
        verdict::subject(case).and_then(|becket| run.certainty().between(best, becket, name));
    let ratio = interval.map(|interval| format!(": {}", verdict::show(&interval)));
    let peer = best.peer.strip_suffix(AWSLC).unwrap_or(&best.peer);
    format!("{peer} {cell}{}", ratio.unwrap_or_default())
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
    use crate::result::Outcome;
    use crate::result::testing::{case, column};

    #[test]
    fn a_readme_is_split_at_its_markers() {
        assert_eq!(
            split(&format!("a\n{BEGIN}\nold\n{END}\nb")),
            Some(("a\n", "\nold\n", "\nb"))
        );
        assert_eq!(split("nothing"), None);
    }

    #[test]
    fn peers_with_the_library_of_becket_share_a_column() {
        let peer = |name: &str, version: &str, library: &str| PeerFacts {
            name: name.to_owned(),
            version: version.to_owned(),
            library: library.to_owned(),
            ..PeerFacts::default()
        };
        let (becket, nginx) = ([100.0, 100.2, 99.8], [200.0, 200.4, 199.6]);
        let run_with = |haproxy: &[f64]| {
            let columns = vec![
                column("becket", &becket),
                column("nginx", &nginx),
                column("nginx@awslc", &[150.0; 3]),
                column("haproxy@awslc", haproxy),
            ];
            let mut case = case(columns);
            let group = ("group".to_owned(), "x25519".to_owned());
            case.settings.extend([group]);
            Run {
                looks: 1,
                control: column("relay", &[1.0; 5]).samples,
                peers: vec![
                    peer("becket", "0.1.0", "rustls with AWS-LC"),
                    peer("nginx", "1.22.1", "OpenSSL 3.0.19"),
                    peer("nginx@awslc", "1.28.3", "AWS-LC 5.12.0"),
                    peer("haproxy@awslc", "3.0.11-9e587df", "AWS-LC 5.12.0"),
                ],
                scenarios: vec![Outcome {
                    id: "pq".to_owned(),
                    cases: vec![case],
                    ..Outcome::default()
                }],
                ..Run::default()
            }
        };
        let slower = section(&run_with(&[120.0, 120.1, 119.9]));
        let head = "| | becket 0.1.0 | nginx 1.22.1 | best with AWS-LC 5.12.0 (nginx 1.28.3 or haproxy 3.0.11), relative to becket |";
        assert!(slower.starts_with(head), "{slower}");
        let row = "| **100.0 us** | 200.0 us | haproxy 120.0 us: 1.20 (1.";
        assert!(slower.contains(row), "{slower}");
        let faster = section(&run_with(&[80.0, 80.1, 79.9]));
        let row = "| 100.0 us | 200.0 us | haproxy **80.0 us**: 0.80 (0.";
        assert!(faster.contains(row), "{faster}");
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
