//! Plots as SVG, through one writer. Colours are classes of the page's style sheet, so that a plot is
//! right in light and in dark; numbers are also in titles, which browsers show under the pointer.

pub mod lines;
pub mod summary;

use std::fmt::Write;

use crate::figure::{self, Figure};
use becket_stats::report::Bucket;

use crate::result::{Case, Column, Outcome, figures};
use crate::spread;
use crate::table::{self, heading};

/// An SVG that grows downwards.
struct Svg {
    body: String,
    width: f64,
    height: f64,
    title: String,
}

impl Svg {
    fn new(width: f64, height: f64, title: &str) -> Self {
        Self {
            body: String::new(),
            width,
            height,
            title: title.to_owned(),
        }
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let written = self.body.write_fmt(element);
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let text = escape(text);
        self.put(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>\n"
        ));
    }

    fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.put(format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>\n",
            from.0, from.1, to.0, to.1
        ));
    }

    fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let list: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.put(format_args!(
            "<polyline class=\"{class}\" points=\"{}\"/>\n",
            list.join(" ")
        ));
    }

    fn finish(self) -> String {
        format!(
            "<svg viewBox=\"0 0 {:.0} {:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
            self.width,
            self.height,
            escape(&self.title),
            self.body
        )
    }
}

/// Escapes text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Returns a column's name as there is room for in a plot.
fn short(peer: &str) -> &str {
    match peer {
        figure::RELAY => "plain relay",
        figure::ANSWER => "plain answer",
        figure::ROUND_TRIP => "answering relay",
        figure::LIBRARY => "library",
        other => other,
    }
}

/// Returns the class of a peer's colour.
pub fn class(peer: &str) -> &'static str {
    match peer.split('@').next().unwrap_or(peer) {
        "becket" | "becket-load" => "becket",
        "hitch" => "hitch",
        "haproxy" => "haproxy",
        "nginx" => "nginx",
        "stunnel" => "stunnel",
        peer if figure::is_floor(peer) => "floor",
        _ => "other",
    }
}

