//! The plots of the status page as SVG: lines for the last hour, or since the start of becket if
//! that is more recent.
//!
//! Durations have a logarithmic axis. The page's script reads the values under the pointer from
//! `data-` attributes: `x` and `t` contain the position and the time of each moment, and `v`
//! contains the values of a line.

use std::fmt::{self, Write};
use std::iter::successors;
use std::time::Duration;

use super::super::history::Moment;
use super::super::status::Status;
use super::text::{clock, micros, short, span};

pub(super) fn plots(page: &mut String, status: &Status, hour: &[Moment]) -> fmt::Result {
    let end = status.process.now.unix_seconds();
    let start = status.process.started.unix_seconds();
    let begin = start.clamp(end.saturating_sub(HOUR), end);
    let is_shown = |it: &&Moment| (begin..=end).contains(&it.time.unix_seconds());
    let shown: Vec<&Moment> = hour.iter().filter(is_shown).collect();
    let at: Vec<u64> = shown.iter().map(|it| it.time.unix_seconds()).collect();
    let time = TimeAxis { begin, end, at };
    let x = time.at.iter().map(|at| format!("{:.1}", time.x(*at)));
    let (x, at): (Vec<_>, Vec<_>) = (x.collect(), time.at.iter().map(|at| clock(*at)).collect());
    let (x, at) = (x.join(","), at.join(","));
    writeln!(page, "<div class=plots data-x=\"{x}\" data-t=\"{at}\">")?;
    let rate = |name, class, of: fn(&Moment) -> u64| {
        let values = shown.iter().map(|it| of(it) as f64 / it.seconds.max(1.0));
        PlotLine(name, class, values.map(Some).collect())
    };
    let quantiles = |p50: fn(&Moment) -> Option<u64>, p99: fn(&Moment) -> Option<u64>| {
        let line = |name, class, of: fn(&Moment) -> Option<u64>| {
            let values = shown.iter().map(|it| of(it).map(|us| us as f64));
            PlotLine(name, class, values.collect())
        };
        vec![line("p50", "a", p50), line("p99", "d", p99)]
    };
    let handshakes = vec![
        rate("full", "a", |it| it.handshakes_full),
        rate("resumed", "b", |it| it.handshakes_resumed),
        rate("failed", "c", |it| it.handshakes_failed),
    ];
    let open = shown.iter().map(|it| Some(it.connections as f64));
    let open = vec![PlotLine("open", "b", open.collect())];
    let accepted = vec![rate("accepted", "a", |it| it.accepted)];
    let handshake = quantiles(|it| it.handshake_p50_us, |it| it.handshake_p99_us);
    let queue = quantiles(|it| it.queue_p50_us, |it| it.queue_p99_us);
    let connect = quantiles(|it| it.connect_p50_us, |it| it.connect_p99_us);
    for (title, unit, lines) in [
        ("Handshakes", PlotUnit::PerSecond, handshakes),
        ("New connections", PlotUnit::PerSecond, accepted),
        ("Open connections", PlotUnit::Connections, open),
        ("Handshake time", PlotUnit::Time, handshake),
        ("Queue time", PlotUnit::Time, queue),
        ("Connect time to servers", PlotUnit::Time, connect),
    ] {
        plot(page, (title, unit), &time, &lines)?;
    }
    page.write_str("</div>\n")
}

/// Name, CSS class and values of a line. The line is interrupted at `None`.
struct PlotLine(&'static str, &'static str, Vec<Option<f64>>);

#[derive(Clone, Copy, PartialEq)]
enum PlotUnit {
    PerSecond,
    Connections,
    /// Logarithmic axis for durations in microseconds.
    Time,
}

impl PlotUnit {
    fn text(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{}/s", short(value)),
            Self::Connections => short(value),
            Self::Time => micros(value),
        }
    }
}

/// The horizontal axis, in Unix seconds.
struct TimeAxis {
    begin: u64,
    end: u64,
    at: Vec<u64>,
}

impl TimeAxis {
    fn x(&self, at: u64) -> f64 {
        let length = (self.end - self.begin).max(1) as f64;
        LEFT + at.saturating_sub(self.begin) as f64 / length * (RIGHT - LEFT)
    }
}

