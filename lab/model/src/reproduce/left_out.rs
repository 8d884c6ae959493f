// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fitted scalars without the row that they are judged on: each row is left out in turn, the scalars are fitted on the others, and the machine
//! predicts the row.
//!
//! - **Method** rocket-fig9: the `start` of the least mean distance over the other rows, which makes one of them exact. pulse-table4: least
//!   squares of `host` and `arbitration` over the other rows' latencies, which are linear in both; the machine then runs with the rounded values.
//!   dmu-fig19 and smartdimm-fig10: the one row that a scalar was fitted to, with the scalar that another number of the figure gives
//! - **Rule** a scalar that is fitted on the only number that it has is told in [`ALONE`], with what is predicted instead

use super::{Inputs, Paper, dmu, pipelines, rocket, smartdimm};
use crate::event::Time;
use crate::{dsa, pulse};

/// A row, predicted with scalars that never saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// Figure of the row.
    pub figure: &'static str,
    /// The row, with its unit.
    pub row: String,
    /// The scalars that were fitted on the other rows.
    pub scalars: String,
    /// The paper's number, or its range.
    pub paper: Paper,
    /// The model's number with the shipped scalars.
    pub shipped: f64,
    /// The model's number with these scalars.
    pub model: f64,
}

impl LeftOut {
    /// Distances from the paper's number, as parts of it: with the shipped scalars, without this row.
    #[must_use]
    pub fn deviations(&self) -> (f64, f64) {
        (self.paper.deviation(self.shipped), self.paper.deviation(self.model))
    }
}

/// Fitted scalars of which no row can be left out: figure, scalars, why.
pub const ALONE: [(&str, &str, &str); 1] = [(
    "nearpm-fig17",
    "command, cpu_line",
    "the figure prints two numbers, one for each: neither is left without the other. Figures 1, 15, 16, 18, 19 and 20 are predicted with them",
)];

/// All rows that can be left out.
///
/// # Errors
/// If a machine is impossible or gives a wrong answer.
pub fn left_out(inputs: &Inputs) -> Result<Vec<LeftOut>, String> {
    let mut found = dsa_rows(&inputs.dsa)?;
    found.extend(pulse_rows(&inputs.pulse)?);
    let (paper, shipped, model, file_raw) = dmu::left_out(&inputs.dmu)?;
    found.push(LeftOut {
        figure: "dmu-fig19",
        row: "medium file, without, %".into(),
        scalars: format!("file_raw {file_raw} (large file, without)"),
        paper: Paper::Value(paper),
        shipped,
        model,
    });
    let (paper, shipped, model, contention) = smartdimm::left_out(&inputs.smartdimm)?;
    found.push(LeftOut {
        figure: "smartdimm-fig10",
        row: "10 MB cache, most, KB".into(),
        scalars: format!("contention {contention} (50 MB cache)"),
        paper,
        shipped,
        model,
    });
    Ok(found)
}

/// All but one of these.
fn others(count: usize, left: usize) -> impl Iterator<Item = usize> + Clone {
    (0..count).filter(move |index| *index != left)
}

fn dsa_rows(timing: &dsa::Timing) -> Result<Vec<LeftOut>, String> {
    let bare = dsa::Timing { start: Time::ZERO, ..timing.clone() };
    let rows = rocket::sizes();
    let base: Vec<f64> = rows
        .iter()
        .map(|(bytes, _)| Ok(dsa::experiment::latency(&bare, *bytes)?.0.as_us()))
        .collect::<Result<_, String>>()?;
    let mut found = Vec::new();
    for (left, (bytes, paper)) in rows.iter().enumerate() {
        let others = others(rows.len(), left);
        let off = |start: f64| -> f64 {
            others.clone().map(|row| ((base[row] + start) / rows[row].1 - 1.0).abs()).sum()
        };
        let exact = others.clone().map(|row| (rows[row].1 - base[row]).max(0.0));
        let start = exact.min_by(|one, other| off(*one).total_cmp(&off(*other))).unwrap_or(0.0);
        found.push(LeftOut {
            figure: "rocket-fig9",
            row: format!("{bytes} B, us"),
            scalars: format!("start {:.0} ns", 1e3 * start),
            paper: Paper::Value(*paper),
            shipped: base[left] + timing.start.as_us(),
            model: base[left] + start,
        });
    }
    Ok(found)
}

fn pulse_rows(timing: &pulse::Timing) -> Result<Vec<LeftOut>, String> {
    let rows = pipelines::latencies();
    let with = |host: Time, arbitration: Time, row: usize| -> Result<f64, String> {
        let timing = pulse::Timing { host, arbitration, ..timing.clone() };
        Ok(pulse::experiment::web_latency(&timing, rows[row].0)?.latency_us())
    };
    let (probe, mut lines) = (Time::from_ns(10), Vec::new());
    for row in 0..rows.len() {
        let base = with(Time::ZERO, Time::ZERO, row)?;
        lines.push((base, (with(Time::ZERO, probe, row)? - base) / 10.0));
    }
    let mut found = Vec::new();
    for (left, (shape, paper)) in rows.iter().enumerate() {
        // Of relative distances: (base + host + slope * arbitration) / paper = 1.
        let (mut a, mut b, mut c, mut d, mut e) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for row in others(rows.len(), left) {
            let (paper, (base, slope)) = (rows[row].1, lines[row]);
            let (x, y, z) = (1.0 / paper, slope / paper, 1.0 - base / paper);
            (a, b, c, d, e) = (a + x * x, b + x * y, c + y * y, d + x * z, e + y * z);
        }
        let det = a * c - b * b;
        let (host, arbitration) = ((d * c - e * b) / det, (a * e - b * d) / det);
        let ns = |value: f64| Time::from_ns(value.round().max(0.0) as u64);
        let (host, arbitration) = (ns(1e3 * host), ns(arbitration));
        found.push(LeftOut {
            figure: "pulse-table4",
            row: format!("{}, us", pipelines::label(*shape)),
            scalars: format!("host {host}, arbitration {arbitration}"),
            paper: Paper::Value(*paper),
            shipped: with(timing.host, timing.arbitration, left)?,
            model: with(host, arbitration, left)?,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_that_never_saw_a_row_predict_it_nearly_as_well() {
        let found = left_out(&Inputs::shipped()).unwrap();
        assert_eq!(found.iter().filter(|row| row.figure == "rocket-fig9").count(), 17);
        assert_eq!(found.iter().filter(|row| row.figure == "pulse-table4").count(), 20);
        let mean = |figure: &str, of: fn(&LeftOut) -> f64| {
            let off: Vec<f64> = found.iter().filter(|row| row.figure == figure).map(of).collect();
            off.iter().map(|off| off.abs()).sum::<f64>() / off.len() as f64
        };
        // No row carries the fit of the latencies alone.
        assert!(mean("pulse-table4", |row| row.deviations().1) < 0.05);
        assert!(found.iter().all(|row| row.model.is_finite() && row.model > 0.0));
    }
}