/// Draws a figure as bars: one group per case, one bar per peer, with the range of the rounds, the
/// ratio to the best, and for CPU the limit (plain relay + library) as a mark.
pub fn bars(outcome: &Outcome, figure: &Figure) -> Option<String> {
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
        let floors = measured(case, figure).filter(|column| figure::is_floor(&column.peer));
        let servers = y - floors.count() as f64 * ROW;
        limit(&mut svg, case, figure, (scale, begin, servers));
    }
    svg.height = y + 10.0;
    let note = if own_scales {
        "<p class=\"hint\">Each case has its own scale.</p>"
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
                && !figure::is_floor(&column.peer) =>
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
    for (class, relay) in [("limit", figure::RELAY), ("limit true", figure::ROUND_TRIP)] {
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
pub fn ramp(case: &Case, column: &Column) -> Option<String> {
    let capacity = column.median(figures::CAPACITY)?;
    let capacities = case
        .columns
        .iter()
        .filter_map(|c| c.median(figures::CAPACITY));
    let largest_rate = capacities.fold(1.0, f64::max) * 2.0;
    let curve = column
        .curve
        .iter()
        .filter(|point| point.asked_per_s <= largest_rate);
    let curve: Vec<&crate::result::Point> = curve.collect();
    let mut svg = Svg::new(436.0, 250.0, &format!("ramp of {}", column.peer));
    let frame = Frame {
        x: (52.0, 380.0),
        y: (190.0, 26.0),
        x_range: (0.0, largest_rate),
        y_range: (0.0, largest_rate),
    };
    svg.text("group", (0.0, 14.0), heading(&column.peer));
    frame.axes(&mut svg, 4, |v| format!("{v:.0}"));
    svg.text("axis", (140.0, 225.0), "transactions/s asked for");
    let of = |value: fn(&crate::result::Point) -> f64| -> Vec<(f64, f64)> {
        let points = curve.iter();
        points.map(|p| frame.at(p.asked_per_s, value(p))).collect()
    };
    svg.path("line attempted", &of(|p| p.attempted_per_s));
    svg.path("line succeeded", &of(|p| p.succeeded_per_s));
    svg.path("line failed", &of(|p| p.failed_per_s));
    // p99 on its own, logarithmic scale at the right: 0.1 ms below, 10 s above.
    let late = curve.iter().map(|p| {
        let share = ((p.p99_us.max(100.0) / 100.0).log10() / 5.0).min(1.0);
        (
            frame.at(p.asked_per_s, 0.0).0,
            frame.y.0 + share * (frame.y.1 - frame.y.0),
        )
    });
    svg.path("line late", &late.collect::<Vec<_>>());
    for (power, label) in ["0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]
        .iter()
        .enumerate()
    {
        let y = frame.y.0 + power as f64 / 5.0 * (frame.y.1 - frame.y.0);
        svg.text("tick late-tick", (384.0, y + 3.0), label);
    }
    let x = frame.at(capacity, 0.0).0;
    svg.line("limit", (x, frame.y.0), (x, frame.y.1));
    let value = table::value(column, &capacity_figure()).unwrap_or_default();
    svg.text("axis", (52.0, 244.0), &format!("capacity: {value}"));
    Some(svg.finish())
}

fn capacity_figure() -> Figure {
    Figure {
        name: figures::CAPACITY.to_owned(),
        heading: String::new(),
        less_is_better: false,
        is_contested: true,
    }
}

/// Draws the latencies of all peers of a case: share of transactions that took at most so long.
pub fn shapes(case: &Case) -> Option<String> {
    let drawn: Vec<&Column> = case
        .columns
        .iter()
        .filter(|c| c.histogram.len() > 1)
        .collect();
    let ends = drawn
        .iter()
        .flat_map(|column| column.histogram.iter().map(|b| b.up_to_us));
    let (low, high) = spread::range(&ends.filter(|us| *us > 0.0).collect::<Vec<_>>())?;
    let mut svg = Svg::new(WIDTH, 270.0, &format!("latencies, {}", case.label));
    svg.text(
        "group",
        (0.0, 14.0),
        &format!("{}: share that took at most", case.label),
    );
    let frame = Frame {
        x: (52.0, WIDTH - 130.0),
        y: (220.0, 28.0),
        x_range: (low.log10().floor(), high.log10().ceil()),
        y_range: (0.0, 1.0),
    };
    frame.axes_named(&mut svg);
    for (index, column) in drawn.iter().enumerate() {
        let points: Vec<(f64, f64)> = shares(&column.histogram)
            .map(|(us, share)| frame.at(us.log10(), share))
            .collect();
        svg.path(&format!("line {}", class(&column.peer)), &points);
        let y = 40.0 + index as f64 * 18.0;
        svg.put(format_args!(
            "<rect class=\"bar {}\" x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" rx=\"2\"/>\n",
            class(&column.peer), WIDTH - 118.0, y - 10.0
        ));
        svg.text("value", (WIDTH - 100.0, y), short(&column.peer));
    }
    Some(svg.finish())
}

/// Returns the cumulated shares of a histogram.
fn shares(buckets: &[Bucket]) -> impl Iterator<Item = (f64, f64)> {
    let total: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let mut seen = 0;
    buckets
        .iter()
        .filter(|b| b.up_to_us > 0.0)
        .map(move |bucket| {
            seen += bucket.count;
            (bucket.up_to_us, seen as f64 / total.max(1) as f64)
        })
}

/// Draws the efficiency R(N) / (N R(1)) of every peer that was measured with more than one worker.
pub fn scaling(outcome: &Outcome) -> Option<String> {
    let workers = |case: &Case| {
        case.settings
            .get("workers")
            .and_then(|w| w.parse::<f64>().ok())
    };
    let first = outcome
        .cases
        .iter()
        .find(|case| workers(case) == Some(1.0))?;
    let mut svg = Svg::new(WIDTH, 270.0, "efficiency by workers");
    let most = outcome
        .cases
        .iter()
        .filter(|c| c.columns.iter().any(|c| !c.samples.is_empty()));
    let most = most.filter_map(workers).fold(1.0, f64::max);
    if most < 2.0 {
        return None;
    }
    let frame = Frame {
        x: (52.0, WIDTH - 130.0),
        y: (220.0, 20.0),
        x_range: (1.0, most),
        y_range: (0.0, 1.1),
    };
    frame.axes(&mut svg, 5, |v| format!("{v:.1}"));
    for (index, peer) in table::peers(outcome).into_iter().enumerate() {
        let base = first
            .column(peer)?
            .median(figures::RATE)
            .filter(|rate| *rate > 0.0);
        let points = outcome.cases.iter().filter_map(|case| {
            let rate = case.column(peer)?.median(figures::RATE)?;
            let workers = workers(case)?;
            Some(frame.at(workers, rate / (workers * base?)))
        });
        svg.path(
            &format!("line {}", class(peer)),
            &points.collect::<Vec<_>>(),
        );
        svg.text(
            "value",
            (WIDTH - 118.0, 40.0 + index as f64 * 18.0),
            short(peer),
        );
    }
    Some(svg.finish())
}

/// From values to places.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
    x_range: (f64, f64),
    y_range: (f64, f64),
}

impl Frame {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let share = |value: f64, (low, high): (f64, f64)| {
            if high > low {
                (value - low) / (high - low)
            } else {
                0.0
            }
        };
        let place = |share: f64, (from, to): (f64, f64)| from + share * (to - from);
        (
            place(share(x, self.x_range), self.x),
            place(share(y, self.y_range), self.y),
        )
    }

    fn axes(&self, svg: &mut Svg, parts: u32, show: fn(f64) -> String) {
        for part in 0..=parts {
            let share = f64::from(part) / f64::from(parts);
            let y = self.y_range.0 + share * (self.y_range.1 - self.y_range.0);
            let (left, height) = self.at(self.x_range.0, y);
            svg.line("grid", (left, height), (self.x.1, height));
            svg.text("tick", (left - 6.0, height + 4.0), &show(y));
            let x = self.x_range.0 + share * (self.x_range.1 - self.x_range.0);
            let (place, bottom) = self.at(x, self.y_range.0);
            svg.text("tick under", (place, bottom + 16.0), &show(x));
        }
    }

    /// Decades of microseconds below, shares at the left.
    fn axes_named(&self, svg: &mut Svg) {
        for quarter in 0..=4 {
            let (left, height) = self.at(self.x_range.0, f64::from(quarter) / 4.0);
            svg.line("grid", (left, height), (self.x.1, height));
            svg.text(
                "tick",
                (left - 6.0, height + 4.0),
                &format!("{} %", quarter * 25),
            );
        }
        let mut power = self.x_range.0;
        while power <= self.x_range.1 + 0.01 {
            let (place, bottom) = self.at(power, 0.0);
            svg.line("grid", (place, bottom), (place, self.y.1));
            let us = 10_f64.powf(power);
            svg.text(
                "tick under",
                (place, bottom + 16.0),
                &becket_stats::units::show_us(us),
            );
            power += 1.0;
        }
    }
}

// Narrow, so that a telephone shows it with letters that can be read.
const WIDTH: f64 = 640.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 236.0;
const ROW: f64 = 22.0;
const GROUP: f64 = 30.0;
/// Cases whose largest bars differ by more get scales of their own.
const OWN_SCALE: f64 = 8.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_out_of_a_page() {
        assert_eq!(
            escape("<a href=\"x\">&"),
            "&lt;a href=&quot;x&quot;&gt;&amp;"
        );
    }

    #[test]
    fn a_frame_maps_its_corners() {
        let frame = Frame {
            x: (10.0, 110.0),
            y: (100.0, 0.0),
            x_range: (0.0, 10.0),
            y_range: (0.0, 1.0),
        };
        assert_eq!(frame.at(0.0, 0.0), (10.0, 100.0));
        assert_eq!(frame.at(10.0, 1.0), (110.0, 0.0));
    }

    #[test]
    fn cumulated_shares_end_at_one() {
        let bucket = |up_to_us, count| Bucket { up_to_us, count };
        let shares: Vec<_> = shares(&[bucket(1.0, 1), bucket(2.0, 3)]).collect();
        assert_eq!(shares, [(1.0, 0.25), (2.0, 1.0)]);
    }
}
