//! Renders tables of published articles with the figures of this run next to the published ones.

use crate::articles::Article;
use crate::figure;
use crate::figures;
use crate::result::{Case, Column, Outcome};
use crate::scenario::{Scenario, Settings, Source, Today};
use crate::table::{self, Rows};

/// Renders an article's table below its name and link, with additional columns for the figures of this run.
pub fn show(scenario: &Scenario, source: &Source, outcome: &Outcome) -> String {
    let mut text = String::new();
    if let Some(article) = Article::find(&source.article) {
        let (name, link) = (article.name(), article.link);
        text += &format!("\n[{name}]({link}), {}.\n", source.place);
    }
    if source.head.is_empty() {
        return text;
    }
    let mut peers = table::peers(outcome);
    peers.retain(|peer| !figures::is_floor(peer) && !source.today.is_empty());
    let heads = peers.iter().map(|peer| format!("{peer}, today"));
    let mut rows = Rows::new(source.head.iter().cloned().chain(heads));
    for (index, row) in source.rows.iter().enumerate() {
        let figure = source.figures.get(index).map(String::as_str);
        let cells = match source.today.get(index) {
            None => Vec::new(),
            Some(Today::Out(reason)) => vec![format!("out: {reason}"); peers.len()],
            Some(Today::Settings(row)) => {
                let settings = scenario.row(row).ok();
                let case = settings.and_then(|settings| find(outcome, &settings));
                let cell = |peer: &&str| {
                    let column = case.and_then(|case| Some((case, case.column(peer)?)));
                    column.map_or("-".to_owned(), |(case, column)| cell(case, column, figure))
                };
                peers.iter().map(cell).collect()
            }
        };
        rows.add(row.iter().chain(&cells));
    }
    text + "\n" + &rows.text()
}

/// Finds the case with these settings. Ignores settings that the case lacks, because results of earlier versions have
/// fewer.
fn find<'a>(outcome: &'a Outcome, settings: &Settings) -> Option<&'a Case> {
    let is_that = |case: &&Case| {
        let mut known = case.settings.iter();
        known.all(|(name, value)| settings.text.get(name) == Some(value))
    };
    outcome.cases.iter().find(is_that)
}

/// Returns a cell with a rate and the server CPU time per transaction. The rate is the named `figure`. Without a name,
/// it is the highest ramp rate with a mean latency below 100 ms, or the closed-loop rate if the case has no ramp.
fn cell(case: &Case, column: &Column, figure: Option<&str>) -> String {
    if let Some(words) = column.missing() {
        let reason = column.not_available.iter();
        return reason.fold(words.to_owned(), |words, why| format!("{words}: {why}"));
    }
    let usual = match case.settings.get("marks").map(String::as_str) {
        Some("on") => figures::MARK_100,
        _ => figures::RATE,
    };
    let rate = figure::more(figure.unwrap_or(usual), "");
    let shown = [rate, figure::less(figures::CPU, "")];
    let values = shown.map(|figure| table::marked(case, column, &figure));
    values.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::testing;

    const SCENARIO: &str = r#"
id = "x"
title = "x"
question = "x"
measure = "transactions"
[then]
text = ""
[[then.source]]
article = "bernat-1"
place = "table"
head = ["", "stud"]
rows = [["no reuse", "5844"], ["RC4", "7370"], ["80", "10797"]]
today = [{ resume = "never" }, "forbidden", { resume = "every=80", workers = 6 }]
"#;

    #[test]
    fn a_table_has_todays_figure_or_the_reason_why_there_is_none() {
        let scenario = Scenario::parse("x", SCENARIO).unwrap();
        let cases = scenario.cases(false).unwrap();
        assert_eq!(cases.len(), 2);
        let case = |number: usize, columns| Case {
            settings: cases[number].1.text.clone(),
            ..testing::case(columns)
        };
        let mut becket = testing::column("becket", &[100.0]);
        becket.samples[0].put(figures::RATE, 500.0);
        let outcome = Outcome {
            cases: vec![
                case(0, vec![becket, Column::without("hitch", "it cannot")]),
                case(1, vec![Column::not_measured("becket", "needs 12 cores")]),
            ],
            ..Outcome::default()
        };
        let text = show(&scenario, &scenario.then.source[0], &outcome);
        for row in [
            "| | stud | becket, today | hitch, today |",
            "| no reuse | 5844 | **500/s**, **100.0 us** | not available: it cannot |",
            "| RC4 | 7370 | out: forbidden | out: forbidden |",
            "| 80 | 10797 | not measured here | - |",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
    }

    #[test]
    fn today_needs_an_entry_for_each_table_row() {
        let wrong = SCENARIO.replace("\"forbidden\", ", "");
        let error = Scenario::parse("x", &wrong).unwrap_err().to_string();
        assert!(error.contains("3 rows, but `today` has 2"), "{error}");
    }
}
