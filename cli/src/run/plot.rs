// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The curve of a profile, for a terminal and as SVG.
//!
//! - **Layout** x: budget in % of the job's need, falling to the right; y: run time as a multiple of the unlimited one
//! - **Not here** the runs: profile.rs

use std::fmt::Write;

/// Columns of the longest bar in a terminal.
const COLUMNS: usize = 50;
/// Multiples of the run time above which only that is said.
const MOST: f64 = 20.0;

/// One budget of a drawing.
#[derive(Clone, Copy, Debug)]
pub struct Dot {
    /// Budget in percent of the job's need.
    pub percent: f64,
    /// Run time as a multiple of that without a tight budget.
    pub slow_down: f64,
    /// True if the job ended as it did without a tight budget.
    pub ended_well: bool,
    /// True if this is the smallest budget that is good enough.
    pub chosen: bool,
}

/// Returns a multiple of the run time as text.
pub fn times(slow_down: f64) -> String {
    if slow_down > MOST { format!("more than {MOST:.0}×") } else { format!("{slow_down:.2}×") }
}

/// Draws a bar per budget.
pub fn terminal(dots: &[Dot]) -> String {
    let height = |dot: &Dot| dot.slow_down.min(MOST);
    let most = dots.iter().map(height).fold(1.0, f64::max);
    let mut text = String::new();
    for dot in dots {
        let bar = "█".repeat(((height(dot) / most * COLUMNS as f64) as usize).clamp(1, COLUMNS));
        let end = if dot.ended_well { "" } else { "  did not end well" };
        let _ = writeln!(text, "{:>5.0} %  {bar} {}{end}", dot.percent, times(dot.slow_down));
    }
    text.pop();
    text
}

/// Draws run time over memory as SVG: a line through `curve` (percent, multiple of the run time) and a dot per run.
pub fn svg(curve: &[(f64, f64)], dots: &[Dot], accepted: f64) -> String {
    let (width, height, margin) = (640.0, 400.0, 60.0);
    let all = || curve.iter().copied().chain(dots.iter().map(|dot| (dot.percent, dot.slow_down)));
    let most =
        all().map(|(_, slow_down)| slow_down.min(MOST)).fold(accepted.clamp(1.0, MOST), f64::max) * 1.1;
    let largest = all().map(|(percent, _)| percent).fold(100.0, f64::max);
    let least = all().map(|(percent, _)| percent).fold(largest, f64::min).min(largest - 10.0);
    let x = |percent: f64| margin + (largest - percent) / (largest - least) * (width - 2.0 * margin);
    let y = |slow_down: f64| height - margin - slow_down.min(most) / most * (height - 2.0 * margin);
    let (bottom, right) = (height - margin, width - margin);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <path d=\"M{margin} {margin}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{center}\" y=\"{label}\" text-anchor=\"middle\">budget, % of what the job needs</text>\n\
         <text x=\"{margin}\" y=\"{title}\">run time, × unlimited</text>\n\
         <path d=\"M{margin} {limit:.1}H{right}\" stroke=\"gray\" stroke-dasharray=\"4 4\"/>\n",
        center = width / 2.0,
        label = height - 15.0,
        title = margin - 15.0,
        limit = y(accepted),
    );
    let tick = |svg: &mut String, percent: f64| {
        let (at, under) = (x(percent), bottom + 16.0);
        let _ =
            writeln!(svg, "<text x=\"{at:.1}\" y=\"{under:.1}\" text-anchor=\"middle\">{percent:.0}</text>");
    };
    if dots.len() < 3 {
        for percent in
            (0..=100).step_by(10).map(f64::from).filter(|percent| (least..=largest).contains(percent))
        {
            tick(&mut svg, percent);
        }
    }
    let line: Vec<String> =
        curve.iter().map(|(percent, slow_down)| format!("{:.1},{:.1}", x(*percent), y(*slow_down))).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"steelblue\" stroke-width=\"2\"/>",
        line.join(" ")
    );
    for dot in dots {
        let colour = match (dot.ended_well, dot.chosen) {
            (false, _) => "firebrick",
            (true, true) => "seagreen",
            (true, false) => "steelblue",
        };
        let (at, over) = (x(dot.percent), y(dot.slow_down));
        let _ = writeln!(
            svg,
            "<circle cx=\"{at:.1}\" cy=\"{over:.1}\" r=\"4\" fill=\"{colour}\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{}</text>",
            over - 8.0,
            times(dot.slow_down)
        );
        if dots.len() >= 3 {
            tick(&mut svg, dot.percent);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_is_drawn_and_the_chosen_one_stands_out() {
        let dots = [
            Dot { percent: 80.0, slow_down: 1.1, ended_well: true, chosen: true },
            Dot { percent: 60.0, slow_down: 2114.0, ended_well: false, chosen: false },
        ];
        let text = terminal(&dots);
        assert!(text.contains("1.10×") && text.contains("more than 20×  did not end well"), "{text}");
        let svg = svg(&[(100.0, 1.0), (80.0, 1.1), (60.0, 30.0)], &dots, 1.25);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("seagreen") && svg.contains("firebrick") && svg.ends_with("</svg>\n"));
        let line = svg.split_once("<polyline points=\"").and_then(|(_, rest)| rest.split_once('"'));
        let heights =
            line.expect("a line").0.split(' ').filter_map(|point| point.split_once(',')?.1.parse().ok());
        assert!(heights.is_sorted_by(|one: &f64, other| one >= other), "{svg}");
    }
}
