// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model's numbers against the paper's: a dot for each row on the diagonal is a model that is right.
//!
//! - **Layout** a square with one scale either way, the diagonal, and lines 20 % above and below it
//! - **Not here** quantities with few numbers of the paper: there each row is read by itself

use memlift_bench::drawing::{dot, label, line};
use memlift_model::reproduce::{Paper, Row};

use super::{LEFT, MODEL, axis, filling, round};

/// Fewer numbers of the paper are no scatter.
const LEAST: usize = 12;
const SIDE: f64 = 240.0;
const NEAR: f64 = 0.2;

/// Draws the panel; the place of what comes next. None: the paper has too few numbers.
pub fn draw(body: &mut String, top: f64, rows: &[&Row]) -> Option<f64> {
    let points: Vec<(f64, &Row)> = rows
        .iter()
        .filter_map(|row| match row.paper {
            Some(Paper::Value(value)) => Some((value, *row)),
            _ => None,
        })
        .collect();
    if points.len() < LEAST {
        return None;
    }
    let (low, high, tick) = axis(rows);
    let bottom = top + SIDE;
    let part = |value: f64| (value - low) / (high - low).max(1e-12) * SIDE;
    let (x, y) = (|value: f64| LEFT + part(value), |value: f64| bottom - part(value));
    for index in 0..=((high - low) / tick).round() as usize {
        let value = low + index as f64 * tick;
        line(body, (x(value), top), (x(value), bottom), "#eeeeee", 1.0);
        line(body, (LEFT, y(value)), (LEFT + SIDE, y(value)), "#eeeeee", 1.0);
        label(body, x(value), bottom + 14.0, "middle", 11, &round(value));
        label(body, LEFT - 8.0, y(value) + 4.0, "end", 11, &round(value));
    }
    for (slope, color) in [(1.0, "#666666"), (1.0 + NEAR, "#bbbbbb"), (1.0 - NEAR, "#bbbbbb")] {
        // From where the line enters the square to where it leaves it.
        let (from, to) = ((low / slope).max(low), (high / slope).min(high));
        line(body, (x(from), y(slope * from)), (x(to), y(slope * to)), color, 1.0);
    }
    for (paper, row) in points {
        dot(body, x(paper), y(row.model), filling(row, MODEL), MODEL);
    }
    label(body, LEFT + SIDE + 12.0, top + 12.0, "start", 12, "model, upwards, against paper");
    label(body, LEFT + SIDE + 12.0, top + 28.0, "start", 12, "lines: equal, 20 % above and below");
    Some(bottom + 52.0)
}

#[cfg(test)]
mod tests {
    use super::super::WIDTH;
    use super::*;
    use memlift_model::reproduce::Role;

    #[test]
    fn many_numbers_are_a_scatter_inside_of_its_square_and_few_are_none() {
        let row = |index: u32| Row {
            label: index.to_string(),
            quantity: "q",
            paper: Some(Paper::Value(f64::from(index) + 1.0)),
            model: 1.3 * f64::from(index) + 0.5,
            role: Role::Predicted,
        };
        let rows: Vec<Row> = (0..20).map(row).collect();
        let rows: Vec<&Row> = rows.iter().collect();
        let mut body = String::new();
        let below = draw(&mut body, 50.0, &rows).expect("a scatter");
        assert_eq!(body.matches("<circle").count(), 20);
        for (name, range) in
            [("cx", LEFT..WIDTH), ("cy", 50.0..below), ("y1", 50.0..below), ("x2", 0.0..LEFT + SIDE + 0.1)]
        {
            let attribute = format!(" {name}=\"");
            let mut places = body
                .split(&attribute)
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
            assert!(places.all(|place| range.contains(&place)), "{name}: {body}");
        }
        assert!(draw(&mut body, 50.0, &rows[..LEAST - 1]).is_none());
    }
}
