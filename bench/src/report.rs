//! The report of a run: one document in Markdown. [`crate::page`] shows the same with pictures and folds.

use crate::catalog;
use crate::conditions::{CONGESTION, stamp};
use crate::figure::{self, Figure};
use crate::result::{Conditions, Outcome, Run};
use crate::scenario::Scenario;
use crate::table::{self, Rows};
use crate::{answer, control, plot, verdict};

/// Returns the report as text.
pub fn markdown(run: &Run) -> String {
    Writer { run, page: false }.document()
}

/// Returns the report as text with blocks of HTML in it: pictures, folds and sections.
pub fn for_page(run: &Run) -> String {
    Writer { run, page: true }.document()
}

struct Writer<'a> {
    run: &'a Run,
    page: bool,
}

impl Writer<'_> {
    fn document(&self) -> String {
        let run = self.run;
        let mut text = format!(
            "# TLS terminators side by side\n\n{} · {} · kernel {} · {} rounds of {:.2} s, interleaved, each server alone on {} of {} CPUs.\n\n",
            stamp(run.conditions.started_unix_s),
            run.conditions.cpu,
            run.conditions.kernel,
            run.rounds,
            run.seconds,
            run.conditions.server_cpus.len(),
            run.conditions.cpus.len()
        );
        for warning in warnings(run) {
            text += &format!("> **{warning}**\n\n");
        }
        if let Some(chart) = plot::summary::chart(run).filter(|_| self.page) {
            let hint = "What becket needs, as a multiple of what the best of the others needs in the same case: a dot per case, left of the line is better. Hollow: not distinguishable.";
            text += &self.section("", &format!("## In one picture\n\n{hint}\n\n{chart}\n"));
        }
        for outcome in &run.scenarios {
            text += &self.section(&outcome.id, &self.outcome(outcome));
        }
        text + &self.section("conditions", &self.conditions())
    }

    fn section(&self, id: &str, body: &str) -> String {
        if self.page {
            format!("<section id=\"{id}\">\n\n{body}\n</section>\n\n")
        } else {
            format!("{body}\n")
        }
    }

    /// Puts what only some readers want behind its heading.
    fn fold(&self, heading: &str, body: &str) -> String {
        match (body.is_empty(), self.page) {
            (true, _) => String::new(),
            (_, true) => format!(
                "<details><summary>{}</summary>\n\n{body}\n</details>\n\n",
                plot::escape(heading)
            ),
            (_, false) => format!("{body}\n"),
        }
    }

    fn outcome(&self, outcome: &Outcome) -> String {
        let found = catalog::find(std::slice::from_ref(&outcome.id)).unwrap_or_default();
        let scenario = found.first();
        let title = scenario.map_or(outcome.id.as_str(), |s| &s.title);
        let mut text = format!("## {title}\n\n");
        if let Some(scenario) = scenario {
            text += &format!("{}\n\n", scenario.question);
        }
        text += &format!("**{}**\n\n", answer::of(self.run, outcome));
        if outcome.not_available.is_none() {
            if self.page {
                text += &plot::of_outcome(outcome);
            }
            for figure in figure::shown(outcome) {
                let rows = figures_of(self.run, outcome, &figure);
                text += &self.fold(&figure.heading, &rows);
            }
            text += &self.fold("How sure that is", &standings(self.run, outcome));
            let notes = table::notes(outcome)
                .iter()
                .map(|note| format!("* {note}\n"))
                .collect::<String>();
            text += &self.fold("What must be known to read this", &notes);
            text += &self.fold("What was negotiated", &agreed(outcome));
        }
        text + &scenario.map_or_else(String::new, then)
    }

    fn conditions(&self) -> String {
        let mut text = "## Conditions\n\n".to_owned();
        for (name, value) in condition_rows(self.run) {
            text += &format!("* {name}: {value}\n");
        }
        text.push('\n');
        for peer in &self.run.peers {
            let heading = format!(
                "Configuration of {} {} in the first case",
                peer.name, peer.version
            );
            let body = format!(
                "{heading}:\n\n```\n{}\n```\n",
                peer.configuration.trim_end()
            );
            text += &self.fold(&heading, &body);
        }
        let command = self.run.command.get(1..).unwrap_or_default().join(" ");
        text + &format!(
            "How to repeat:\n\n```\ncargo build --release --workspace\ntarget/release/becket-bench {command}\n```\n"
        )
    }
}

/// Returns what must be said before any figure.
fn warnings(run: &Run) -> Vec<String> {
    let effort = match run.effort.as_str() {
        "full" => None,
        "smoke" => Some("A smoke run: it shows that everything works; its figures mean nothing."),
        _ => Some("A quick run: its measurements are too short for figures to keep."),
    };
    let mut warnings: Vec<String> = effort
        .into_iter()
        .chain(run.lacks())
        .map(str::to_owned)
        .collect();
    if run.busy {
        let cases = run.scenarios.iter().flat_map(|outcome| &outcome.cases);
        let during = cases.filter_map(|case| case.others).fold(0.0, f64::max);
        let before = run.conditions.others_before.unwrap_or_default();
        warnings.push(format!(
            "Other processes used {:.0} % of the CPUs before this run and up to {:.0} % in a round; treat the figures as approximate.",
            before * 100.0,
            during * 100.0
        ));
    }
    let congestion = run.conditions.settings.get(CONGESTION);
    if congestion.is_some_and(|name| name == "bbr") {
        warnings.push(
            "TCP sent by timers here, over loopback, too (congestion control bbr): bulk cost more CPU than with the kernel's default."
                .to_owned(),
        );
    }
    warnings
}

