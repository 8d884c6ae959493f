// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SmartDIMM: the scratchpad's occupancy against the cache (figure 10), and insertions into the translation table (§IV-C).
//!
//! Method   one scalar is fitted, `contention`, on the smallest cache: the paper says that the cache is contended and prints no
//!          traffic. The other caches, Force-Recycle and the slack are predicted
//! Not here the machine (`smartdimm`); figure 9's trace, which has no numbers

use super::{Figure, Inputs, Paper, Role, Row, Verdict};
use crate::smartdimm::Timing;
use crate::smartdimm::cuckoo;
use crate::smartdimm::host::{self, Outcome};

pub(super) const OCCUPANCY: &str = "SmartDIMM, figure 10: scratchpad in use against the cache's size";
pub(super) const TABLE: &str = "SmartDIMM, section IV-C: insertions into the translation table";

/// Caches, in ways of 2.5 MB, and below how many KB the paper says that the scratchpad stays (§VII-A).
const CACHES: [(usize, Option<f64>); 5] =
    [(4, Some(500.0)), (8, None), (12, None), (16, None), (20, Some(2048.0))];
/// Calls of a run: after about 150 nothing changes any more.
const CALLS: u64 = 400;
/// Insertions into the table.
const INSERTIONS: u64 = 200_000;

fn kib(outcome: &Outcome) -> f64 {
    outcome.most as f64 / 1024.0
}

/// Which `contention` keeps the smallest cache's run below the paper's bound: the least multiple of 8.
///
/// # Errors
/// As for the machine.
pub fn fit(timing: &Timing) -> Result<u64, String> {
    let (ways, bound) = (CACHES[0].0, CACHES[0].1.unwrap_or(f64::INFINITY));
    for contention in (0..=256).step_by(8) {
        let tried = Timing { contention, ..timing.clone() };
        if kib(&host::run(&tried, ways, CALLS, 1)?) < bound {
            return Ok(contention);
        }
    }
    Err("no contention keeps the scratchpad below the bound".into())
}

pub(super) fn occupancy(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.smartdimm;
    let mut rows = Vec::new();
    let (mut forced, mut calls, mut slack, mut compared) = (0, 0, f64::INFINITY, 0);
    for (index, (ways, bound)) in CACHES.into_iter().enumerate() {
        let outcome = host::run(timing, ways, CALLS, 1)?;
        let label = format!("{} MB cache", (ways as u64 * timing.way) >> 20);
        let role = if index == 0 { Role::Fitted } else { Role::Predicted };
        let row = |quantity, paper, model| Row { label: label.clone(), quantity, paper, model, role };
        rows.push(row("most, KB", bound.map(|bound| Paper::Between(0.0, bound)), kib(&outcome)));
        rows.push(row("mean, KB", None, outcome.occupied / 1024.0));
        forced += outcome.forced;
        calls += outcome.calls;
        compared += outcome.compared;
        slack = slack.min(outcome.slack.as_us());
    }
    let most: Vec<f64> = rows.iter().step_by(2).map(|row| row.model).collect();
    let idle = host::run(&Timing { contention: 4, ..timing.clone() }, 20, 800, 1)?;
    rows.push(Row {
        label: "all of them".into(),
        quantity: "least time from read to write-back, us",
        paper: None,
        model: slack,
        role: Role::Predicted,
    });
    let part = 100.0 * forced as f64 / calls as f64;
    Ok(Figure {
        name: "smartdimm-fig10",
        title: OCCUPANCY,
        source: "SmartDIMM, §VII-A, figure 10; inputs: parameters/smartdimm.toml",
        verdicts: vec![
            Verdict {
                question: "below 500 KB with 10 MB of cache, below 2 MB with 50 MB, more with more".into(),
                answer: most.iter().map(|most| format!("{most:.0}")).collect::<Vec<_>>().join(" < "),
                holds: Some(
                    most[0] < 500.0 && most[4] < 2048.0 && most.windows(2).all(|pair| pair[0] < pair[1]),
                ),
            },
            Verdict {
                question: "Force-Recycle in less than 0.1 % of calls".into(),
                answer: format!("{forced} of {calls}, {part:.2} %"),
                holds: Some(part < 0.1),
            },
            Verdict {
                question: "write-backs come more than 1 us after the read (§IV-D)".into(),
                answer: format!("{slack:.1} us at least"),
                holds: Some(slack > 1.0),
            },
        ],
        rows,
        notes: vec![
            format!(
                "fitted on the bound of 10 MB: others fill {} lines for each line that is copied",
                timing.contention
            ),
            format!(
                "where others fill 4 lines, 50 MB of cache hold more than the scratchpad: {} of {} calls recycle by force; SmartDIMM is for contended caches",
                idle.forced, idle.calls
            ),
            format!(
                "{compared} recycled pages were compared with what their sources make; what a page is turned into is a XOR with a seeded stream, not yet AES-GCM or Deflate"
            ),
        ],
    })
}

pub(super) fn table(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.smartdimm;
    let mut rows = Vec::new();
    let mut once = Vec::new();
    let mut failed = 0;
    // A translation for each page of scratchpad and of configuration memory; then half full, as the text has it.
    for (label, kept) in [("a third full", 2 * timing.scratchpad as usize), ("half full", timing.table / 2)] {
        let (settled, most) = cuckoo::churn(timing.table, timing.cam, kept, INSERTIONS, 1);
        let all: u64 = settled.iter().sum();
        let percent = |insertions: u64| 100.0 * insertions as f64 / all as f64;
        let row = |quantity, model| Row {
            label: label.into(),
            quantity,
            paper: None,
            model,
            role: Role::Predicted,
        };
        rows.push(row("without displacement, %", percent(settled[0])));
        rows.push(row("one displacement, %", percent(settled[1])));
        rows.push(row("more, %", percent(settled[2..].iter().sum())));
        rows.push(row("most entries in the CAM", most as f64));
        once.push(percent(settled[0] + settled[1]));
        failed += settled.last().copied().unwrap_or(0);
    }
    Ok(Figure {
        name: "smartdimm-table",
        title: TABLE,
        source: "SmartDIMM, §IV-C; inputs: parameters/smartdimm.toml",
        rows,
        verdicts: vec![
            Verdict {
                question: "an insertion typically takes no displacement or one, below half full".into(),
                answer: format!("{:.1} % a third full, {:.1} % half full", once[0], once[1]),
                holds: Some(once.iter().all(|percent| *percent > 90.0)),
            },
            Verdict {
                question: "no insertion fails".into(),
                answer: format!("{failed} of {}", 2 * INSERTIONS),
                holds: Some(failed == 0),
            },
        ],
        notes: vec![format!(
            "the table has {} entries for {} translations; two steps of settling for each insertion, random entries leave",
            timing.table,
            2 * u64::from(timing.scratchpad)
        )],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn soak_the_fitted_value_is_the_fit_s() {
        let timing = Timing::shipped();
        assert_eq!(fit(&timing).unwrap(), timing.contention);
    }

    #[test]
    #[ignore = "soak"]
    fn soak_occupancy_holds() {
        let figure = occupancy(&Inputs::shipped()).unwrap();
        assert!(figure.verdicts.iter().all(|verdict| verdict.holds == Some(true)), "{figure:#?}");
    }
}
