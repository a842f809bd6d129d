//! The report as one HTML page: no script, no network, light and dark.

use std::fmt::Write;

use crate::figure::{self, Figure};
use crate::plot::{self, escape, lines, summary};
use crate::result::{Case, Outcome, Run, figures};
use crate::scenario::Scenario;
use crate::{answer, catalog, conditions, table};

pub fn html(run: &Run) -> String {
    let date = conditions::stamp(run.conditions.started_unix_s);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>becket-bench {date}</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    );
    page += &head(run, &date);
    for outcome in &run.scenarios {
        page += &section(run, outcome);
    }
    page += &conditions_section(run);
    page += "</main>\n</body>\n</html>\n";
    page
}

fn head(run: &Run, date: &str) -> String {
    let mut text = format!(
        "<h1>Terminators of TLS, side by side</h1>\n<p class=\"lede\">{date} · {} · kernel {} · {} rounds of {:.2} s, interleaved, each server alone on {} of {} CPUs.</p>\n",
        escape(&run.conditions.cpu),
        escape(&run.conditions.kernel),
        run.rounds,
        run.seconds,
        run.conditions.server_cpus.len(),
        run.conditions.cpus.len()
    );
    if run.effort != "full" {
        text += &format!(
            "<p class=\"warn\">{}</p>\n",
            table::effort_note(&run.effort)
        );
    }
    for warning in table::warnings(run) {
        text += &format!("<p class=\"warn\">{}</p>\n", escape(&warning));
    }
    if let Some(chart) = summary::chart(run) {
        text += &format!(
            "<section>\n<h2>In one picture</h2>\n<p class=\"hint\">What becket needs, as a multiple of what the best of the others needs in the same case: a dot per case, left of the line is better. Hollow: not distinguishable.</p>\n{chart}</section>\n"
        );
    }
    text += "<section>\n<h2>Questions and answers</h2>\n<nav><ul>\n";
    for outcome in &run.scenarios {
        let question = scenario(&outcome.id).map_or_else(|| outcome.id.clone(), |s| s.question);
        text += &format!(
            "<li><a href=\"#{0}\">{1}</a><br>{2}</li>\n",
            escape(&outcome.id),
            escape(&question),
            escape(&answer::of(run, outcome))
        );
    }
    text + "</ul></nav>\n</section>\n"
}

fn scenario(id: &str) -> Option<Scenario> {
    catalog::find(&[id.to_owned()]).ok()?.into_iter().next()
}

fn section(run: &Run, outcome: &Outcome) -> String {
    let scenario = scenario(&outcome.id);
    let title = scenario
        .as_ref()
        .map_or(outcome.id.as_str(), |s| s.title.as_str());
    let mut text = format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n",
        escape(&outcome.id),
        escape(title)
    );
    if let Some(scenario) = &scenario {
        text += &format!("<p class=\"asked\">{}</p>\n", escape(&scenario.question));
    }
    text += &format!(
        "<p class=\"answer\">{}</p>\n",
        escape(&answer::of(run, outcome))
    );
    if outcome.not_available.is_none() {
        text += &plots(outcome);
        for figure in figure::shown(outcome) {
            text += &figures_table(run, outcome, &figure);
        }
        text += &standings(run, outcome);
        text += &notes(outcome);
        text += &agreed(outcome);
    }
    if let Some(scenario) = &scenario {
        text += &then(scenario);
    }
    text + "</section>\n"
}

