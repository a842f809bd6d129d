//! The whole run in one picture: a row per scenario, a dot per case.

use super::svg::{ROW, Svg, WIDTH, escape};
use crate::figure;
use crate::figures;
use crate::result::Run;
use crate::scenario::Measure;
use crate::{catalog, verdict};

/// Draws what becket needs as a multiple of what the best of the others needs, in the main figure of each scenario.
/// A figure of which more is better is turned round.
pub fn chart(run: &Run) -> Option<String> {
    // Who is scraped stands beside itself.
    let others = run
        .scenarios
        .iter()
        .filter(|it| it.measure != Measure::Scraped);
    let rows = others.filter_map(|outcome| {
        let figure = figure::shown(outcome).into_iter().next()?;
        let dots = outcome.cases.iter().filter_map(|case| {
            let rival = verdict::rival(case, &figure)?;
            let ours = verdict::subject(case)?.median(&figure.name)?;
            let ratio = ours / rival.median(&figure.name)?;
            let ratio = if figure.less_is_better {
                ratio
            } else {
                1.0 / ratio
            };
            let standing = verdict::of_rivals(case, &figure, run.certainty());
            let word = match standing {
                Some(standing) => standing.word,
                // Measured once, over thousands.
                None if figure.name == figures::PSS_PER_CONNECTION && ratio < 0.9 => "better",
                None if figure.name == figures::PSS_PER_CONNECTION && ratio > 1.1 => "worse",
                None => "not distinguishable",
            };
            Some((
                ratio,
                word,
                format!("{}: {ratio:.2} times {}, {word}", case.label, rival.peer),
            ))
        });
        let dots: Vec<(f64, &str, String)> = dots.filter(|(ratio, ..)| *ratio > 0.0).collect();
        let title = catalog::find(std::slice::from_ref(&outcome.id)).ok();
        let title = title.and_then(|found| Some(found.first()?.title.clone()));
        (!dots.is_empty()).then(|| (title.unwrap_or_else(|| outcome.id.clone()), dots))
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return None;
    }
    let height = rows.len() as f64 * ROW + 40.0;
    let mut svg = Svg::new(
        WIDTH,
        height,
        "what becket needs beside the best of the others",
    );
    let bottom = rows.len() as f64 * ROW + 8.0;
    for (ratio, label) in TICKS {
        let class = if *ratio == 1.0 { "limit" } else { "grid" };
        svg.line(class, (at(*ratio), 4.0), (at(*ratio), bottom));
        svg.text("tick under", (at(*ratio), bottom + 18.0), label);
    }
    for (index, (title, dots)) in rows.iter().enumerate() {
        let y = index as f64 * ROW + ROW / 2.0 + 6.0;
        svg.text("name", (LEFT - 10.0, y + 4.0), title);
        for (ratio, word, said) in dots {
            let class = match *word {
                "better" => "dot",
                "worse" => "dot worse",
                _ => "dot unclear",
            };
            let x = at(*ratio);
            let said = escape(said);
            svg.put(format_args!(
                "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"><title>{said}</title></circle>\n"
            ));
        }
    }
    Some(svg.finish())
}

/// The place of a ratio: a quarter at the left, four times at the right, what is beyond at the edge.
fn at(ratio: f64) -> f64 {
    let share = (ratio.clamp(0.25, 4.0).log2() + 2.0) / 4.0;
    LEFT + share * (WIDTH - LEFT - RIGHT)
}

const LEFT: f64 = 250.0;
const RIGHT: f64 = 30.0;
const TICKS: &[(f64, &str)] = &[
    (0.25, "0.25x"),
    (0.5, "0.5x"),
    (1.0, "best other"),
    (2.0, "2x"),
    (4.0, "4x"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_and_twice_are_as_far_from_the_line() {
        assert!((at(1.0) - at(0.5) - (at(2.0) - at(1.0))).abs() < 1e-9);
        assert!(at(0.01) >= LEFT && at(100.0) <= WIDTH);
    }

    #[test]
    fn a_run_without_rivals_has_no_picture() {
        assert_eq!(chart(&Run::default()), None);
    }
}
