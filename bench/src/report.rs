//! Writes the report of a run, which is a Markdown document with links to its plots.

use std::collections::BTreeMap;

use crate::catalog;
use crate::conditions::{CONGESTION, stamp};
use crate::figure::{self, Figure};
use crate::result::{Conditions, Outcome, Run};
use crate::scenario::Scenario;
use crate::table::{self, Rows};
use crate::{answer, classic, control, plot, verdict};

pub fn markdown(run: &Run) -> String {
    let of = &run.conditions;
    let mut text = format!(
        "# TLS terminators side by side\n\n{} · {} · kernel {} · {} rounds of {:.2} s, interleaved, each server alone on {} of {} CPUs{}.\n\n",
        stamp(of.started_unix_s),
        of.cpu,
        of.kernel,
        run.rounds,
        run.seconds,
        of.server_cpus.len(),
        of.cpus.len(),
        match run.agents.len() {
            0 => String::new(),
            1 => ", load from an agent on another host".to_owned(),
            count => format!(", load from {count} agents on other hosts"),
        }
    );
    for warning in warnings(run) {
        text += &format!("> **{warning}**\n\n");
    }
    let scenarios = run.scenarios.iter();
    let (told, others): (Vec<_>, Vec<_>) = scenarios.partition(|it| it.not_available.is_none());
    for outcome in told.into_iter().chain(others) {
        text += &section(run, outcome);
        text.push('\n');
    }
    text + &conditions(run) + "\n"
}

fn section(run: &Run, outcome: &Outcome) -> String {
    let found = catalog::find(std::slice::from_ref(&outcome.id)).unwrap_or_default();
    let scenario = found.first();
    let title = scenario.map_or(outcome.id.as_str(), |s| &s.title);
    let mut text = format!("## {title}\n\n");
    if let Some(scenario) = scenario {
        text += &format!("{}\n\n", scenario.question);
    }
    text += &format!("**{}**\n\n", answer::of(run, outcome));
    let then = scenario.map_or_else(String::new, |scenario| then(scenario, outcome));
    let is_classic = scenario.is_some_and(Scenario::is_classic);
    if is_classic {
        text += &format!("{then}\n");
    }
    let mut add = |block: String| {
        if !block.is_empty() {
            text += &format!("{block}\n");
        }
    };
    if outcome.not_available.is_none() {
        for plot in plot::of_outcome(outcome) {
            add(format!("![{}]({})\n", plot.title, plot.file));
        }
        for figure in figure::shown(outcome) {
            add(figures_of(run, outcome, &figure));
        }
        add(standings(run, outcome));
        add(agreed(outcome));
        let notes = table::notes(outcome);
        add(notes.iter().map(|note| format!("* {note}\n")).collect());
    }
    if is_classic { text } else { text + &then }
}

fn warnings(run: &Run) -> Vec<String> {
    let effort = match run.effort.as_str() {
        "full" => None,
        "smoke" => Some("This was a smoke run, a functional test: its figures are meaningless."),
        _ => Some("This was a quick run: its measurements are too short for reliable figures."),
    };
    let mut warnings: Vec<String> = effort
        .into_iter()
        .chain(run.lacks())
        .map(str::to_owned)
        .collect();
    if !run.complete {
        warnings.push(
            "This run ended early: it has the scenarios up to here, not all that were requested."
                .to_owned(),
        );
    }
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
            "This run used the congestion control bbr, which paces TCP with timers even over loopback: bulk transfers cost more \
             CPU than with the kernel's default."
                .to_owned(),
        );
    }
    warnings
}

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

/// Returns a table of the verdicts on becket, compared with the best peer and with other builds or settings of becket.
/// Inconclusive verdicts are the last rows.
fn standings(run: &Run, outcome: &Outcome) -> String {
    let certainty = run.certainty();
    let mut rows = Rows::new([
        "case",
        "figure",
        "becket compared with",
        "ratio (95 % interval)",
        "verdict",
    ]);
    let figures = figure::shown(outcome);
    let mut all = Vec::new();
    for case in &outcome.cases {
        for figure in figures.iter().filter(|f| f.is_contested) {
            let standings = verdict::standings(case, figure, certainty);
            let standings = standings.into_iter();
            all.extend(standings.map(|standing| (case, figure, standing)));
        }
    }
    all.sort_by_key(|(.., standing)| standing.is_unclear());
    for (case, figure, standing) in &all {
        let interval = verdict::show(&standing.interval);
        rows.add([
            case.label.as_str(),
            &figure.heading,
            &standing.against,
            &interval,
            standing.word,
        ]);
    }
    rows.text()
}