fn plots(outcome: &Outcome) -> String {
    let mut text = String::new();
    if outcome.measure == "Capacity" {
        text += "<p class=\"hint\">Dashed grey: attempted. Green: succeeded. Red: failed. Dotted: p99, on the scale at the right. Upright: capacity. All servers of a case have one scale; what is beyond twice the largest capacity is in the tables.</p>\n";
        for case in &outcome.cases {
            let ramps: String = case
                .columns
                .iter()
                .filter_map(|column| plot::ramp(case, column))
                .collect();
            text += &format!(
                "<h3>{}</h3>\n<div class=\"ramps\">\n{ramps}</div>\n",
                escape(&case.label)
            );
        }
    }
    text += &plot::scaling(outcome).unwrap_or_default();
    if let Some(figure) = figure::shown(outcome).first() {
        let has_limit = outcome
            .cases
            .iter()
            .any(|case| figure::limit(case, figure::RELAY).is_some());
        text += &lines::of_numbers(outcome, figure).unwrap_or_default();
        if let Some(bars) = plot::bars(outcome, figure) {
            let better = if figure.less_is_better {
                "shorter"
            } else {
                "longer"
            };
            text += &format!(
                "<h3>{}</h3>\n<p class=\"hint\">Medians; {better} is better. Thin line: range of the rounds. x: times the best.{}</p>\n{bars}",
                escape(&figure.heading),
                if has_limit {
                    " Dashed: the limit, plain relay plus library in memory; dotted: the true one, with the round trip of TLS."
                } else {
                    ""
                }
            );
        }
    }
    let shapes: Vec<String> = outcome.cases.iter().filter_map(plot::shapes).collect();
    if !shapes.is_empty() {
        text += &format!(
            "<h3>Latencies of the whole transaction</h3>\n{}",
            shapes.concat()
        );
    }
    text
}

fn figures_table(run: &Run, outcome: &Outcome, figure: &Figure) -> String {
    let peers = table::peers(outcome);
    let is_cpu = figure.name == figures::CPU;
    let mut text = format!(
        "<details><summary>{}, as a table</summary><div class=\"scroll\"><table>\n<tr><th></th>",
        escape(&figure.heading)
    );
    peers
        .iter()
        .for_each(|peer| text += &format!("<th>{}</th>", escape(&table::column_head(run, peer))));
    if is_cpu {
        text += "<th>becket's eta</th>";
    }
    text += "</tr>\n";
    for case in &outcome.cases {
        text += &format!("<tr><td>{}</td>", escape(&case.label));
        peers
            .iter()
            .for_each(|peer| text += &cell(case, peer, figure));
        if is_cpu {
            let etas = case
                .column("becket")
                .and_then(|column| table::etas(case, column));
            text += &format!("<td>{}</td>", etas.unwrap_or_default());
        }
        text += "</tr>\n";
    }
    text + "</table></div></details>\n"
}

fn standings(run: &Run, outcome: &Outcome) -> String {
    let rows = table::standing_rows(run, outcome);
    if rows.is_empty() {
        return String::new();
    }
    let [against, ratio, word] = table::STANDINGS;
    let mut text = format!(
        "<details><summary>How sure that is</summary><div class=\"scroll\"><table>\n<tr><th></th><th></th><th>{against}</th><th>{ratio}</th><th>{word}</th></tr>\n"
    );
    for row in &rows {
        let cells: String = row
            .iter()
            .map(|cell| format!("<td>{}</td>", escape(cell)))
            .collect();
        text += &format!("<tr>{cells}</tr>\n");
    }
    text + "</table></div></details>\n"
}

fn cell(case: &Case, peer: &str, figure: &Figure) -> String {
    let Some(column) = case.column(peer) else {
        return "<td class=\"none\"></td>".to_owned();
    };
    if let Some(reason) = &column.not_available {
        return format!(
            "<td class=\"none\" title=\"{}\">not available</td>",
            escape(reason)
        );
    }
    let best = figure.best(case).is_some_and(|(best, _)| best.peer == peer);
    let class = if best { " class=\"best\"" } else { "" };
    format!(
        "<td{class}>{}</td>",
        escape(&table::value(column, figure).unwrap_or_default())
    )
}

