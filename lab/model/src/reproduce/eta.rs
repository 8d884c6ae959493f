// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PULSE, figure 11: what fewer logic pipelines per memory pipeline (η) buy per watt.
//!
//! - **Method** power is not published by machine, so the model gives two bounds: the same power for all (performance alone), and power
//!   proportional to the lookup tables in use (table 4). The paper's number has to lie between

use super::{Figure, Inputs, Paper, Role, Row, Verdict};
use crate::pulse::Shape;
use crate::pulse::experiment;

pub(super) const TITLE: &str = "PULSE, figure 11: performance per watt against η";
const SAME: &str = "per watt, power the same";
const AREA: &str = "per watt, power as lookup tables";
/// Memory pipelines beside one logic pipeline, and lookup tables in percent (table 4).
const MACHINES: [(usize, f64); 4] = [(1, 5.88), (2, 7.44), (3, 8.32), (4, 9.19)];
/// At η = 1/4, as a multiple of η = 1 (§6.2).
const QUARTER: f64 = 1.9;

pub(super) fn run(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.pulse;
    let mut rows = Vec::new();
    let mut first = None;
    for (memory, tables) in MACHINES {
        let mops = experiment::web_service(timing, Shape::disaggregated(1, memory))?.mops;
        let (one, area) = *first.get_or_insert((mops, tables));
        let paper = match memory {
            1 => Some(Paper::Value(1.0)),
            4 => Some(Paper::Value(QUARTER)),
            _ => None,
        };
        let label = format!("η = 1/{memory}");
        // Everything is a multiple of the first.
        let role = if memory == 1 { Role::Input } else { Role::Predicted };
        let row = |quantity, model| Row { label: label.clone(), quantity, paper, model, role };
        rows.push(row(SAME, mops / one));
        rows.push(row(AREA, mops / one * area / tables));
    }
    let last =
        |quantity: &str| rows.iter().rev().find(|row| row.quantity == quantity).map_or(0.0, |row| row.model);
    let (low, high) = (last(AREA), last(SAME));
    let rises = |quantity: &str| {
        let of: Vec<f64> = rows.iter().filter(|row| row.quantity == quantity).map(|row| row.model).collect();
        of.windows(2).all(|pair| pair[1] > pair[0])
    };
    let verdicts = vec![
        Verdict {
            question: "1.9 at η = 1/4 lies between the bounds".into(),
            answer: format!("{low:.2} to {high:.2}"),
            holds: Some((low..=high).contains(&QUARTER)),
        },
        Verdict {
            question: "it rises as η falls, with either bound".into(),
            answer: format!("the same power: {}; as lookup tables: {}", rises(SAME), rises(AREA)),
            holds: Some(rises(SAME) && rises(AREA)),
        },
    ];
    Ok(Figure {
        name: "pulse-fig11",
        title: TITLE,
        source: "Tang et al., ASPLOS '25, §6.2, figure 11; lookup tables of table 4",
        rows,
        verdicts,
        notes: vec!["the paper prints its bars without numbers; 1.9 is from the text".into()],
    })
}
