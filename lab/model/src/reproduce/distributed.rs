// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PULSE, figure 9: walks over several nodes, routed by the switch or over the client (PULSE-ACC).
//!
//! - **Method** scans of table 3's lengths whose leaves lie on one or two nodes; the share of steps that leave a node is an input, at
//!   both ends of what §6.1 states. What is compared is PULSE-ACC divided by PULSE

use super::{Figure, Inputs, Paper, Role, Row, Verdict};
use crate::pulse::Shape;
use crate::pulse::experiment;
use crate::pulse::workload::Scans;

pub(super) const TITLE: &str = "PULSE, figure 9: crossing nodes at the switch or over the client";
const LATENCY: &str = "latency, PULSE-ACC / PULSE";
const MOPS: &str = "throughput, PULSE-ACC / PULSE";
/// Name, iterations (table 3; BTrDB's shortest window), values of a leaf: t_c / t_d is 0.65 and 0.71 then (table 3: 0.63, 0.71).
pub(super) const WORKLOADS: [(&str, usize, usize); 2] = [("WiredTiger", 25, 9), ("BTrDB 1 s", 38, 10)];

pub(super) fn run(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.pulse;
    let mut rows = Vec::new();
    for (name, length, values) in WORKLOADS {
        for (nodes, elsewhere) in [(1, 0), (2, 100_000), (2, 300_000)] {
            let scans = Scans { length, values, nodes, elsewhere };
            let pulse = experiment::scans(timing, Shape::built(), scans)?;
            let over = Shape { over_client: true, ..Shape::built() };
            let client = experiment::scans(timing, over, scans)?;
            let label = match nodes {
                1 => format!("{name}, 1 node"),
                _ => format!("{name}, 2 nodes, {} %", elsewhere / 10_000),
            };
            let paper = if nodes == 1 { Paper::Value(1.0) } else { Paper::Between(1.02, 1.15) };
            let row = |quantity, paper, model| Row {
                label: label.clone(),
                quantity,
                paper: Some(paper),
                model,
                role: Role::Predicted,
            };
            rows.push(row(LATENCY, paper, client.latency_us / pulse.latency_us));
            rows.push(row(MOPS, Paper::Value(1.0), client.mops / pulse.mops));
        }
    }
    let inside = |quantity: &str, most: f64| {
        rows.iter()
            .filter(|row| row.quantity == quantity)
            .all(|row| row.paper.is_some_and(|paper| paper.deviation(row.model).abs() <= most))
    };
    let verdicts = vec![
        Verdict {
            question: "latency over the client inside of the paper's range, equal on one node".into(),
            answer: spread(&rows, LATENCY),
            holds: Some(inside(LATENCY, 1e-9)),
        },
        Verdict {
            question: "throughput the same within 2 %".into(),
            answer: spread(&rows, MOPS),
            holds: Some(inside(MOPS, 0.02)),
        },
    ];
    Ok(Figure {
        name: "pulse-fig9",
        title: TITLE,
        source: "Tang et al., ASPLOS '25, §6.1, §6.2, figure 9; table 3",
        rows,
        verdicts,
        notes: vec![
            format!("a crossing takes {}, the middle of 5 to 10 us (§6.1); over the client {} more", timing.crossing, timing.bounce),
            "the paper states the range over its workloads and no number for one; host time is that of the web service (table 4)".into(),
        ],
    })
}

fn spread(rows: &[Row], quantity: &str) -> String {
    let of = || rows.iter().filter(|row| row.quantity == quantity).map(|row| row.model);
    format!("{:.3} to {:.3}", of().fold(f64::INFINITY, f64::min), of().fold(0.0, f64::max))
}
