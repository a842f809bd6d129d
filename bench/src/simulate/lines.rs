//! Draws plots of a simulation over the number of hosts, with logarithmic axes.

use plotters::prelude::*;

use super::fan_out::FanOut;
use super::returns::Sharing;
use super::simulation::Simulation;
use crate::plot::{MARGIN, RAMP_HEIGHT, SMALL, TITLE, WIDTH};

/// Name and points of a line.
type PlotLine = (&'static str, Vec<(f64, f64)>);
type Cost = fn(&FanOut) -> f64;

/// Returns the plots: file, title and lines.
pub(super) fn plots(simulation: &Simulation) -> [(&'static str, &'static str, Vec<PlotLine>); 2] {
    let shares = Sharing::ALL.into_iter().enumerate().map(|(n, (_, name))| {
        let fleets = simulation.after_a_loss();
        let points = fleets.map(|it| (it.fleet.hosts as f64, it.resumed[n] * 100.0));
        (name, points.collect())
    });
    let costs: [(_, Cost); 4] = [
        ("UDP, MB/s", |it| it.udp_bytes / 1e6),
        ("store, MB/s", |it| it.store_bytes / 1e6),
        ("UDP, cores", |it| it.udp_cores),
        ("store, cores", |it| it.store_cores),
    ];
    let costs = costs.into_iter().map(|(name, cost)| {
        let each = simulation.fan_out.iter();
        (name, each.map(|it| (it.hosts as f64, cost(it))).collect())
    });
    let lost = "resumed after a host leaves, modulo, %";
    let cost = "cost of shared sessions for each host";
    [
        ("returns.svg", lost, shares.collect()),
        ("traffic.svg", cost, costs.collect()),
    ]
}

/// Returns the plot as SVG text.
///
/// # Errors
/// Drawing to memory does not fail in practice.
pub(super) fn svg(title: &str, lines: &[PlotLine]) -> Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, RAMP_HEIGHT + 2 * TITLE));
    let area = area.into_drawing_area();
    area.fill(&WHITE)?;
    let inner = area.titled(title, ("sans-serif", TITLE))?;
    let mut chart = ChartBuilder::on(&inner)
        .margin(8)
        .x_label_area_size(MARGIN)
        .y_label_area_size(2 * MARGIN)
        .build_cartesian_2d((1.0..1500.0).log_scale(), (LEAST..200.0).log_scale())?;
    chart
        .configure_mesh()
        .max_light_lines(1)
        .label_style(("sans-serif", SMALL))
        .axis_desc_style(("sans-serif", SMALL))
        .x_label_formatter(&f64::to_string)
        .y_label_formatter(&f64::to_string)
        .x_desc("hosts")
        .draw()?;
    for (n, (name, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(n).to_rgba();
        let points = points.iter().map(|(x, y)| (*x, y.max(LEAST)));
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .draw()?;
    area.present()?;
    drop((chart, inner, area));
    Ok(svg)
}

/// Replaces 0 on a logarithmic axis.
const LEAST: f64 = 0.0001;
