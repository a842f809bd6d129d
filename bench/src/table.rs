//! Markdown tables of a run, and of the difference between two.

use std::fmt::Write;

use crate::figure::{self, Figure};
use crate::result::{Case, Column, Conditions, Outcome, Run, figures};
use crate::{catalog, spread};

/// Returns the whole run as Markdown.
pub fn run(run: &Run) -> String {
    let mut text = String::from("# becket-bench\n\n");
    if run.effort != "full" {
        text += &format!("> {}\n\n", effort_note(&run.effort));
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
        _ => "A quick run: short measurements, for a first look.",
    }
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
    text += &format!("**{}**\n", figure::answer(outcome));
    if outcome.not_available.is_none() {
        for figure in figure::shown(outcome) {
            text += &format!("\n{}", figures_of(run, outcome, &figure));
        }
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
    let is_cpu = figure.name == figures::CPU;
    let mut text = format!("| {} |", figure.heading);
    peers
        .iter()
        .for_each(|peer| text += &format!(" {} |", column_head(run, peer)));
    if is_cpu {
        text += " library in memory |";
    }
    text += &format!(
        "\n|{}\n",
        "---|".repeat(peers.len() + 1 + usize::from(is_cpu))
    );
    for case in &outcome.cases {
        text += &format!("| {} |", case.label);
        for peer in &peers {
            text += &format!(" {} |", cell(case, peer, figure));
        }
        if is_cpu {
            let library = figure::library_us(case).map_or("-".to_owned(), |us| figure.show(us));
            text += &format!(" {library} |");
        }
        text.push('\n');
    }
    text
}

/// Returns a column's name with the version and the TLS library of its program.
pub fn column_head(run: &Run, peer: &str) -> String {
    // A column such as `becket, cluster` is of the program before the comma.
    let program = peer.split(',').next().unwrap_or(peer);
    let known = run.peers.iter().find(|known| known.name == program);
    match known {
        Some(known) => format!("{peer} {} ({})", known.version, known.library),
        None => heading(peer).to_owned(),
    }
}

/// Returns a floor's name as a reader wants it.
pub fn heading(peer: &str) -> &str {
    match peer {
        "relay" => "plain TCP relay",
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
    let eta = match figure::eta(case, column).filter(|_| figure.name == figures::CPU) {
        Some(eta) if column.peer.starts_with("becket") => format!(", eta {eta:.2}"),
        _ => String::new(),
    };
    format!("{mark}{value}{mark}{eta}")
}

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
            let reason = reason.map(|reason| format!("not available: {reason}"));
            let own = reason.chain(held(column));
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

/// A remark without its numbers. Reasons keep theirs: they are what is said.
fn shape(text: &str) -> String {
    if text.starts_with("not available") {
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
        ("open files".to_owned(), open_files.to_string()),
        (
            "effort".to_owned(),
            format!(
                "{}, {} rounds of {:.2} s, {:.0} s in all",
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

/// Says where two runs differ by more than their spreads.
pub fn compare(before: &Run, after: &Run) -> String {
    let mut text = format!(
        "# {} against {}\n",
        crate::conditions::stamp(before.conditions.started_unix_s),
        crate::conditions::stamp(after.conditions.started_unix_s)
    );
    let machine = |run: &Run| {
        (
            run.conditions.cpu.clone(),
            run.conditions.kernel.clone(),
            run.conditions.cpus.len(),
        )
    };
    if machine(before) != machine(after) {
        text +=
            "\n> The two runs are from different machines or kernels: differences may be theirs.\n";
    }
    for outcome in &after.scenarios {
        let Some(earlier) = before.outcome(&outcome.id) else {
            continue;
        };
        for figure in figure::shown(outcome) {
            text += &differences(earlier, outcome, &figure);
        }
    }
    text
}

fn differences(before: &Outcome, after: &Outcome, figure: &Figure) -> String {
    let mut rows = String::new();
    for case in &after.cases {
        let Some(earlier) = before.cases.iter().find(|c| c.settings == case.settings) else {
            continue;
        };
        for column in &case.columns {
            let Some(was) = earlier.column(&column.peer) else {
                continue;
            };
            let (Some(a), Some(b)) = (was.median(&figure.name), column.median(&figure.name)) else {
                continue;
            };
            let word = if !figure::different(was, column, figure) {
                "not significant"
            } else if (b < a) == figure.less_is_better {
                "better"
            } else {
                "worse"
            };
            let change = if a == 0.0 { 0.0 } else { (b / a - 1.0) * 100.0 };
            rows += &format!(
                "| {} | {} | {} | {} | {change:+.1} % | {word} |\n",
                case.label,
                heading(&column.peer),
                figure.show(a),
                figure.show(b)
            );
        }
    }
    if rows.is_empty() {
        return rows;
    }
    format!(
        "\n## {}: {}\n\n| case | peer | before | after | change | |\n|---|---|---|---|---|---|\n{rows}",
        after.id, figure.heading
    )
}
