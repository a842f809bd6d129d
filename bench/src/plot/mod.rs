//! Plots as SVG, through one writer. Colours are classes of the page's style sheet, so that a plot is
//! right in light and in dark; numbers are also in titles, which browsers show under the pointer.

pub mod summary;
mod svg;

use crate::figure::{self, Figure};
use crate::figures;
use crate::result::{Case, Column, Outcome, Point};
use crate::scenario::Measure;
use crate::spread;
use crate::table::{self, heading};

pub use self::svg::escape;
use self::svg::{ROW, Svg, WIDTH};

/// Returns a column's name as there is room for in a plot.
fn short(peer: &str) -> &str {
    match peer {
        figures::RELAY => "plain relay",
        figures::ANSWER => "plain answer",
        figures::ROUND_TRIP => "answering relay",
        figures::LIBRARY => "library",
        other => other,
    }
}

/// Returns the class of a peer's colour.
fn class(peer: &str) -> &'static str {
    match peer.split('@').next().unwrap_or(peer) {
        "becket" | "becket-load" => "becket",
        "hitch" => "hitch",
        "haproxy" => "haproxy",
        "nginx" => "nginx",
        "stunnel" => "stunnel",
        peer if figures::is_floor(peer) => "floor",
        _ => "other",
    }
}

/// Draws what there is to see of an outcome, in blocks of HTML.
pub fn of_outcome(outcome: &Outcome) -> String {
    let mut text = String::new();
    if outcome.measure == Measure::Capacity {
        text += "Dashed grey: attempted. Green: succeeded. Red: failed. Dotted: p99, on the scale at the right. Upright: capacity. All servers of a case have one scale; what is beyond twice the largest capacity is in the tables.\n\n";
        for case in &outcome.cases {
            let ramps: String = case
                .columns
                .iter()
                .filter_map(|column| ramp(case, column))
                .collect();
            text += &format!(
                "### {}\n\n<div class=\"ramps\">\n{ramps}</div>\n\n",
                case.label
            );
        }
    }
    let figures = figure::shown(outcome);
    let Some((figure, bars)) = figures
        .first()
        .and_then(|figure| Some((figure, bars(outcome, figure)?)))
    else {
        return text;
    };
    let better = if figure.less_is_better {
        "shorter"
    } else {
        "longer"
    };
    let has_limit = |case: &Case| figure::limit(case, figures::RELAY).is_some();
    let limit = if outcome.cases.iter().any(has_limit) {
        " Dashed: the limit, plain relay plus library in memory; dotted: the true one, with the round trip of TLS."
    } else {
        ""
    };
    text + &format!(
        "### {}\n\nMedians; {better} is better. Thin line: range of the rounds. x: times the best.{limit}\n\n{bars}\n",
        figure.heading
    )
}

/// Draws a figure as bars: one group per case, one bar per peer, with the range of the rounds, the
/// ratio to the best, and for CPU the limit (plain relay + library) as a mark.
fn bars(outcome: &Outcome, figure: &Figure) -> Option<String> {
    let tops: Vec<f64> = outcome.cases.iter().map(|case| top(case, figure)).collect();
    let largest = tops.iter().copied().fold(0.0, f64::max);
    let least = tops
        .iter()
        .copied()
        .filter(|t| *t > 0.0)
        .fold(f64::MAX, f64::min);
    if largest <= 0.0 {
        return None;
    }
    // Bars of very different cases on one scale would hide all but one of them.
    let own_scales = largest / least > OWN_SCALE;
    let rows: usize = outcome
        .cases
        .iter()
        .map(|case| measured(case, figure).count())
        .sum();
    let height = rows as f64 * ROW + outcome.cases.len() as f64 * GROUP + 30.0;
    let mut svg = Svg::new(WIDTH, height, &figure.heading);
    let mut y = 8.0;
    for (case, top) in outcome.cases.iter().zip(&tops) {
        if *top <= 0.0 {
            continue;
        }
        let scale = (WIDTH - LEFT - RIGHT) / if own_scales { *top } else { largest };
        y += GROUP;
        svg.text(
            "group",
            (0.0, y - 8.0),
            if case.label.is_empty() {
                &figure.heading
            } else {
                &case.label
            },
        );
        let begin = y;
        for column in measured(case, figure) {
            bar(&mut svg, (case, column, figure), scale, y);
            y += ROW;
        }
        let floors = measured(case, figure).filter(|column| figures::is_floor(&column.peer));
        let servers = y - floors.count() as f64 * ROW;
        limit(&mut svg, case, figure, (scale, begin, servers));
    }
    svg.height = y + 10.0;
    let note = if own_scales {
        "\nEach case has its own scale.\n"
    } else {
        ""
    };
    Some(format!("{}{note}", svg.finish()))
}

fn measured<'a>(case: &'a Case, figure: &'a Figure) -> impl Iterator<Item = &'a Column> {
    case.columns
        .iter()
        .filter(|column| column.median(&figure.name).is_some())
}

