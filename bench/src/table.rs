//! Markdown tables of a run, and of the difference between two.

use std::fmt::Write;

use crate::conditions::CONGESTION;
use crate::figure::{self, Figure};
use crate::result::{Case, Column, Conditions, Outcome, Run, figures};
use crate::{answer, catalog, control, spread, verdict};

/// Returns the whole run as Markdown.
pub fn run(run: &Run) -> String {
    let mut text = String::from("# becket-bench\n\n");
    if run.effort != "full" {
        text += &format!("> {}\n\n", effort_note(&run.effort));
    }
    for warning in warnings(run) {
        text += &format!("> **{warning}**\n\n");
    }
    text += &conditions(run);
    for outcome in &run.scenarios {
        text += &section(run, outcome);
    }
    text
}

/// Returns what must be said of a run that was not a full one.
pub fn effort_note(effort: &str) -> &'static str {
    match effort {
        "smoke" => "A smoke run: it shows that everything works; its figures mean nothing.",
        _ => "A quick run: its measurements are too short for figures to keep.",
    }
}

/// Returns what must be said in red before any figure.
pub fn warnings(run: &Run) -> Vec<String> {
    let mut warnings: Vec<String> = run.lacks().map(str::to_owned).into_iter().collect();
    if run.busy {
        let cases = run.scenarios.iter().flat_map(|outcome| &outcome.cases);
        let during = cases.filter_map(|case| case.others).fold(0.0, f64::max);
        let before = run.conditions.others_before.unwrap_or_default();
        warnings.push(format!(
            "Others were at work on this machine: {:.0} % of its CPUs before the run, up to {:.0} % in a round. The figures are theirs, too.",
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

fn section(run: &Run, outcome: &Outcome) -> String {
    let title = catalog::find(std::slice::from_ref(&outcome.id)).ok();
    let scenario = title.as_ref().and_then(|found| found.first());
    let mut text = format!(
        "\n## {}\n\n",
        scenario.map_or(outcome.id.as_str(), |s| &s.title)
    );
    if let Some(scenario) = scenario {
        text += &format!("{}\n\n", scenario.question);
    }
    text += &format!("**{}**\n", answer::of(run, outcome));
    if outcome.not_available.is_none() {
        for figure in figure::shown(outcome) {
            text += &format!("\n{}", figures_of(run, outcome, &figure));
        }
        text += &standings(run, outcome);
        let notes = notes(outcome);
        if !notes.is_empty() {
            text += &format!("\n* {}\n", notes.join("\n* "));
        }
    }
    text
}

/// Returns one figure of all cases and peers as a table.
pub fn figures_of(run: &Run, outcome: &Outcome, figure: &Figure) -> String {
    let peers = peers(outcome);
    let mut text = format!("| {} |", figure.heading);
    peers
        .iter()
        .for_each(|peer| text += &format!(" {} |", column_head(run, peer)));
    text += &format!("\n|{}\n", "---|".repeat(peers.len() + 1));
    for case in &outcome.cases {
        text += &format!("| {} |", case.label);
        for peer in &peers {
            text += &format!(" {} |", cell(case, peer, figure));
        }
        text.push('\n');
    }
    text
}

/// Returns a column's name with the version and the TLS library of its program.
pub fn column_head(run: &Run, peer: &str) -> String {
    // A column such as `becket, cluster` is of the program before the comma.
    let program = peer.split(',').next().unwrap_or(peer);
    let known = |name: &str| run.peers.iter().find(|known| known.name == name);
    // One such as `becket@copies` may be no program of its own.
    let own = || known(program.split('@').next().unwrap_or(program));
    let known = known(program).or_else(own);
    match known {
        Some(known) => format!("{peer} {} ({})", known.version, known.library),
        None => heading(peer).to_owned(),
    }
}

/// Returns a floor's name as a reader wants it.
pub fn heading(peer: &str) -> &str {
    match peer {
        figure::RELAY => "plain TCP relay",
        figure::ANSWER => "plain socket that answers",
        figure::ROUND_TRIP => "relay that answers a hello",
        figure::LIBRARY => "library in memory",
        other => other,
    }
}

/// Returns the peers of an outcome in order.
pub fn peers(outcome: &Outcome) -> Vec<&str> {
    let mut peers: Vec<&str> = Vec::new();
    for column in outcome.cases.iter().flat_map(|case| &case.columns) {
        if !peers.contains(&column.peer.as_str()) {
            peers.push(&column.peer);
        }
    }
    peers.sort_by_key(|peer| figure::is_floor(peer));
    peers
}

fn cell(case: &Case, peer: &str, figure: &Figure) -> String {
    let Some(column) = case.column(peer) else {
        return "-".to_owned();
    };
    if column.not_available.is_some() {
        return "not available".to_owned();
    }
    let Some(value) = value(column, figure) else {
        return "-".to_owned();
    };
    let best = figure.best(case).is_some_and(|(best, _)| best.peer == peer);
    let mark = if best { "**" } else { "" };
    let eta = if figure.name == figures::CPU && column.peer.starts_with("becket") {
        etas(case, column).map_or(String::new(), |eta| format!(", eta {eta}"))
    } else {
        String::new()
    };
    format!("{mark}{value}{mark}{eta}")
}

/// Shows the share of the limit that a column reaches, and that of the true limit where it was measured.
pub fn etas(case: &Case, column: &Column) -> Option<String> {
    let eta = |relay| figure::eta(case, column, relay).map(|eta| format!("{eta:.2}"));
    let true_eta = eta(figure::ROUND_TRIP).map_or_else(String::new, |eta| format!(" (true {eta})"));
    Some(eta(figure::RELAY)? + &true_eta)
}

/// Returns how becket stands to the best of the others, and to another becket, where there is one.
pub fn standing_rows(run: &Run, outcome: &Outcome) -> Vec<[String; 5]> {
    let certainty = run.certainty();
    let figures = figure::shown(outcome);
    let rows = outcome.cases.iter().flat_map(|case| {
        let each = figures
            .iter()
            .filter(|f| f.is_contested)
            .flat_map(|figure| {
                let beckets = verdict::of_beckets(case, figure, certainty);
                let rival = verdict::of_rivals(case, figure, certainty);
                let kept = verdict::of_kept(case, figure, certainty);
                let standings = beckets.into_iter().chain(kept).chain(rival);
                standings.map(|standing| {
                    [
                        case.label.clone(),
                        figure.heading.clone(),
                        standing.against,
                        verdict::show(&standing.interval),
                        standing.word.to_owned(),
                    ]
                })
            });
        each.collect::<Vec<_>>()
    });
    rows.collect()
}

fn standings(run: &Run, outcome: &Outcome) -> String {
    let rows = standing_rows(run, outcome);
    if rows.is_empty() {
        return String::new();
    }
    let lines: String = rows
        .iter()
        .map(|row| format!("| {} |\n", row.join(" | ")))
        .collect();
    format!(
        "\n| case | figure | {} |\n|---|---|---|---|---|\n{lines}",
        STANDINGS.join(" | ")
    )
}

/// Headings of [`standing_rows`] behind case and figure.
pub const STANDINGS: [&str; 3] = ["becket against", "ratio (95 % interval)", ""];

/// Returns a median with its spread.
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

/// Returns reasons and remarks, each once with the peers and the cases that it is about. Of remarks that differ only
/// in their numbers, as they do from round to round, the first stands for all.
pub fn notes(outcome: &Outcome) -> Vec<String> {
    let mut remarks: Vec<Remark<'_>> = Vec::new();
    for case in &outcome.cases {
        for column in &case.columns {
            let peer = heading(&column.peer);
            let reason = column.not_available.iter();
            let beaten = figure::beaten(case, column, figure::RELAY)
                .or_else(|| figure::beaten(case, column, figure::ROUND_TRIP));
            let reason = reason.map(|reason| format!("not available: {reason}"));
            let own = reason.chain(held(column));
            let slow = figure::client_was_slow(column);
            let own = own.chain(beaten).chain(slow);
            for text in own.chain(column.notes.iter().cloned()) {
                let shape = shape(&text);
                let known = remarks
                    .iter_mut()
                    .find(|known| known.peers == [peer] && self::shape(&known.text) == shape);
                match known {
                    Some(known) if known.cases.last() == Some(&case.label.as_str()) => {}
                    Some(known) => known.cases.push(&case.label),
                    None => remarks.push(Remark {
                        text,
                        peers: vec![peer],
                        cases: vec![&case.label],
                    }),
                }
            }
        }
    }
    let mut merged: Vec<Remark<'_>> = Vec::new();
    for remark in remarks {
        let alike =
            |known: &&mut Remark<'_>| known.text == remark.text && known.cases == remark.cases;
        match merged.iter_mut().find(alike) {
            Some(known) => known.peers.extend(remark.peers),
            None => merged.push(remark),
        }
    }
    let everywhere = outcome.cases.len();
    merged
        .iter()
        .map(|remark| remark.line(everywhere))
        .collect()
}

/// What is to be said of some peers in some cases.
struct Remark<'a> {
    text: String,
    peers: Vec<&'a str>,
    cases: Vec<&'a str>,
}

impl Remark<'_> {
    fn line(&self, everywhere: usize) -> String {
        let line = format!("{}: {}", self.peers.join(", "), self.text);
        match self.cases.len() {
            count if count == everywhere => line,
            _ => format!("{line} ({})", self.cases.join("; ")),
        }
    }
}

/// A remark without its numbers. Reasons and loads keep theirs: they are what is said.
fn shape(text: &str) -> String {
    if text.starts_with("not available") || text.starts_with(figure::CLIENT_WAS_SLOW) {
        return text.to_owned();
    }
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Says over how many connections a weight was measured: descriptors may not allow as many as were asked for.
fn held(column: &Column) -> Option<String> {
    let count = column.median(figures::HELD)?;
    Some(format!("{count:.0} connections held"))
}

/// Returns the conditions as a list.
pub fn conditions(run: &Run) -> String {
    let mut text = String::new();
    for (name, value) in condition_rows(run) {
        let written = writeln!(text, "* {name}: {value}");
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }
    text
}

/// Returns the conditions as names and values.
pub fn condition_rows(run: &Run) -> Vec<(String, String)> {
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
    let mut rows = vec![
        ("when".to_owned(), crate::conditions::stamp(*started_unix_s)),
        ("commit".to_owned(), commit.clone()),
        (
            "CPU".to_owned(),
            format!(
                "{cpu}, {} of them, with {}",
                cpus.len(),
                cpu_features.join(" ")
            ),
        ),
        (
            "pinned".to_owned(),
            format!("server to CPU {server_cpus:?}, client and backend to {client_cpus:?}"),
        ),
        ("kernel".to_owned(), kernel.clone()),
        ("memory".to_owned(), format!("{gib:.1} GiB")),
        (
            "load average before and after".to_owned(),
            format!("{load_before}; {load_after}"),
        ),
        (
            "CPUs used by others before".to_owned(),
            others_before.map_or("not measured".to_owned(), |share| {
                format!("{:.1} %", share * 100.0)
            }),
        ),
        (
            "control (plain relay)".to_owned(),
            control::describe(run).unwrap_or_else(|| "none".to_owned()),
        ),
        ("open files".to_owned(), open_files.to_string()),
        (
            "effort".to_owned(),
            format!(
                "{}, {} rounds or more of {:.2} s, {:.0} s in all",
                run.effort, run.rounds, run.seconds, run.took_s
            ),
        ),
    ];
    let listed = settings
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()));
    rows.extend(listed);
    for peer in &run.peers {
        rows.push((
            peer.name.clone(),
            format!("{} with {}", peer.version, peer.library),
        ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_tcp_paces_says_so_in_red() {
        let mut run = Run {
            schema: crate::result::SCHEMA_VERSION,
            ..Run::default()
        };
        for (congestion, warned) in [("cubic", 0), ("bbr", 1)] {
            let setting = (CONGESTION.to_owned(), congestion.to_owned());
            run.conditions.settings.extend([setting]);
            assert_eq!(warnings(&run).len(), warned, "{congestion}");
        }
    }
}
