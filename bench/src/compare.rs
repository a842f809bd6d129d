//! Two stored runs, one beside the other: what changed, and what may be said of it.

use crate::figure::{self, Figure};
use crate::figures;
use crate::result::{Outcome, Run};
use crate::table::{Rows, heading};
use crate::{conditions, control, scenario, verdict};

/// Says where two runs differ by more than chance and machine explain.
pub fn runs(before: &Run, after: &Run) -> String {
    let stamp = |run: &Run| conditions::stamp(run.conditions.started_unix_s);
    let mut text = format!("# {} against {}\n", stamp(before), stamp(after));
    let machine = |run: &Run| {
        let of = &run.conditions;
        (of.cpu.clone(), of.kernel.clone(), of.cpus.len())
    };
    if machine(before) != machine(after) {
        text +=
            "\n> The two runs are from different machines or kernels: differences may be theirs.\n";
    }
    for run in [before, after] {
        let lacks = run.lacks().map(str::to_owned).into_iter();
        let busy = run
            .busy
            .then(|| "Others were at work on the machine.".to_owned());
        for warning in lacks.chain(busy) {
            text += &format!("\n> {}: {warning}\n", stamp(run));
        }
    }
    let of = |run: &Run| control::describe(run).unwrap_or_else(|| "not measured".to_owned());
    text += &format!(
        "\nControl (plain relay) before: {}; after: {}. The machine moved by {:.1} %, by which every interval is wider.\n",
        of(before),
        of(after),
        verdict::machine_moved(before, after) * 100.0
    );
    let mut different = 0;
    let mut tables = String::new();
    for outcome in &after.scenarios {
        let Some(earlier) = before.outcome(&outcome.id) else {
            continue;
        };
        for figure in figure::shown(outcome).iter().filter(|f| f.is_contested) {
            let (table, count) = differences((before, earlier), (after, outcome), figure);
            tables += &table;
            different += count;
        }
    }
    text += &match different {
        0 => format!("\n**In all: {}.**\n", verdict::SAME),
        count => format!("\n**In all: {count} figures differ.**\n"),
    };
    text + &tables
}

/// Returns the table of one figure, and how many of its rows differ.
fn differences(
    (before, was): (&Run, &Outcome),
    (after, is): (&Run, &Outcome),
    figure: &Figure,
) -> (String, usize) {
    let head = [
        "case",
        "peer",
        "before",
        "after",
        "ratio (95 % interval)",
        "",
    ];
    let (mut rows, mut different) = (Rows::new(head), 0);
    for case in &is.cases {
        let Some(earlier) = was
            .cases
            .iter()
            .find(|c| scenario::alike(&c.settings, &case.settings))
        else {
            continue;
        };
        for column in case.columns.iter().filter(|c| !figures::is_floor(&c.peer)) {
            let Some(old) = earlier.column(&column.peer) else {
                continue;
            };
            let (Some(a), Some(b)) = (old.median(&figure.name), column.median(&figure.name)) else {
                continue;
            };
            let (interval, word) = verdict::between_runs((before, old), (after, column), figure);
            different += usize::from(word != verdict::SAME);
            let interval = interval.map_or("-".to_owned(), |interval| verdict::show(&interval));
            let (peer, was, is) = (heading(&column.peer), figure.show(a), figure.show(b));
            rows.add([case.label.as_str(), peer, &was, &is, &interval, word]);
        }
    }
    let rows = rows.text();
    if rows.is_empty() {
        return (rows, 0);
    }
    (
        format!("\n## {}: {}\n\n{rows}", is.id, figure.heading),
        different,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store;
    use std::path::Path;

    #[test]
    fn a_run_does_not_differ_from_itself() {
        let stored = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/results/2026-11-21"));
        let run = store::read(stored).unwrap();
        let said = runs(&run, &run);
        assert!(
            said.contains("In all: no difference that can be told"),
            "{said}"
        );
        assert!(said.contains("made by an earlier bench"), "{said}");
    }
}