struct ValueAxis {
    /// Lowest value; 0 on a linear axis.
    low: f64,
    high: f64,
}

impl ValueAxis {
    fn new(unit: PlotUnit, lines: &[PlotLine]) -> Self {
        let values = || lines.iter().flat_map(|line| line.2.iter().flatten());
        let most = values().copied().fold(0.0, f64::max);
        if unit == PlotUnit::Time {
            let least = values().copied().reduce(f64::min).unwrap_or(100.0);
            let low = 10_f64.powf(least.max(1.0).log10().floor());
            let high = 10_f64.powf(most.max(low * 10.0).log10().ceil());
            return Self { low, high };
        }
        let most = most.max(2.0);
        let power = 10_f64.powf(most.log10().floor());
        let high = [1.0, 2.0, 5.0].map(|factor| power * factor).into_iter();
        let high = high.filter(|high| *high >= most);
        let high = high.fold(power * 10.0, f64::min);
        Self { low: 0.0, high }
    }

    fn y(&self, value: f64) -> f64 {
        let share = if self.low > 0.0 {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            value / self.high
        };
        BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.low == 0.0 {
            return vec![0.0, self.high / 2.0, self.high];
        }
        let decades = successors(Some(self.low), |tick| Some(tick * 10.0));
        decades.take_while(|tick| *tick < self.high * 1.1).collect()
    }
}

fn plot(
    page: &mut String,
    (title, unit): (&str, PlotUnit),
    time: &TimeAxis,
    lines: &[PlotLine],
) -> fmt::Result {
    let axis = ValueAxis::new(unit, lines);
    let text = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), |it| unit.text(it));
    let length = span(Duration::from_secs(time.end - time.begin));
    let mut summary = format!("{title} over {length}");
    write!(page, "<figure><figcaption><b>{title}</b>")?;
    for PlotLine(name, class, values) in lines {
        let last = text(values.last().copied().flatten());
        let most = text(values.iter().copied().flatten().reduce(f64::max));
        write!(page, " <span class={class}>{name} {last}</span>")?;
        write!(summary, "; {name}: last {last}, highest {most}")?;
    }
    write!(
        page,
        "</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img aria-label=\"{summary}\">"
    )?;
    for tick in axis.ticks() {
        let (y, label) = (axis.y(tick), unit.text(tick));
        let (x, below) = (LEFT - 5.0, y + 4.0);
        write!(
            page,
            "<path class=grid d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text x={x} y={below:.1} text-anchor=end>{label}</text>"
        )?;
    }
    let middle = (time.begin + time.end) / 2;
    for (at, anchor, zone) in [
        (time.begin, "start", ""),
        (middle, "middle", ""),
        (time.end, "end", " UTC"),
    ] {
        let (x, at) = (time.x(at), clock(at));
        write!(
            page,
            "<text x={x:.1} y={HEIGHT} dy=-3 text-anchor={anchor}>{at}{zone}</text>"
        )?;
    }
    for PlotLine(name, class, values) in lines {
        let (mut path, mut is_drawn) = (String::new(), false);
        for (at, value) in time.at.iter().zip(values) {
            if let Some(value) = value {
                let (x, y) = (time.x(*at), axis.y(*value));
                // Starts each segment with a short dash, so that a single value between gaps is
                // visible.
                let (from, dot) = if is_drawn { ("L", "") } else { ("M", "h1") };
                write!(path, "{from}{x:.1} {y:.1}{dot}")?;
            }
            is_drawn = value.is_some();
        }
        let values: Vec<String> = values.iter().map(|it| text(*it)).collect();
        let values = values.join(",");
        write!(
            page,
            "<path class={class} data-n=\"{name}\" data-v=\"{values}\" d=\"{path}\"/>"
        )?;
    }
    page.write_str("<path class=cursor d=\"\"/></svg><output aria-live=off></output></figure>\n")
}

/// Maximum length of the time axis in seconds.
const HOUR: u64 = 3600;
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 352.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 128.0;
