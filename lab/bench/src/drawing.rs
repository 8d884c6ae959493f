// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Elements of drawings of numbers: text, lines, dots and curves as SVG, axes whose ticks are round.
//!
//! - **Layout** each function adds elements to a text; coordinates are pixels, y grows downwards
//! - **Order** the same numbers give the same bytes
//! - **Not here** fonts, scripts and what is drawn: every viewer shows it without a network

use std::fmt::Write;

/// Text of XML and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A round step that gives about five ticks.
pub fn step(span: f64) -> f64 {
    let raw = (span / 5.0).max(1e-9);
    let power = 10_f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().map(|factor| factor * power).find(|step| *step >= raw).unwrap_or(raw)
}

/// Text at a place; `anchor` is start, middle or end.
pub fn label(out: &mut String, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
    let _ = writeln!(
        out,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}">{}</text>"#,
        escape(text)
    );
}

/// A straight line.
pub fn line(out: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), color: &str, width: f64) {
    let _ = writeln!(
        out,
        r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}" stroke-width="{width}"/>"#
    );
}

/// Adds a dot at (x, y).
pub fn dot(out: &mut String, x: f64, y: f64, fill: &str, stroke: &str) {
    let _ = writeln!(
        out,
        r#"<circle cx="{x:.1}" cy="{y:.1}" r="4.5" fill="{fill}" stroke="{stroke}" stroke-width="1.6"/>"#
    );
}

/// Straight lines from each point to the next, and a dot at each.
pub fn curve(out: &mut String, points: &[(f64, f64)], color: &str, width: f64) {
    let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="{width}"/>"#,
        places.join(" ")
    );
    for (x, y) in points {
        let _ = writeln!(out, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{:.1}" fill="{color}"/>"#, 1.5 + width);
    }
}

/// A document of this size around what was drawn.
pub fn document(width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" fill=\"#222222\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// A logarithmic axis over some values, a little wider than they are.
#[derive(Clone, Copy, Debug)]
pub struct LogAxis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl LogAxis {
    /// Between two pixels; None when no value is above zero.
    pub fn over(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Option<LogAxis> {
        let positive = values.into_iter().filter(|value| *value > 0.0 && value.is_finite());
        let (low, high) =
            positive.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        (high > 0.0).then(|| LogAxis { low: (low / 1.3).log10(), high: (high * 1.3).log10(), from, to })
    }

    /// Where a value lies.
    pub fn at(&self, value: f64) -> f64 {
        self.from + (value.log10() - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// The powers of `base` on it, at most about eight.
    pub fn ticks(&self, base: f64) -> Vec<f64> {
        let (low, high) = (self.low / base.log10(), self.high / base.log10());
        let stride = ((high - low) / 8.0).ceil().max(1.0) as usize;
        (low.ceil() as i32..=high.floor() as i32).step_by(stride).map(|power| base.powi(power)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!([step(1.0), step(44.0), step(0.3)], [0.2, 10.0, 0.1]);
    }

    #[test]
    fn a_logarithmic_axis_holds_its_values_and_round_ticks() {
        let axis = LogAxis::over([0.002, 0.0, f64::NAN, 30.0], 100.0, 0.0).expect("two values");
        assert!(axis.at(0.002) < 100.0 && axis.at(30.0) > 0.0 && axis.at(0.002) > axis.at(30.0));
        let ticks = axis.ticks(10.0);
        assert_eq!(ticks.len(), 4, "{ticks:?}");
        assert!(
            ticks.iter().zip([0.01, 0.1, 1.0, 10.0]).all(|(tick, want)| (tick - want).abs() < 1e-9),
            "{ticks:?}"
        );
        assert!(LogAxis::over([0.0], 0.0, 1.0).is_none());
    }
}
