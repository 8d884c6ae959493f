// SPDX-License-Identifier: Apache-2.0 OR MIT
//! DMU: what a job keeps of its performance beside another one, with and without (figures 19 and 20), and its accesses to compressed
//! pages (§V-A).
//!
//! - **Method** one scalar is fitted, `file_raw`, on GAP's number beside the medium file without DMU. All else is predicted, the whole of
//!   figure 20 included. One job with SSSP's sizes stands for GAP, one with the suite's for SPEC
//! - **Not here** the machine (`dmu`)

use super::{Figure, Inputs, Paper, Role, Row, Verdict};
use crate::dmu::Timing;
use crate::dmu::experiment::{Outcome, collocate};
use crate::dmu::timing::Job;

pub(super) const GRAPHS: &str = "DMU, figure 19: GAP beside a job that reads a file";
pub(super) const SUITE: &str = "DMU, figure 20: SPEC beside a job that reads a file";
pub(super) const ACCESSES: &str = "DMU, section V-A: accesses to compressed pages, faults";
const KEPT: &str = "performance kept, %";

/// Files, bytes (§V-A).
const SMALL: u64 = 600 << 20;
const MEDIUM: u64 = 800 << 20;
const LARGE: u64 = 2 << 30;
/// Medium and large file with DMU, then without, in percent (§V-A, §V-B).
const FIGURE_19: [f64; 4] = [99.0, 98.0, 81.0, 11.0];
const FIGURE_20: [f64; 4] = [98.0, 97.0, 87.0, 42.0];
/// Accesses to compressed pages: beside the small file, beside the medium one.
const COUNTED: (f64, f64) = (18_321.0, 18_791.0);
/// Memory of job 2 when it no longer fits, MB.
const FAULT: f64 = 1600.0;

/// Throughput of a job beside files, with DMU or without, in percent of that beside the small file with it.
fn kept<const N: usize>(timing: &Timing, job: Job, runs: [(u64, bool); N]) -> Result<[f64; N], String> {
    let reference = collocate(timing, job, SMALL, true)?.time.as_us();
    let mut kept = [0.0; N];
    for (kept, (file, with)) in kept.iter_mut().zip(runs) {
        *kept = 100.0 * reference / collocate(timing, job, file, with)?.time.as_us();
    }
    Ok(kept)
}

/// Finds the `file_raw` with which GAP loses as in figure 19 beside the medium file without DMU: the least that is enough.
///
/// # Errors
/// As for the machine.
pub fn fit(timing: &Timing) -> Result<u64, String> {
    fit_on(timing, MEDIUM, FIGURE_19[2])
}

fn fit_on(timing: &Timing, file: u64, wanted: f64) -> Result<u64, String> {
    let (mut low, mut high) = (0_u64, 400);
    while low < high {
        let file_raw = low.midpoint(high);
        let tried = Timing { file_raw, ..timing.clone() };
        let [kept] = kept(&tried, timing.graph, [(file, false)])?;
        if kept > wanted { low = file_raw + 1 } else { high = file_raw }
    }
    Ok(low)
}

/// GAP beside the medium file without DMU, with the `file_raw` that its number beside the large file alone gives: the paper's percentage,
/// those with the shipped value and with that one, and that one.
pub(super) fn left_out(timing: &Timing) -> Result<(f64, f64, f64, u64), String> {
    let of = |file_raw| {
        let [kept] = kept(&Timing { file_raw, ..timing.clone() }, timing.graph, [(MEDIUM, false)])?;
        Ok::<f64, String>(kept)
    };
    let file_raw = fit_on(timing, LARGE, FIGURE_19[3])?;
    Ok((FIGURE_19[2], of(timing.file_raw)?, of(file_raw)?, file_raw))
}

fn notes(timing: &Timing) -> Vec<String> {
    vec![
        format!(
            "fitted on GAP beside the medium file without DMU: {:.1} % of the file's pages do not pack; nothing was fitted to figure 20",
            timing.file_raw as f64 / 10.0
        ),
        "assumed, and chosen with the order of both figures in view: what GAP and SPEC compute between two requests; that the two allocations fill the board".into(),
        "no duration of the prototype is published: what is comparable is what a job keeps, not how long anything takes".into(),
        format!("bytes are divided by {}; pages are compressed, spilled and compared for real", timing.scale),
    ]
}

