// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `figure/*`: how near a machine comes to a figure of its paper, in counts that are the same everywhere.
//!
//! - **Method** `memlift reproduce` runs the figure; rows that were fitted to, or that go into the model, do not count. `ours` is the mean
//!   distance of the predicted rows that the paper has a number for, in percent of it. What was promised is in the verdicts:
//!   one `no` and the row is short

use memlift_model::reproduce::{Inputs, named};

use super::Stop;
use crate::definition::Definition;
use crate::{BenchError, Row};

/// Measures one row.
pub fn row(definition: &Definition, name: &str, quick: bool) -> Result<Row, Stop> {
    let failed =
        |problem: String| Stop::Failed(BenchError::Machine { name: definition.name.clone(), problem });
    let entry = named(name).ok_or_else(|| failed(format!("{name} is no figure")))?;
    let figure = entry.run(&Inputs::shipped()).map_err(failed)?;
    let off: Vec<f64> = figure.distances().into_iter().map(|part| 100.0 * part).collect();
    let answered =
        |holds| figure.verdicts.iter().filter(|verdict| verdict.holds == Some(holds)).count() as u64;
    let mut row = Row::new(definition);
    if !off.is_empty() {
        row.ours = Some(off.iter().sum::<f64>() / off.len() as f64);
    }
    for (what, count) in [
        ("predicted", off.len() as u64),
        ("within_20_percent", off.iter().filter(|off| **off <= 20.0).count() as u64),
        ("yes", answered(true)),
        ("no", answered(false)),
    ] {
        row.count.insert(what.to_owned(), count);
    }
    let no = figure.verdicts.iter().filter(|verdict| verdict.holds == Some(false));
    let no: Vec<String> = no.map(|verdict| format!("no: {}: {}", verdict.question, verdict.answer)).collect();
    row.qualifies = format!("{}; {}", figure.source, no.join("; "));
    row.verdict = definition.judge(&row, quick);
    Ok(row)
}
