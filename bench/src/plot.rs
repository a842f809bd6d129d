//! Draws plots of a run as SVG files, which are stored next to its report. They fit the width of a phone screen.
//!
//! A bar shows the median of the rounds, and a thin line shows their range. The bars of a case are below its label. The
//! plot of a ramp shows the rates of attempted, succeeded and failed transactions against the requested rate. The
//! server is overloaded where the rate of succeeded transactions falls below that of attempted ones.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use becket_stats::units::show_bytes;

use crate::Error;
use crate::figure::{self, Figure};
use crate::figures;
use crate::result::{Case, Column, Growth, Outcome, Point};
use crate::{spread, table};

pub struct Plot<'a> {
    pub file: String,
    pub title: String,
    content: Content<'a>,
}

enum Content<'a> {
    Ramps(Vec<&'a Column>),
    Growth(&'a Column),
    Bars(Figure, Vec<Bar<'a>>),
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Returns the plots of a scenario: its ramps, and bar charts of the figures that answer its question.
pub fn of_outcome(outcome: &Outcome) -> Vec<Plot<'_>> {
    let mut plots = Vec::new();
    for (n, case) in outcome.cases.iter().enumerate() {
        let has_curve = |column: &&Column| column.curve.len() > 1;
        let columns: Vec<&Column> = case.columns.iter().filter(has_curve).collect();
        if !columns.is_empty() {
            plots.push(Plot {
                file: format!("{}-ramp-{}.svg", outcome.id, n + 1),
                title: format!("ramp {}", case.label).trim_end().to_owned(),
                content: Content::Ramps(columns),
            });
        }
    }
    for (n, case) in outcome.cases.iter().enumerate() {
        let growing = case.columns.iter().find(|column| !column.growth.is_empty());
        plots.extend(growing.map(|column| Plot {
            file: format!("{}-growth-{}.svg", outcome.id, n + 1),
            title: format!("growth of the memory, {}", case.label),
            content: Content::Growth(column),
        }));
    }
    for (n, figure) in figure::headlines(outcome).into_iter().enumerate() {
        let bars = bars(outcome, &figure);
        if bars.len() > 1 {
            let better = if figure.less_is_better {
                "less"
            } else {
                "more"
            };
            plots.push(Plot {
                file: format!("{}-{}.svg", outcome.id, n + 1),
                title: format!("{}; {better} is better", figure.heading),
                content: Content::Bars(figure, bars),
            });
        }
    }
    plots
}

impl Plot<'_> {
    /// Returns the plot as SVG text.
    ///
    /// # Errors
    /// Drawing to memory does not fail in practice.
    pub fn svg(&self) -> Result<String, Error> {
        let mut svg = String::new();
        let drawn = self.draw(&mut svg);
        drawn.map_err(|error| Error::Asked(format!("cannot draw {}: {error}", self.file)))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let height = match &self.content {
            Content::Ramps(columns) => RAMP_HEIGHT * columns.len() as u32,
            Content::Growth(_) => RAMP_HEIGHT,
            Content::Bars(_, bars) => BAR_HEIGHT * rows(bars).len() as u32 + 2 * MARGIN,
        };
        let size = (WIDTH, height + 2 * TITLE);
        let area = SVGBackend::with_string(svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        let inner = area.titled(&self.title, ("sans-serif", TITLE))?;
        match &self.content {
            Content::Ramps(columns) => draw_ramps(&inner, columns)?,
            Content::Growth(column) => draw_growth(&inner, column)?,
            Content::Bars(figure, bars) => draw_bars(&inner, figure, bars)?,
        }
        Ok(area.present()?)
    }
}

struct Bar<'a> {
    case: &'a Case,
    column: &'a Column,
    median: f64,
    range: (f64, f64),
}

fn bars<'a>(outcome: &'a Outcome, figure: &Figure) -> Vec<Bar<'a>> {
    let mut bars = Vec::new();
    for case in &outcome.cases {
        for column in &case.columns {
            let values = column.values(&figure.name);
            if let (Some(median), Some(range)) = (spread::median(&values), spread::range(&values)) {
                bars.push(Bar {
                    case,
                    column,
                    median,
                    range,
                });
            }
        }
    }
    bars
}

