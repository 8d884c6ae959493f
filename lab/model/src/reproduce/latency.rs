// SPDX-License-Identifier: Apache-2.0 OR MIT
//! PULSE, figure 10: where a request's time goes in the accelerator.
//!
//! - **Order** the four numbers are inputs; what is checked is that the state machine spends them, each as often as it should

use super::{Figure, Inputs, Paper, Role, Row, Verdict};
use crate::pulse::experiment::{self, TABLE};
use crate::pulse::{Shape, Timing};

pub(super) const TITLE: &str = "PULSE, figure 10: latency of the accelerator's parts";
const NS: &str = "each time, ns";

pub(super) fn run(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.pulse;
    // The paper has the scheduler alone in this figure.
    let timing = Timing { arbitration: crate::event::Time::ZERO, ..timing.clone() };
    let report = experiment::web_latency(&timing, Shape::built())?;
    let (spent, requests) = (report.spent, report.answers.len() as u64);
    let parts = [
        ("network stack", 430.0, spent.network, 2 * requests),
        ("scheduler", 5.1, spent.scheduler, TABLE.1 as u64 * requests),
        ("memory pipeline", 132.0, spent.memory, TABLE.1 as u64 * requests),
        ("logic pipeline", 10.0, spent.logic, TABLE.1 as u64 * requests),
    ];
    let rows = parts
        .iter()
        .map(|(label, paper, (time, times), _)| Row {
            label: (*label).to_owned(),
            quantity: NS,
            paper: Some(Paper::Value(*paper)),
            model: time.as_ps() as f64 / 1e3 / (*times).max(1) as f64,
            role: Role::Input,
        })
        .collect();
    let often = parts.iter().all(|(_, _, (_, times), wanted)| times == wanted);
    let inside = parts.iter().map(|(_, _, (time, _), _)| time.as_us()).sum::<f64>() / requests as f64;
    Ok(Figure {
        name: "pulse-fig10",
        title: TITLE,
        source: "Tang et al., ASPLOS '25, §6.2, figure 10",
        rows,
        verdicts: vec![Verdict {
            question: "each part as often as a request of 48 iterations needs it".into(),
            answer: format!("{inside:.2} µs of a request are the accelerator's"),
            holds: Some(often),
        }],
        notes: vec![
            "the last iteration of a walk has one instruction less: 7 for a key that is found".into(),
        ],
    })
}