fn top(case: &Case, figure: &Figure) -> f64 {
    let all = measured(case, figure).flat_map(|column| column.values(&figure.name));
    all.fold(0.0, f64::max)
}

fn bar(svg: &mut Svg, (case, column, figure): (&Case, &Column, &Figure), scale: f64, y: f64) {
    let values = column.values(&figure.name);
    let (Some(median), Some((low, high))) = (spread::median(&values), spread::range(&values))
    else {
        return;
    };
    let ratio = match figure.best(case) {
        Some((best, value))
            if best.peer != column.peer
                && value > 0.0
                && median > 0.0
                && !figures::is_floor(&column.peer) =>
        {
            format!(
                " · {:.2}x",
                if figure.less_is_better {
                    median / value
                } else {
                    value / median
                }
            )
        }
        _ => String::new(),
    };
    let shown = table::value(column, figure).unwrap_or_default();
    let (x, width) = (LEFT, (median.max(0.0) * scale).max(0.5));
    svg.text("name", (LEFT - 8.0, y + 14.0), short(&column.peer));
    svg.put(format_args!(
        "<rect class=\"bar {}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"2\"><title>{}: {}</title></rect>\n",
        class(&column.peer), y + 2.0, ROW - 5.0, escape(&column.peer), escape(&shown)
    ));
    if values.len() > 1 {
        let middle = y + ROW / 2.0 - 0.5;
        svg.line(
            "range",
            (x + low.max(0.0) * scale, middle),
            (x + high.max(0.0) * scale, middle),
        );
    }
    let end = x + width.max(high.max(0.0) * scale) + 8.0;
    svg.text("value", (end, y + 14.0), &format!("{shown}{ratio}"));
}

fn limit(svg: &mut Svg, case: &Case, figure: &Figure, (scale, begin, end): (f64, f64, f64)) {
    if figure.name != figures::CPU {
        return;
    }
    for (class, relay) in [
        ("limit", figures::RELAY),
        ("limit true", figures::ROUND_TRIP),
    ] {
        let beaten = |column| figure::beaten(case, column, relay).is_some();
        let Some(us) = figure::limit(case, relay) else {
            continue;
        };
        if case.columns.iter().any(beaten) {
            continue;
        }
        let x = LEFT + us * scale;
        svg.put(format_args!(
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"{begin:.1}\" x2=\"{x:.1}\" y2=\"{end:.1}\"><title>limit: {} + library in memory, {us:.1} us</title></line>\n",
            heading(relay)
        ));
    }
}

/// Draws a ramp: attempted, succeeded and failed per second, and p99, against the rate asked for.
fn ramp(case: &Case, column: &Column) -> Option<String> {
    let capacity = column.median(figures::CAPACITY)?;
    let capacities = case
        .columns
        .iter()
        .filter_map(|c| c.median(figures::CAPACITY));
    let most = capacities.fold(1.0, f64::max) * 2.0;
    let curve = column
        .curve
        .iter()
        .filter(|point| point.asked_per_s <= most);
    let curve: Vec<&Point> = curve.collect();
    let (left, right, top, bottom) = (52.0, 380.0, 26.0, 190.0);
    let across = |rate: f64| left + rate / most * (right - left);
    let up = |share: f64| bottom - share * (bottom - top);
    let mut svg = Svg::new(436.0, 250.0, &format!("ramp of {}", column.peer));
    svg.text("group", (0.0, 14.0), heading(&column.peer));
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        let (label, y) = (format!("{:.0}", most * share), up(share));
        svg.line("grid", (left, y), (right, y));
        svg.text("tick", (left - 6.0, y + 4.0), &label);
        svg.text("tick under", (across(most * share), bottom + 16.0), &label);
    }
    svg.text("axis", (140.0, 225.0), "transactions/s asked for");
    // p99 has its own, logarithmic scale at the right: 0.1 ms below, 10 s above.
    let late = |point: &Point| ((point.p99_us.max(100.0) / 100.0).log10() / 5.0).min(1.0);
    let mut line = |class: &str, share: &dyn Fn(&Point) -> f64| {
        let points = curve.iter().map(|p| (across(p.asked_per_s), up(share(p))));
        svg.path(class, &points.collect::<Vec<_>>());
    };
    line("line attempted", &|p| p.attempted_per_s / most);
    line("line succeeded", &|p| p.succeeded_per_s / most);
    line("line failed", &|p| p.failed_per_s / most);
    line("line late", &late);
    for (power, label) in ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]
        .iter()
        .enumerate()
    {
        svg.text(
            "tick late-tick",
            (384.0, up(power as f64 / 5.0) + 3.0),
            label,
        );
    }
    svg.line("limit", (across(capacity), bottom), (across(capacity), top));
    let value = table::value(column, &figure::capacity()).unwrap_or_default();
    svg.text("axis", (52.0, 244.0), &format!("capacity: {value}"));
    Some(svg.finish())
}

const LEFT: f64 = 150.0;
const RIGHT: f64 = 236.0;
const GROUP: f64 = 30.0;
/// Cases whose largest bars differ by more get scales of their own.
const OWN_SCALE: f64 = 8.0;