/// Row of a plot: the label of a case, or one of its bars.
enum PlotRow<'a> {
    Label(&'a str),
    Bar(&'a Bar<'a>),
}

fn rows<'a>(bars: &'a [Bar<'a>]) -> Vec<PlotRow<'a>> {
    let mut rows = Vec::new();
    let mut label = "";
    for bar in bars {
        if bar.case.label != label {
            label = &bar.case.label;
            rows.push(PlotRow::Label(label));
        }
        rows.push(PlotRow::Bar(bar));
    }
    rows
}

fn draw_bars(area: &Area<'_>, figure: &Figure, bars: &[Bar<'_>]) -> Drawn {
    let most = bars.iter().map(|bar| bar.range.1).fold(0.0, f64::max);
    let rows = rows(bars);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(30)
        .x_label_area_size(MARGIN)
        .y_label_area_size(LABELS)
        .build_cartesian_2d(0.0..most * 1.4, 0.0..rows.len() as f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .max_light_lines(1)
        .label_style(("sans-serif", SMALL))
        .axis_desc_style(("sans-serif", SMALL))
        .x_desc(&figure.heading)
        .x_labels(4)
        .x_label_formatter(&|value| figure.show(*value))
        .y_labels(0)
        .draw()?;
    let left = TextStyle::from(("sans-serif", SMALL)).pos(Pos::new(HPos::Left, VPos::Center));
    let right = left.pos(Pos::new(HPos::Right, VPos::Center));
    let bold = ("sans-serif", SMALL, FontStyle::Bold);
    let bold = TextStyle::from(bold).pos(Pos::new(HPos::Left, VPos::Center));
    // The chart numbers rows from the bottom.
    for (row, low) in rows.iter().rev().zip(0_u32..) {
        let (low, middle) = (f64::from(low), f64::from(low) + 0.5);
        // Returns a label drawn `distance` pixels to the right of a point of the chart.
        let text = |words: &str, from: f64, distance: i32, style: &TextStyle<'static>| {
            let words = Text::new(words.to_owned(), (distance, 0), style.clone());
            EmptyElement::at((from, middle)) + words
        };
        let bar = match row {
            PlotRow::Label(label) => {
                let start = 8 - LABELS as i32;
                chart.draw_series([text(label, 0.0, start, &bold)])?;
                continue;
            }
            PlotRow::Bar(bar) => bar,
        };
        let peer = table::heading(&bar.column.peer);
        chart.draw_series([text(peer, 0.0, -6, &right)])?;
        let corners = [(0.0, low), (bar.median, low + 1.0)];
        let mut filled = Rectangle::new(corners, colour(&bar.column.peer).filled());
        filled.set_margin(3, 3, 0, 0);
        chart.draw_series([filled])?;
        let (least, most) = bar.range;
        let range = [(least, middle), (most, middle)];
        chart.draw_series([PathElement::new(range, BLACK)])?;
        let value = figure.show(bar.median);
        chart.draw_series([text(&value, most.max(bar.median), 4, &left)])?;
    }
    Ok(())
}

fn draw_growth(area: &Area<'_>, column: &Column) -> Drawn {
    let points = || column.growth.iter();
    let most = points().map(|it| it.connections).max().unwrap_or(1);
    let largest = points().map(|it| it.pss_bytes.max(it.kernel_bytes));
    let largest = largest.max().unwrap_or(1).max(1);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(30)
        .x_label_area_size(MARGIN)
        .y_label_area_size(2 * MARGIN)
        .build_cartesian_2d(0..most, 0..largest)?;
    chart
        .configure_mesh()
        .max_light_lines(1)
        .label_style(("sans-serif", SMALL))
        .axis_desc_style(("sans-serif", SMALL))
        .x_labels(4)
        .y_labels(5)
        .x_desc("idle connections")
        .y_label_formatter(&|bytes| show_bytes(*bytes as f64))
        .draw()?;
    type Value = fn(&Growth) -> u64;
    let lines: [(&str, RGBColor, Value); 2] = [
        ("process", colour(&column.peer), |it| it.pss_bytes),
        ("kernel", RGBColor(150, 150, 150), |it| it.kernel_bytes),
    ];
    for (name, colour, value) in lines {
        let line = points().map(|it| (it.connections, value(it)));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.3))
        .draw()?;
    Ok(())
}