fn notes(outcome: &Outcome) -> String {
    let notes = table::notes(outcome);
    if notes.is_empty() {
        return String::new();
    }
    let items: String = notes
        .iter()
        .map(|note| format!("<li>{}</li>\n", escape(note)))
        .collect();
    format!(
        "<details><summary>What must be known to read this ({})</summary><ul class=\"hint\">\n{items}</ul></details>\n",
        notes.len()
    )
}

/// What was negotiated, per peer: that the peers were alike.
fn agreed(outcome: &Outcome) -> String {
    let mut rows = String::new();
    for case in &outcome.cases {
        for column in &case.columns {
            let Some(n) = &column.negotiated else {
                continue;
            };
            let words = [
                case.label.as_str(),
                table::heading(&column.peer),
                n.version.as_str(),
                n.suite.as_str(),
                n.group.as_deref().unwrap_or("-"),
                n.signature.as_deref().unwrap_or("-"),
            ];
            rows += "<tr>";
            words
                .iter()
                .for_each(|word| rows += &format!("<td>{}</td>", escape(word)));
            let tickets = n
                .tickets_per_full
                .map_or("-".to_owned(), |t| format!("{t:.1}"));
            let written = writeln!(rows, "<td>{tickets}</td></tr>");
            debug_assert!(written.is_ok(), "writing to a string does not fail");
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<details><summary>What was negotiated</summary><div class=\"scroll\"><table>\n<tr><th>case</th><th>peer</th><th>version</th><th>suite</th><th>group</th><th>signature</th><th>tickets</th></tr>\n{rows}</table></div></details>\n"
    )
}

fn then(scenario: &Scenario) -> String {
    let mut text = format!(
        "<div class=\"then\"><h3>Then</h3>\n<p class=\"hint\">{}</p>\n",
        escape(&scenario.then.text)
    );
    if !scenario.then.head.is_empty() {
        let row = |cells: &[String], tag: &str| {
            let cells: String = cells
                .iter()
                .map(|c| format!("<{tag}>{}</{tag}>", escape(c)))
                .collect();
            format!("<tr>{cells}</tr>\n")
        };
        let rows: String = scenario
            .then
            .rows
            .iter()
            .map(|cells| row(cells, "td"))
            .collect();
        text += &format!(
            "<div class=\"scroll\"><table>\n{}{rows}</table></div>\n",
            row(&scenario.then.head, "th")
        );
    }
    let links = scenario.then.links.iter().map(|url| {
        let shown = url.trim_start_matches("https://");
        format!(
            "<li><a href=\"{}\" rel=\"noreferrer\">{}</a></li>\n",
            escape(url),
            escape(shown)
        )
    });
    let links: String = links.collect();
    if !links.is_empty() {
        text += &format!("<ul class=\"hint\">\n{links}</ul>\n");
    }
    text + "</div>\n"
}

fn conditions_section(run: &Run) -> String {
    let mut text =
        "<section id=\"conditions\">\n<h2>Conditions</h2>\n<div class=\"scroll\"><table>\n"
            .to_owned();
    for (name, value) in table::condition_rows(run) {
        text += &format!(
            "<tr><th>{}</th><td class=\"wide\">{}</td></tr>\n",
            escape(&name),
            escape(&value)
        );
    }
    text += "</table></div>\n<h3>Configurations of the first case</h3>\n";
    for peer in &run.peers {
        text += &format!(
            "<details><summary>{} {}</summary><pre>{}</pre></details>\n",
            escape(&peer.name),
            escape(&peer.version),
            escape(&peer.configuration)
        );
    }
    let command = run
        .command
        .iter()
        .skip(1)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ");
    text += &format!(
        "<h3>How to repeat</h3>\n<pre>cargo build --release --workspace\ntarget/release/becket-bench {}</pre>\n</section>\n",
        escape(&command)
    );
    text
}

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Column;

    #[test]
    fn the_page_asks_nothing_of_the_network() {
        let run = Run {
            scenarios: vec![Outcome {
                id: "key".to_owned(),
                measure: "Transactions".to_owned(),
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