/// Returns one figure of all cases and peers as a table.
fn figures_of(run: &Run, outcome: &Outcome, figure: &Figure) -> String {
    let peers = table::peers(outcome);
    let heads = peers.iter().map(|peer| table::column_head(run, peer));
    let mut rows = Rows::new(std::iter::once(figure.heading.clone()).chain(heads));
    for case in &outcome.cases {
        let cells = peers.iter().map(|peer| table::cell(case, peer, figure));
        rows.add(std::iter::once(case.label.clone()).chain(cells));
    }
    rows.text()
}

/// Returns how becket stands to the best of the others, and to another becket, where there is one.
fn standings(run: &Run, outcome: &Outcome) -> String {
    let certainty = run.certainty();
    let mut rows = Rows::new([
        "case",
        "figure",
        "becket against",
        "ratio (95 % interval)",
        "",
    ]);
    let figures = figure::shown(outcome);
    for case in &outcome.cases {
        for figure in figures.iter().filter(|f| f.is_contested) {
            for standing in verdict::standings(case, figure, certainty) {
                let interval = verdict::show(&standing.interval);
                rows.add([
                    case.label.as_str(),
                    &figure.heading,
                    &standing.against,
                    &interval,
                    standing.word,
                ]);
            }
        }
    }
    rows.text()
}

/// Returns what each peer negotiated: that the peers were alike.
fn agreed(outcome: &Outcome) -> String {
    let mut rows = Rows::new([
        "case",
        "peer",
        "version",
        "suite",
        "group",
        "signature",
        "tickets",
    ]);
    for case in &outcome.cases {
        for column in &case.columns {
            let Some(n) = &column.negotiated else {
                continue;
            };
            let tickets = n.tickets_per_full.map(|t| format!("{t:.1}"));
            let optional =
                [&n.group, &n.signature, &tickets].map(|it| it.as_deref().unwrap_or("-"));
            let known = [
                &case.label,
                table::heading(&column.peer),
                &n.version,
                &n.suite,
            ];
            rows.add(known.into_iter().chain(optional));
        }
    }
    rows.text()
}

/// Returns what the articles had found.
fn then(scenario: &Scenario) -> String {
    let then = &scenario.then;
    let mut text = format!("### Then\n\n{}\n", then.text);
    if !then.head.is_empty() {
        let mut rows = Rows::new(&then.head);
        then.rows.iter().for_each(|row| rows.add(row));
        text += &format!("\n{}", rows.text());
    }
    if !then.links.is_empty() {
        text.push('\n');
    }
    for url in &then.links {
        text += &format!("* <{url}>\n");
    }
    text
}

/// Returns the conditions as names and values.
fn condition_rows(run: &Run) -> Vec<(String, String)> {
    let Conditions {
        commit,
        started_unix_s,
        cpu,
        cpu_features,
        cpus,
        server_cpus,
        client_cpus,
        kernel,
        memory_bytes,
        load_before,
        load_after,
        others_before,
        open_files,
        settings,
    } = &run.conditions;
    let gib = *memory_bytes as f64 / f64::from(1 << 30);
    let others = others_before.map(|share| format!("{:.1} %", share * 100.0));
    let own = [
        ("when", stamp(*started_unix_s)),
        ("commit", commit.clone()),
        (
            "CPU",
            format!(
                "{cpu}, {} of them, with {}",
                cpus.len(),
                cpu_features.join(" ")
            ),
        ),
        (
            "pinned",
            format!("server to CPU {server_cpus:?}, client and backend to {client_cpus:?}"),
        ),
        ("kernel", kernel.clone()),
        ("memory", format!("{gib:.1} GiB")),
        (
            "load average before and after",
            format!("{load_before}; {load_after}"),
        ),
        (
            "CPUs used by others before",
            others.unwrap_or_else(|| "not measured".to_owned()),
        ),
        (
            "control (plain relay)",
            control::describe(run).unwrap_or_else(|| "none".to_owned()),
        ),
        ("open files", open_files.to_string()),
        (
            "effort",
            format!(
                "{}, {} rounds or more of {:.2} s, {:.0} s in all",
                run.effort, run.rounds, run.seconds, run.took_s
            ),
        ),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    let peers = run.peers.iter().map(|peer| {
        (
            peer.name.clone(),
            format!("{} with {}", peer.version, peer.library),
        )
    });
    own.into_iter()
        .chain(settings.clone())
        .chain(peers)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_tcp_paces_says_so() {
        let mut run = Run {
            effort: "full".to_owned(),
            control: crate::result::testing::column("relay", &[1.0]).samples,
            ..Run::default()
        };
        for (congestion, warned) in [("cubic", 0), ("bbr", 1)] {
            let setting = (CONGESTION.to_owned(), congestion.to_owned());
            run.conditions.settings.extend([setting]);
            assert_eq!(warnings(&run).len(), warned, "{congestion}");
        }
    }
}