fn draw_ramps(area: &Area<'_>, columns: &[&Column]) -> Drawn {
    let points = || columns.iter().flat_map(|column| &column.curve);
    // Omit rates above twice the largest capacity, which only the tables show.
    let capacities = columns
        .iter()
        .filter_map(|column| column.median(figures::CAPACITY));
    let bound = capacities
        .reduce(f64::max)
        .map_or(f64::INFINITY, |most| most * 2.0);
    let asked = points().map(|point| point.asked_per_s);
    let most = asked.filter(|rate| *rate <= bound).fold(1.0, f64::max);
    let slowest = points().map(|point| point.p99_us / 1e3).fold(1.0, f64::max);
    for (column, area) in columns
        .iter()
        .zip(area.split_evenly((columns.len(), 1)).iter())
    {
        let curve: Vec<&Point> = column
            .curve
            .iter()
            .filter(|point| point.asked_per_s <= most)
            .collect();
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .caption(table::heading(&column.peer), ("sans-serif", TITLE))
            .x_label_area_size(MARGIN)
            .y_label_area_size(2 * MARGIN)
            .right_y_label_area_size(2 * MARGIN)
            .build_cartesian_2d(0.0..most, 0.0..most)?
            .set_secondary_coord(0.0..most, (0.1..slowest).log_scale());
        chart
            .configure_mesh()
            .max_light_lines(1)
            .label_style(("sans-serif", SMALL))
            .axis_desc_style(("sans-serif", SMALL))
            .x_labels(4)
            .y_labels(5)
            .x_label_formatter(&|rate| format!("{rate:.0}"))
            .y_label_formatter(&|rate| format!("{rate:.0}"))
            .x_desc("requested transactions per second")
            .y_desc("transactions per second")
            .draw()?;
        chart
            .configure_secondary_axes()
            .label_style(("sans-serif", SMALL))
            .axis_desc_style(("sans-serif", SMALL))
            .y_desc("p99, ms (log scale)")
            .draw()?;
        type Value = fn(&Point) -> f64;
        let lines: [(&str, RGBColor, Value); 3] = [
            ("attempted", RGBColor(150, 150, 150), |p| p.attempted_per_s),
            ("succeeded", RGBColor(20, 140, 60), |p| p.succeeded_per_s),
            ("failed", RGBColor(200, 30, 30), |p| p.failed_per_s),
        ];
        for (name, colour, value) in lines {
            let line = curve
                .iter()
                .map(|point| (point.asked_per_s, value(point).min(most)));
            chart
                .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
        }
        let late = curve
            .iter()
            .map(|point| (point.asked_per_s, (point.p99_us / 1e3).max(0.1)));
        chart
            .draw_secondary_series(late.map(|place| Circle::new(place, 3, BLUE)))?
            .label("p99")
            .legend(|(x, y)| Circle::new((x + 8, y), 3, BLUE));
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.3))
            .draw()?;
    }
    Ok(())
}

fn colour(peer: &str) -> RGBColor {
    match peer.split('@').next().unwrap_or(peer) {
        "becket" | "becket-load" => RGBColor(31, 95, 191),
        "hitch" => RGBColor(214, 126, 44),
        "haproxy" => RGBColor(86, 156, 76),
        "nginx" => RGBColor(150, 90, 170),
        "stunnel" => RGBColor(190, 70, 80),
        peer if figures::is_floor(peer) => RGBColor(190, 190, 190),
        _ => RGBColor(110, 110, 110),
    }
}

pub const WIDTH: u32 = 420;
pub const TITLE: u32 = 17;
pub const SMALL: u32 = 15;
pub const MARGIN: u32 = 40;
/// Space for the names of bars, in pixels.
const LABELS: u32 = 165;
const BAR_HEIGHT: u32 = 22;
pub const RAMP_HEIGHT: u32 = 260;