/// Returns a table of the negotiated TLS parameters, from which the reader sees that the peers are comparable.
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

/// Returns the section on published articles, with their results next to the figures of this run.
fn then(scenario: &Scenario, outcome: &Outcome) -> String {
    let then = &scenario.then;
    let mut text = format!("### Then\n\n{}\n", then.text);
    for source in &then.source {
        text += &classic::show(scenario, source, outcome);
    }
    text
}

fn conditions(run: &Run) -> String {
    let of = &run.conditions;
    let gib = of.memory_bytes as f64 / f64::from(1 << 30);
    let (server, client) = (&of.server_cpus, &of.client_cpus);
    let others = of
        .others_before
        .map(|share| format!("{:.1} %", share * 100.0));
    let rows = [
        format!("when: {}", stamp(of.started_unix_s)),
        format!("commit: {}", of.commit),
        format!(
            "CPU: {}, {} CPUs, with {}",
            of.cpu,
            of.cpus.len(),
            of.cpu_features.join(" ")
        ),
        format!("cores: {}", cores(of)),
        if run.agents.is_empty() {
            format!("pinned: server to CPUs {server:?}, client and backend to CPUs {client:?}")
        } else {
            let agents = run.agents.join(", ");
            format!(
                "pinned: server to CPUs {server:?}, backend to CPUs {client:?}; clients on {agents}"
            )
        },
        format!("kernel: {}", of.kernel),
        format!("memory: {gib:.1} GiB"),
        format!(
            "load average before and after: {}; {}",
            of.load_before, of.load_after
        ),
        format!(
            "CPU use of other processes before the run: {}",
            others.as_deref().unwrap_or("not measured")
        ),
        format!(
            "control (plain relay): {}",
            control::describe(run).as_deref().unwrap_or("none")
        ),
        format!("open files: {}", of.open_files),
        format!(
            "effort: {}, at least {} rounds of {:.2} s, {:.0} s in total",
            run.effort, run.rounds, run.seconds, run.took_s
        ),
    ];
    let settings = of
        .settings
        .iter()
        .map(|(name, value)| format!("{name}: {value}"));
    let programs = run.peers.iter();
    let programs =
        programs.map(|peer| format!("{}: {} with {}", peer.name, peer.version, peer.library));
    let rows = rows.into_iter().chain(settings).chain(programs);
    let mut text = "## Conditions\n\n".to_owned();
    text.extend(rows.map(|row| format!("* {row}\n")));
    for peer in &run.peers {
        text += &format!(
            "\nConfiguration of {} {} in the first case:\n\n```\n{}\n```\n",
            peer.name,
            peer.version,
            peer.configuration.trim_end()
        );
    }
    let command = run.command.get(1..).unwrap_or_default().join(" ");
    text + &format!(
        "\nHow to repeat the run:\n\n```\ncargo build --profile dist --workspace\ntarget/dist/becket-bench {command}\n```\n"
    )
}

/// Lists the CPUs of each core, by socket.
fn cores(of: &Conditions) -> String {
    let mut sockets: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for core in &of.cores {
        let cpus: Vec<String> = core.cpus.iter().map(ToString::to_string).collect();
        let cores = sockets.entry(core.socket).or_default();
        cores.push(cpus.join("+"));
    }
    let sockets = sockets.iter();
    let sockets = sockets.map(|(socket, cores)| format!("socket {socket}: {}", cores.join(", ")));
    let sockets: Vec<String> = sockets.collect();
    if sockets.is_empty() {
        return "not recorded".to_owned();
    }
    sockets.join("; ") + " (+ joins the hyper-threads of a core)"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_bbr_and_an_incomplete_one_have_a_warning() {
        let mut run = Run {
            effort: "full".to_owned(),
            complete: true,
            control: crate::result::testing::column("relay", &[1.0]).samples,
            ..Run::default()
        };
        for (congestion, warned) in [("cubic", 0), ("bbr", 1)] {
            let setting = (CONGESTION.to_owned(), congestion.to_owned());
            run.conditions.settings.extend([setting]);
            assert_eq!(warnings(&run).len(), warned, "{congestion}");
        }
        run.complete = false;
        assert_eq!(warnings(&run).len(), 2);
    }
}
