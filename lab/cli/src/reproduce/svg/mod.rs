// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A figure as SVG: one panel per quantity, the paper's numbers hollow and the model's filled.
//!
//! - **Layout** a legend on top, then the panels: curves where the rows' labels differ in one number alone (`curves`), else a line per row, its label
//!   on the left, a range of the paper's as a bar. Below a quantity that has many numbers of the paper: the model's against them (`scatter`)
//! - **Order** the same figure gives the same bytes
//! - **Not here** lines and dots (memlift_bench::drawing)

mod curves;
mod scatter;

use memlift_bench::drawing::{document, dot, label, line, step};
use memlift_model::reproduce::{Figure, Paper, Role, Row};

use super::{number, quantities};

const LEFT: f64 = 210.0;
const WIDTH: f64 = 820.0;
const RIGHT: f64 = 40.0;
const LINE: f64 = 20.0;
const PAPER: &str = "#444444";
const MODEL: &str = "#0b6fb8";
const RANGE: &str = "#bbbbbb";

/// Returns the SVG document of one figure.
pub fn draw(figure: &Figure) -> String {
    let mut body = String::new();
    label(&mut body, 16.0, 26.0, "start", 16, figure.title);
    label(&mut body, 16.0, 46.0, "start", 11, figure.source);
    dot(&mut body, 22.0, 64.0, "#ffffff", PAPER);
    label(&mut body, 34.0, 68.0, "start", 12, "paper");
    dot(&mut body, 92.0, 64.0, MODEL, MODEL);
    label(&mut body, 104.0, 68.0, "start", 12, "model");
    dot(&mut body, 162.0, 64.0, "#ffffff", MODEL);
    label(&mut body, 174.0, 68.0, "start", 12, "model, fitted to or an input");
    if figure.rows.iter().any(|row| matches!(row.paper, Some(Paper::Between(..)))) {
        line(&mut body, (346.0, 64.0), (366.0, 64.0), RANGE, 9.0);
        label(&mut body, 374.0, 68.0, "start", 12, "paper, a range");
    }
    let mut top = 92.0;
    for quantity in quantities(figure) {
        let rows: Vec<&Row> = figure.rows.iter().filter(|row| row.quantity == quantity).collect();
        label(&mut body, LEFT, top, "start", 13, quantity);
        top = match curves::of(&rows) {
            Some(curves) => curves.draw(&mut body, top),
            None => lines(&mut body, top, &rows),
        };
        if let Some(below) = scatter::draw(&mut body, top, &rows) {
            top = below;
        }
    }
    document(WIDTH, top - 16.0, &body)
}

/// The least and the largest number of these rows, the paper's and the model's.
fn extent(rows: &[&Row]) -> (f64, f64) {
    let values = rows.iter().flat_map(|row| match row.paper {
        Some(Paper::Value(value)) => vec![value, row.model],
        Some(Paper::Between(low, high)) if high.is_infinite() => vec![low, row.model],
        Some(Paper::Between(low, high)) => vec![low, high, row.model],
        None => vec![row.model],
    });
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// The ends of an axis over these rows, and the step of its ticks.
fn axis(rows: &[&Row]) -> (f64, f64, f64) {
    let (low, high) = extent(rows);
    // From zero, unless that would squeeze what is compared into the last third.
    let low = if low < 0.66 * high || low == high { 0.0 } else { low - 0.15 * (high - low).max(0.02 * high) };
    let tick = step(high - low);
    ((low / tick).floor() * tick, (high / tick).ceil() * tick, tick)
}

/// A panel with a line for each row; the place of what comes next.
fn lines(body: &mut String, top: f64, rows: &[&Row]) -> f64 {
    let (low, high, tick) = axis(rows);
    // A range without an upper end goes to that of the axis.
    let x = |value: f64| LEFT + (value.min(high) - low) / (high - low).max(1e-12) * (WIDTH - LEFT - RIGHT);
    let bottom = top + 8.0 + LINE * rows.len() as f64;
    for index in 0..=((high - low) / tick).round() as usize {
        let value = low + index as f64 * tick;
        line(body, (x(value), top + 8.0), (x(value), bottom), "#dddddd", 1.0);
        label(body, x(value), bottom + 14.0, "middle", 11, &round(value));
    }
    for (index, row) in rows.iter().enumerate() {
        let y = top + 8.0 + LINE * (index as f64 + 0.5);
        label(body, LEFT - 10.0, y + 4.0, "end", 12, &row.label);
        match row.paper {
            Some(Paper::Value(value)) => {
                line(body, (x(value), y), (x(row.model), y), "#999999", 1.2);
                dot(body, x(value), y, "#ffffff", PAPER);
            }
            Some(Paper::Between(low, high)) => line(body, (x(low), y), (x(high), y), RANGE, 9.0),
            None => {}
        }
        dot(body, x(row.model), y, filling(row, MODEL), MODEL);
    }
    bottom + 44.0
}

/// The inside of the dot of a model's number: empty where it was fitted to or went in.
fn filling(row: &Row, color: &'static str) -> &'static str {
    if row.role == Role::Predicted { color } else { "#ffffff" }
}

/// A tick's number, without zeros behind the point.
fn round(value: f64) -> String {
    let text = number(value);
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use memlift_model::reproduce::{Figure, Role, Row};

    use super::*;

    fn row(label: &str, paper: Option<Paper>, model: f64) -> Row {
        Row { label: label.into(), quantity: "q <1>", paper, model, role: Role::Predicted }
    }

    #[test]
    fn every_row_is_drawn_inside_and_text_is_escaped() {
        let figure = Figure {
            name: "toy",
            title: "a < b & c",
            source: "\"nowhere\"",
            rows: vec![
                row("one", Some(Paper::Value(1.0)), 2.0),
                row("two", Some(Paper::Between(1.5, 1.9)), 1.0),
                row("three", None, 0.5),
                row("four", Some(Paper::Between(1.0, f64::INFINITY)), 1.7),
            ],
            verdicts: Vec::new(),
            notes: Vec::new(),
        };
        let drawn = draw(&figure);
        assert!(
            drawn.contains("a &lt; b &amp; c")
                && drawn.contains("&quot;nowhere&quot;")
                && !drawn.contains("<1>")
        );
        // Three of the legend, four models, one number of the paper.
        assert_eq!(drawn.matches("<circle").count(), 8);
        assert_eq!(drawn.matches("<text").count(), drawn.matches("</text>").count());
        let places =
            drawn.split("cx=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
        assert!(places.into_iter().all(|x| (0.0..=WIDTH).contains(&x)));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }

    #[test]
    fn equal_numbers_still_have_an_axis() {
        let rows = vec![row("one", Some(Paper::Value(1.0)), 1.0)];
        let figure =
            Figure { name: "toy", title: "", source: "", rows, verdicts: Vec::new(), notes: Vec::new() };
        let drawn = draw(&figure);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
    }
}
