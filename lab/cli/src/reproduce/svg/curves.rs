// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows that are points of curves: their labels differ in one number, which is the horizontal axis.
//!
//! - **Flow** labels ("16 KiB, sync", "threads: 3") ─▶ name of the curve, unit, number ─▶ a line through the model's numbers of each curve,
//!   the paper's as hollow dots, a range of the paper's as an error bar
//! - **Rule** every label has exactly one number and the same unit, numbers rise along each curve, and one curve at least has three points; else
//!   the rows are no curves
//! - **Layout** one panel; the axis is logarithmic where the largest number is more than 20 times the smallest; names of curves at their right ends

use memlift_bench::drawing::{LogAxis, curve, dot, label, line, step};
use memlift_model::reproduce::{Paper, Role, Row};

use super::{LEFT, WIDTH, axis, round};

const HEIGHT: f64 = 200.0;
/// Room for the names of the curves.
const NAMES: f64 = 130.0;
const COLORS: [&str; 6] = ["#0b6fb8", "#c2571a", "#2f8f4e", "#8b4fa8", "#a08000", "#555555"];
/// Half of the width of the bar at the end of an error bar.
const CAP: f64 = 4.0;

/// A curve: its name, and its rows with their places on the horizontal axis.
struct Curve<'a> {
    name: String,
    points: Vec<(f64, &'a Row)>,
}

/// The curves of a quantity.
pub struct Curves<'a> {
    unit: String,
    curves: Vec<Curve<'a>>,
    rows: Vec<&'a Row>,
}

/// A label's name of the curve, unit and number; none: it has no number, or several.
fn parsed(label: &str) -> Option<(String, String, f64)> {
    let begin = label.find(|letter: char| letter.is_ascii_digit())?;
    let rest = &label[begin..];
    let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
    let (before, number, after) = (label[..begin].trim_end(), &rest[..digits], &rest[digits..]);
    if after.contains(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    let (unit, name) = after.split_once(',').unwrap_or((after, ""));
    let (unit, name) = (unit.trim(), name.trim());
    let (name, unit) = match before.strip_suffix(':') {
        Some(title) => (name, title),
        None if before.is_empty() => (name, unit),
        None => (before.trim_end_matches(','), unit),
    };
    Some((name.to_owned(), unit.to_owned(), number.parse().ok()?))
}

/// These rows as curves; none: they are not.
pub fn of<'a>(rows: &[&'a Row]) -> Option<Curves<'a>> {
    let mut found = Curves { unit: String::new(), curves: Vec::new(), rows: rows.to_vec() };
    for (index, row) in rows.iter().enumerate() {
        let (name, unit, number) = parsed(&row.label)?;
        if index == 0 {
            found.unit = unit;
        } else if found.unit != unit {
            return None;
        }
        match found.curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => {
                if curve.points.last().is_some_and(|(last, _)| *last >= number) {
                    return None;
                }
                curve.points.push((number, row));
            }
            None => found.curves.push(Curve { name, points: vec![(number, row)] }),
        }
    }
    found.curves.iter().any(|curve| curve.points.len() >= 3).then_some(found)
}

