//! Lines over an axis of numbers: where the cases of a scenario differ in one number, its place is on that axis.

use std::collections::BTreeSet;

use becket_stats::units::parse_size;

use super::{Frame, Svg, WIDTH, class, short};
use crate::figure::Figure;
use crate::result::{Case, Outcome};
use crate::table;

/// Draws a figure of all peers over the one number in which the cases differ; nothing where they differ in
/// something else, in more, or where they are fewer than three. Both axes are logarithmic.
pub fn of_numbers(outcome: &Outcome, figure: &Figure) -> Option<String> {
    let setting = only_number(outcome)?;
    let mut cases: Vec<(f64, &Case)> = outcome
        .cases
        .iter()
        .filter_map(|case| Some((number(case, setting)?, case)))
        .collect();
    cases.sort_by(|a, b| a.0.total_cmp(&b.0));
    let values = cases.iter().flat_map(|(_, case)| case.columns.iter());
    let values = values.filter_map(|column| column.median(&figure.name));
    let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let (low, high) = crate::spread::range(&values)?;
    let y_range = (
        low.log10().floor(),
        high.log10().ceil().max(low.log10().floor() + 1.0),
    );
    let frame = Frame {
        x: (LEFT, WIDTH - RIGHT),
        y: (BOTTOM, TOP),
        x_range: (place(cases.first()?.0), place(cases.last()?.0)),
        y_range,
    };
    let name = format!("{} by {setting}", figure.heading);
    let mut svg = Svg::new(WIDTH, BOTTOM + 44.0, &name);
    svg.text("axis", (LEFT, BOTTOM + 36.0), setting);
    let mut power = y_range.0;
    while power <= y_range.1 + 0.01 {
        let (left, y) = frame.at(frame.x_range.0, power);
        svg.line("grid", (left, y), (WIDTH - RIGHT, y));
        let shown = figure.show(10_f64.powf(power));
        svg.text("tick", (left - 6.0, y + 4.0), &shown);
        power += 1.0;
    }
    let mut named = f64::MIN;
    for (x, case) in &cases {
        let (across, bottom) = frame.at(place(*x), y_range.0);
        svg.line("grid", (across, bottom), (across, TOP));
        let value = case.settings.get(setting).map_or("", String::as_str);
        if across - named >= TICK {
            svg.text("tick under", (across, bottom + 16.0), value);
            named = across;
        }
    }
    let mut ends: Vec<(f64, &str)> = Vec::new();
    for peer in table::peers(outcome) {
        let points = cases.iter().filter_map(|(x, case)| {
            let value = case.column(peer)?.median(&figure.name)?;
            (value > 0.0).then(|| frame.at(place(*x), value.log10()))
        });
        let points: Vec<(f64, f64)> = points.collect();
        svg.path(&format!("line {}", class(peer)), &points);
        ends.extend(points.last().map(|(_, y)| (*y, peer)));
    }
    label(&mut svg, ends);
    Some(svg.finish())
}

/// Names lines at their ends, from the top down, each where no other name is.
fn label(svg: &mut Svg, mut ends: Vec<(f64, &str)>) {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = TOP;
    for (end, peer) in ends {
        let y = end.max(free);
        let x = WIDTH - RIGHT + 8.0;
        svg.put(format_args!(
            "<rect class=\"bar {}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" rx=\"2\"/>\n",
            class(peer),
            y - 6.0
        ));
        svg.text("value", (x + 18.0, y + 4.0), short(peer));
        svg.height = svg.height.max(y + 10.0);
        free = y + LABEL;
    }
}

/// Powers of two are as far from one another; nothing at all has its place, too.
fn place(x: f64) -> f64 {
    (1.0 + x).log2()
}

fn number(case: &Case, setting: &str) -> Option<f64> {
    let text = case.settings.get(setting)?;
    // No limit is not the number that stands for it.
    let none = text == "0" && setting != "body";
    parse_size(text)
        .ok()
        .filter(|_| !none)
        .map(|value| value as f64)
}

/// Returns the one setting in which the cases differ, if its values are numbers.
fn only_number(outcome: &Outcome) -> Option<&str> {
    let first = outcome.cases.first()?;
    let differing = first.settings.keys().filter(|name| {
        let values: BTreeSet<_> = outcome
            .cases
            .iter()
            .map(|c| c.settings.get(*name))
            .collect();
        values.len() > 1
    });
    let differing: Vec<&String> = differing.collect();
    let [setting] = differing.as_slice() else {
        return None;
    };
    let numbers = outcome
        .cases
        .iter()
        .filter(|case| number(case, setting).is_some());
    (numbers.count() >= 3).then_some(setting.as_str())
}

const LEFT: f64 = 90.0;
const RIGHT: f64 = 140.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 240.0;
/// Labels are so far apart at least.
const LABEL: f64 = 16.0;
/// So are values under the axis.
const TICK: f64 = 28.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(setting: &str, values: &[&str]) -> Outcome {
        let cases = values.iter().map(|value| Case {
            settings: [("key", "p256"), (setting, *value)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..Case::default()
        });
        Outcome {
            cases: cases.collect(),
            ..Outcome::default()
        }
    }

    #[test]
    fn only_three_numbers_or_more_make_an_axis() {
        assert_eq!(
            only_number(&outcome("body", &["0", "1k", "16k"])),
            Some("body")
        );
        assert_eq!(only_number(&outcome("maxconn", &["10", "30", "0"])), None);
        assert_eq!(
            only_number(&outcome("suite", &["aes128", "aes256", "chacha20"])),
            None
        );
    }
}
