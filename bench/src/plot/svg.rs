//! One writer of SVG. Colours are classes of the page's style sheet, so that a plot is right in light and in dark.

use std::fmt::Write;

/// An SVG that grows downwards.
pub(super) struct Svg {
    body: String,
    width: f64,
    pub(super) height: f64,
    title: String,
}

impl Svg {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        Self {
            body: String::new(),
            width,
            height,
            title: title.to_owned(),
        }
    }

    pub(super) fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let written = self.body.write_fmt(element);
        debug_assert!(written.is_ok(), "writing to a string does not fail");
    }

    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let text = escape(text);
        self.put(format_args!(
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>\n"
        ));
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.put(format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>\n",
            from.0, from.1, to.0, to.1
        ));
    }

    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let list: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.put(format_args!(
            "<polyline class=\"{class}\" points=\"{}\"/>\n",
            list.join(" ")
        ));
    }

    pub(super) fn finish(self) -> String {
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

/// Narrow, so that a telephone shows it with letters that can be read.
pub(super) const WIDTH: f64 = 640.0;
/// Height of a row of bars or dots.
pub(super) const ROW: f64 = 22.0;