impl Curves<'_> {
    /// Where numbers lie on the horizontal axis, and its ticks.
    fn horizontal(&self) -> (Box<dyn Fn(f64) -> f64>, Vec<f64>) {
        let numbers = || self.curves.iter().flat_map(|curve| curve.points.iter().map(|(number, _)| *number));
        let (low, high) = numbers()
            .fold((f64::INFINITY, 0.0_f64), |(low, high), number| (low.min(number), high.max(number)));
        let (from, to) = (LEFT, WIDTH - NAMES);
        if let Some(axis) = LogAxis::over(numbers(), from, to).filter(|_| low > 0.0 && high > 20.0 * low) {
            let base = if self.unit.ends_with("iB") { 2.0 } else { 10.0 };
            return (Box::new(move |number| axis.at(number)), axis.ticks(base));
        }
        let tick = step(high - low).max(if high - low >= 1.0 { 1.0 } else { 0.0 });
        let (low, high) = ((low / tick).floor() * tick, (high / tick).ceil() * tick);
        let ticks = (0..=((high - low) / tick).round() as usize).map(|index| low + index as f64 * tick);
        (
            Box::new(move |number| from + (number - low) / (high - low).max(1e-12) * (to - from)),
            ticks.collect(),
        )
    }

    /// Draws the panel; the place of what comes next.
    pub fn draw(&self, body: &mut String, top: f64) -> f64 {
        let (low, high, tick) = axis(&self.rows);
        let bottom = top + 8.0 + HEIGHT;
        let (x, ticks) = self.horizontal();
        let y = |value: f64| bottom - (value.min(high) - low) / (high - low).max(1e-12) * HEIGHT;
        for index in 0..=((high - low) / tick).round() as usize {
            let value = low + index as f64 * tick;
            line(body, (LEFT, y(value)), (WIDTH - NAMES, y(value)), "#dddddd", 1.0);
            label(body, LEFT - 8.0, y(value) + 4.0, "end", 11, &round(value));
        }
        for number in ticks {
            line(body, (x(number), bottom), (x(number), bottom + 4.0), "#999999", 1.0);
            label(body, x(number), bottom + 16.0, "middle", 11, &round(number));
        }
        label(body, WIDTH - NAMES + 10.0, bottom + 16.0, "start", 11, &self.unit);
        let mut ends: Vec<f64> = Vec::new();
        for (Curve { name, points }, color) in self.curves.iter().zip(COLORS.iter().cycle()) {
            for (number, row) in points {
                match row.paper {
                    Some(Paper::Value(value)) => dot(body, x(*number), y(value), "#ffffff", "#444444"),
                    Some(Paper::Between(from, to)) => {
                        let (x, from, to) = (x(*number), y(from), y(to));
                        line(body, (x, from), (x, to), "#777777", 1.2);
                        line(body, (x - CAP, from), (x + CAP, from), "#777777", 1.2);
                        line(body, (x - CAP, to), (x + CAP, to), "#777777", 1.2);
                    }
                    None => {}
                }
            }
            let places: Vec<(f64, f64)> =
                points.iter().map(|(number, row)| (x(*number), y(row.model))).collect();
            curve(body, &places, color, 2.0);
            for ((_, row), (x, y)) in points.iter().zip(&places) {
                if row.role != Role::Predicted {
                    dot(body, *x, *y, "#ffffff", color);
                }
            }
            // Names stand at the right ends of their curves, below those that are there already.
            let Some((_, end)) = places.last() else { continue };
            let mut at = *end;
            while let Some(other) = ends.iter().find(|other| (at - **other).abs() < 13.0) {
                at = other + 13.0;
            }
            if name.is_empty() {
                continue;
            }
            ends.push(at);
            line(body, (WIDTH - NAMES + 6.0, at), (WIDTH - NAMES + 18.0, at), color, 3.0);
            label(body, WIDTH - NAMES + 22.0, at + 4.0, "start", 12, name);
        }
        bottom + 52.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(label: &str, model: f64) -> Row {
        Row { label: label.into(), quantity: "q", paper: None, model, role: Role::Predicted }
    }

    /// Name of a curve and its numbers.
    type Named = (String, Vec<f64>);

    fn named(labels: &[&str]) -> Option<(String, Vec<Named>)> {
        let rows: Vec<Row> = labels.iter().map(|label| row(label, 1.0)).collect();
        let curves = of(&rows.iter().collect::<Vec<_>>())?;
        let points = |curve: &Curve<'_>| curve.points.iter().map(|(number, _)| *number).collect();
        Some((
            curves.unit.clone(),
            curves.curves.iter().map(|curve| (curve.name.clone(), points(curve))).collect(),
        ))
    }

    #[test]
    fn labels_that_differ_in_one_number_are_points_of_curves() {
        let numbers = || vec![1.0, 4.0, 16.0];
        let sizes =
            ["1 KiB, sync", "1 KiB, async", "4 KiB, sync", "4 KiB, async", "16 KiB, sync", "16 KiB, async"];
        let wanted = vec![("sync".to_owned(), numbers()), ("async".to_owned(), numbers())];
        assert_eq!(named(&sizes), Some(("KiB".to_owned(), wanted)));
        assert_eq!(
            named(&["threads: 1", "threads: 4", "threads: 16"]),
            Some(("threads".to_owned(), vec![(String::new(), numbers())]))
        );
        let lone = vec![("logging".to_owned(), numbers()), ("average".to_owned(), vec![4.0])];
        assert_eq!(
            named(&["logging, 1", "logging, 4", "logging, 16", "average, 4"]),
            Some((String::new(), lone))
        );
        for others in [
            &["PULSE 1×1", "PULSE 1×2", "PULSE 1×3"][..],
            &["1 KiB", "2 MiB", "3 MiB"],
            &["1 KiB", "4 KiB"],
            &["4 KiB", "1 KiB", "16 KiB"],
            &["1 KiB", "4 KiB", "no number"],
        ] {
            assert_eq!(named(others), None, "{others:?}");
        }
    }

    #[test]
    fn curves_have_all_points_inside_and_errors_have_bars() {
        let mut rows: Vec<Row> =
            [1, 4, 16, 64].map(|size| row(&format!("{size} KiB, sync"), f64::from(size))).into();
        rows[1].paper = Some(Paper::Value(5.0));
        rows[2].paper = Some(Paper::Between(10.0, 20.0));
        rows[3].role = Role::Fitted;
        let mut body = String::new();
        let rows: Vec<&Row> = rows.iter().collect();
        let below = of(&rows).expect("curves").draw(&mut body, 100.0);
        // Four of the model, one that is fitted, one of the paper.
        assert_eq!((body.matches("<circle").count(), body.matches("<polyline").count()), (6, 1), "{body}");
        assert_eq!(body.matches("#777777").count(), 3, "an error bar with its ends");
        let places = |name: &str| -> Vec<f64> {
            body.split(&format!(" {name}=\""))
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
                .collect()
        };
        assert!(places("cx").iter().all(|x| (LEFT..WIDTH - NAMES).contains(x)), "{body}");
        assert!(places("cy").iter().all(|y| (100.0..below).contains(y)), "{body}");
        assert!(body.contains(">sync<") && body.contains(">KiB<") && !body.contains("NaN"), "{body}");
    }
}