fn figure(
    inputs: &Inputs,
    (name, title, source): (&'static str, &'static str, &'static str),
    job: Job,
    paper: [f64; 4],
    fitted: Option<usize>,
) -> Result<Figure, String> {
    let runs = [(MEDIUM, true), (LARGE, true), (SMALL, false), (MEDIUM, false), (LARGE, false)];
    let [medium, large, small, medium_without, large_without] = kept(&inputs.dmu, job, runs)?;
    let labels =
        ["medium file, with DMU", "large file, with DMU", "medium file, without", "large file, without"];
    let model = [medium, large, medium_without, large_without];
    let mut rows: Vec<Row> = (0..4)
        .map(|index| Row {
            label: labels[index].into(),
            quantity: KEPT,
            paper: Some(Paper::Value(paper[index])),
            model: model[index],
            role: if fitted == Some(index) { Role::Fitted } else { Role::Predicted },
        })
        .collect();
    let label = "small file, without".into();
    rows.insert(2, Row { label, quantity: KEPT, paper: None, model: small, role: Role::Predicted });
    Ok(Figure {
        name,
        title,
        source,
        rows,
        verdicts: vec![
            Verdict {
                question: "with DMU a job keeps at least 97 %, whatever it is beside".into(),
                answer: format!("{medium:.1} % and {large:.1} %"),
                holds: Some(medium >= 97.0 && large >= 97.0),
            },
            Verdict {
                question: "without, a medium file costs it something and a large one most".into(),
                answer: format!("{medium_without:.1} % and {large_without:.1} %"),
                holds: Some(medium_without < 97.0 && large_without < 0.6 * medium_without),
            },
        ],
        notes: notes(&inputs.dmu),
    })
}

pub(super) fn graphs(inputs: &Inputs) -> Result<Figure, String> {
    let source = "Laghari et al. (DMU), §V-A, §V-B, figure 19; inputs: parameters/dmu.toml";
    figure(inputs, ("dmu-fig19", GRAPHS, source), inputs.dmu.graph, FIGURE_19, Some(2))
}

pub(super) fn suite(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.dmu;
    let source = "Laghari et al. (DMU), §V-A, §V-B, figure 20; inputs: parameters/dmu.toml";
    let mut figure = figure(inputs, ("dmu-fig20", SUITE, source), timing.suite, FIGURE_20, None)?;
    let graph = kept(timing, timing.graph, [(MEDIUM, false), (LARGE, false)])?;
    let of = |index: usize| figure.rows[index].model;
    figure.verdicts.push(Verdict {
        question: "without, SPEC keeps more than GAP beside either file".into(),
        answer: format!("{:.1} against {:.1} %, {:.1} against {:.1} %", of(3), graph[0], of(4), graph[1]),
        holds: Some(of(3) > graph[0] && of(4) > graph[1]),
    });
    Ok(figure)
}

pub(super) fn accesses(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.dmu;
    let run = |file| collocate(timing, timing.graph, file, true);
    let (small, medium, large) = (run(SMALL)?, run(MEDIUM)?, run(LARGE)?);
    let part = |outcome: Outcome| outcome.packed as f64 / small.packed.max(1) as f64;
    let row = |label: &str, quantity, paper: Option<f64>, model| Row {
        label: label.into(),
        quantity,
        paper: paper.map(Paper::Value),
        model,
        role: Role::Predicted,
    };
    let parts = "accesses to compressed pages, of those beside the small file";
    let fault = large.fault_at.unwrap_or(0) as f64 / 1048576.0;
    let off = (part(medium) - 1.0).abs();
    Ok(Figure {
        name: "dmu-accesses",
        title: ACCESSES,
        source: "Laghari et al. (DMU), §V-A; inputs: parameters/dmu.toml",
        rows: vec![
            row("GAP, medium file", parts, Some(COUNTED.1 / COUNTED.0), part(medium)),
            row("GAP, large file", parts, None, part(large)),
            row("first fault, large file", "MB that job 2 has", Some(FAULT), fault),
        ],
        verdicts: vec![
            Verdict {
                question: "job 1 is compressed to the same degree: 5 % at most, the paper has 2.6".into(),
                answer: format!("{} and {}, {:.1} %", small.packed, medium.packed, 100.0 * off),
                holds: Some(off <= 0.05),
            },
            Verdict {
                question: "a fault comes beside the large file alone, and job 1 stays in memory".into(),
                answer: format!("{}, {} and {} faults; {} visits found a page of job 1 in storage", small.faults, medium.faults, large.faults, large.stored),
                holds: Some(small.faults + medium.faults == 0 && large.faults > 0 && large.stored == 0),
            },
        ],
        notes: [
            vec![
                "the paper's numbers do not fit together here: 1600 MB in 400 MB is a ratio of 4, and the file's is at most 3.5 (figure 19). A file that packed 3.5 times throughout would leave GAP alone beside 800 MB without DMU; one that slows it to 81 % faults far earlier".into(),
            ],
            notes(timing),
        ]
        .concat(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn soak_the_fitted_value_is_the_fit_s() {
        let timing = Timing::shipped();
        assert_eq!(fit(&timing).unwrap(), timing.file_raw);
    }

    /// The figures must hold: jobs keep 97 % with DMU, and without it the order is the paper's.
    #[test]
    #[ignore = "soak"]
    fn soak_the_figures_hold_and_come_out_twice() {
        let inputs = Inputs::shipped();
        for run in [graphs, suite, accesses] {
            let figure = run(&inputs).unwrap();
            assert!(figure.verdicts.iter().all(|verdict| verdict.holds == Some(true)), "{figure:#?}");
            assert!(figure.rows.iter().all(|row| row.model.is_finite() && row.model > 0.0));
            assert_eq!(run(&inputs).unwrap(), figure);
        }
    }
}
