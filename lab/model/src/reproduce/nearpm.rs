// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NearPM, figures 15 to 20: copies, code for crash consistency, whole programs, overlap, units, threads.
//!
//! - **Method** two scalars are fitted, on the two numbers that figure 17 has: `command` on 64 B, `cpu_line` on 16 kB. How much of a
//!   program's time crash consistency takes is figure 1's, an input. All else is predicted; no number of figures 15, 16, 18,
//!   19 or 20 went into a parameter
//! - **Not here** the machine (`nearpm`)

use super::{Figure, Inputs, Paper, Role, Row, Verdict};
use crate::event::Time;
use crate::nearpm::experiment::{self, Gain, KINDS, Program};
use crate::nearpm::{Shape, Timing};

pub(super) const SHARES: &str = "NearPM, figure 1: crash consistency by the CPU alone";
pub(super) const REGIONS: &str = "NearPM, figure 15: code for crash consistency";
pub(super) const PROGRAMS: &str = "NearPM, figure 16: whole programs";
pub(super) const COPIES: &str = "NearPM, figure 17: copies";
pub(super) const OVERLAP: &str = "NearPM, figure 18: CPU and devices at work at the same time";
pub(super) const UNITS: &str = "NearPM, figure 19: units of a device";
pub(super) const THREADS: &str = "NearPM, figure 20: threads";
const SPEEDUP: &str = "speed-up over the CPU alone";

/// Machines of figure 16, and its averages by kind of program (§8.2.4).
type Machine = (&'static str, fn(&Timing) -> Shape, [f64; 3]);
const MACHINES: [Machine; 3] = [
    ("SD", Shape::single, [1.29, 1.15, 1.28]),
    ("MD, SW-sync", Shape::polled, [1.21, 1.14, 1.23]),
    ("MD", Shape::delayed, [1.35, 1.22, 1.33]),
];
/// Figure 15's averages (§8.2.3), and TATP's with an undo log.
const REGION: [f64; 3] = [6.9, 4.3, 9.8];
const TATP: f64 = 1.23;
/// Figure 17: bytes and speed-up (§8.2.1).
const COPY: [(u64, Option<f64>); 9] = [
    (64, Some(1.13)),
    (128, None),
    (256, None),
    (512, None),
    (1024, None),
    (2048, None),
    (4096, None),
    (8192, None),
    (16_384, Some(5.57)),
];
/// Figure 18's averages (§8.2.2).
const SHARED: [f64; 3] = [0.2001, 0.1725, 0.2468];

fn row(label: impl Into<String>, quantity: &'static str, paper: Option<f64>, model: f64, role: Role) -> Row {
    Row { label: label.into(), quantity, paper: paper.map(Paper::Value), model, role }
}

fn fitted(timing: &Timing) -> String {
    format!(
        "fitted on figure 17 alone: a command takes the CPU {}, a further line of a copy {}; inputs: the shares of figure 1",
        timing.command, timing.cpu_line
    )
}

fn gains(timing: &Timing, shape: Shape) -> Result<[Gain; 3], String> {
    let of = |kind| experiment::gain(timing, Program::average(kind), shape);
    Ok([of(0)?, of(1)?, of(2)?])
}

fn within(rows: &[Row], most: f64) -> (usize, usize, f64) {
    let deviations: Vec<f64> =
        rows.iter().filter_map(|row| Some(row.paper?.deviation(row.model).abs())).collect();
    let inside = deviations.iter().filter(|deviation| **deviation <= most).count();
    (inside, deviations.len(), deviations.iter().copied().fold(0.0, f64::max))
}

/// Figure 1: percent of the time in crash consistency, percent of that in data movement (§2.1).
const CONSISTENCY: [(f64, f64); 3] = [(37.7, 68.9), (48.6, 60.4), (67.2, 70.5)];

pub(super) fn shares(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.nearpm;
    let (mut rows, mut off) = (Vec::new(), 0.0_f64);
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        let report = experiment::run(timing, Program::average(kind), None)?;
        let cost = experiment::cost(timing, kind);
        let share = 100.0 * report.region.as_us() / report.end.as_us();
        let part = 100.0 * cost.movement.as_us() / (cost.movement + cost.rest).as_us();
        for (quantity, paper, model) in [
            ("of the time in crash consistency, %", CONSISTENCY[kind].0, share),
            ("of that in data movement, %", CONSISTENCY[kind].1, part),
        ] {
            off = off.max((model / paper - 1.0).abs());
            rows.push(row(*name, quantity, Some(paper), model, Role::Input));
        }
    }
    Ok(Figure {
        name: "nearpm-fig1",
        title: SHARES,
        source: "Seneviratne et al., EuroSys '23, §2.1, figure 1; inputs: its numbers, parameters/nearpm.toml",
        rows,
        verdicts: vec![Verdict {
            question: "programs of the CPU alone spend the shares that went in, within 2 %".into(),
            answer: format!("off by {:.1} % at most", 100.0 * off),
            holds: Some(off <= 0.02),
        }],
        notes: vec![
            "the six numbers are inputs of figures 15 to 20: agreement says that the programs carry them through, no more".into(),
        ],
    })
}

pub(super) fn programs(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.nearpm;
    let mut gained = Vec::new();
    for (_, shape, _) in MACHINES {
        gained.push(gains(timing, shape(timing))?);
    }
    let mut rows = Vec::new();
    for (kind, (name, _)) in KINDS.iter().enumerate() {
        for ((machine, _, paper), gains) in MACHINES.iter().zip(&gained) {
            let (paper, model) = (Some(paper[kind]), gains[kind].program);
            rows.push(row(format!("{name}, {machine}"), SPEEDUP, paper, model, Role::Predicted));
        }
    }
    let (inside, of, most) = within(&rows, 0.2);
    let by_machine: Vec<&str> = (0..3)
        .map(|kind| match [0, 1, 2].map(|machine| gained[machine][kind].program) {
            [single, polled, delayed] if polled < single && single * 1.001 < delayed => "as in the paper",
            [single, polled, delayed] if polled < single && single < delayed * 1.001 => "SD and MD a draw",
            _ => "another",
        })
        .collect();
    let kinds: Vec<String> = gained
        .iter()
        .zip(MACHINES)
        .map(|(gains, (machine, _, paper))| {
            let order = |values: [f64; 3]| {
                let mut order = [0, 1, 2];
                order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
                order
            };
            let model = order([0, 1, 2].map(|kind| gains[kind].program));
            let mark = if model == order(paper) { "as in the paper" } else { "another" };
            format!("{machine}: {mark}")
        })
        .collect();
    // The part above 1 alone: a tolerance of the speed-up itself swallows it.
    let gain = |row: &Row| match row.paper {
        Some(Paper::Value(paper)) => Some((row.model - 1.0) / (paper - 1.0)),
        _ => None,
    };
    let gains_off: Vec<f64> = rows.iter().filter_map(gain).collect();
    let halves = gains_off.iter().filter(|ratio| (0.5..=1.5).contains(*ratio)).count();
    let (least, largest) =
        gains_off.iter().fold((f64::MAX, 0.0_f64), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
    let verdicts = vec![
        Verdict {
            question:
                "all nine within 20 %, none fitted; no gain at all would pass for those of 1.25 and less"
                    .into(),
            answer: format!("{inside} of {of}, the furthest off by {:.1} %", 100.0 * most),
            holds: Some(inside == of),
        },
        Verdict {
            question: "the gains alone, speed-up less 1, within a half of the paper's".into(),
            answer: format!("{halves} of {}, {least:.2} to {largest:.2} times the paper's", gains_off.len()),
            holds: Some(halves == gains_off.len()),
        },
        Verdict {
            question: "software synchronisation below one device, delayed synchronisation above".into(),
            answer: KINDS
                .iter()
                .zip(&by_machine)
                .map(|((name, _), order)| format!("{name}: {order}"))
                .collect::<Vec<_>>()
                .join("; "),
            holds: Some(by_machine.iter().all(|order| *order == "as in the paper")),
        },
        Verdict {
            question: "order of the kinds of programs on each machine".into(),
            holds: Some(kinds.iter().all(|kind| kind.ends_with("paper"))),
            answer: kinds.join("; "),
        },
    ];
    Ok(Figure {
        name: "nearpm-fig16",
        title: PROGRAMS,
        source: "Seneviratne et al., EuroSys '23, §8.2.4, figure 16; inputs: figure 1, parameters/nearpm.toml",
        rows,
        verdicts,
        notes: vec![
            fitted(timing),
            "one thread's logs of 64 B keep neither bus nor units of one device busy, so a second device does nothing for logging; what its objects' sizes are is not published".into(),
            "the paper's own figures do not add up for pages: 67.2 % of the time (figure 1) made 9.8 times as fast (figure 15) is 2.5 for the whole program (Amdahl), figure 16 has 1.33. The model takes figure 1 for true, so it comes out high where that share is large".into(),
        ],
    })
}

pub(super) fn regions(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.nearpm;
    let gains = gains(timing, Shape::delayed(timing))?;
    let mut rows: Vec<Row> = KINDS
        .iter()
        .enumerate()
        .map(|(kind, (name, _))| row(*name, SPEEDUP, Some(REGION[kind]), gains[kind].region, Role::Predicted))
        .collect();
    let tatp = Program { updates: Some(1), ..Program::average(0) };
    let single = experiment::gain(timing, tatp, Shape::delayed(timing))?.region;
    rows.push(row("TATP, logging", SPEEDUP, Some(TATP), single, Role::Predicted));
    let ordered = gains[1].region < gains[0].region && gains[0].region < gains[2].region;
    let below = single < gains[0].region;
    Ok(Figure {
        name: "nearpm-fig15",
        title: REGIONS,
        source: "Seneviratne et al., EuroSys '23, §8.2.3, figure 15; inputs: figure 1, parameters/nearpm.toml",
        verdicts: vec![
            Verdict {
                question: "checkpointing gains least, shadow paging most".into(),
                answer: format!("{:.1} < {:.1} < {:.1}", gains[1].region, gains[0].region, gains[2].region),
                holds: Some(ordered),
            },
            Verdict {
                question: "one log in a transaction gains less than several".into(),
                answer: format!("{single:.2} against {:.2}", gains[0].region),
                holds: Some(below),
            },
        ],
        rows,
        notes: vec![
            fitted(timing),
            "a region is the CPU's time in the calls; what a later persist or read waits for a device is the program's, so regions gain more than programs".into(),
            "how long TATP's commit waits for its only log is not published; here nothing waits but the next persist".into(),
        ],
    })
}

pub(super) fn copies(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.nearpm;
    let ratio =
        |bytes| timing.cpu_copy(bytes).as_ps() as f64 / experiment::copy(timing, bytes).as_ps() as f64;
    let rows: Vec<Row> = COPY
        .iter()
        .map(|&(bytes, paper)| {
            let role = if paper.is_some() { Role::Fitted } else { Role::Predicted };
            row(format!("{bytes} B"), SPEEDUP, paper, ratio(bytes), role)
        })
        .collect();
    let rises = rows.windows(2).all(|pair| pair[1].model > pair[0].model);
    Ok(Figure {
        name: "nearpm-fig17",
        title: COPIES,
        source: "Seneviratne et al., EuroSys '23, §8.2.1, figure 17",
        verdicts: vec![Verdict {
            question: "it rises with the size".into(),
            answer: format!("from {:.2} to {:.2}", ratio(COPY[0].0), ratio(COPY[8].0)),
            holds: Some(rises),
        }],
        rows,
        notes: vec![
            fitted(timing),
            "the text has the two ends; the sizes between are the model's own".into(),
        ],
    })
}

pub(super) fn overlap(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.nearpm;
    let gains = gains(timing, Shape::delayed(timing))?;
    let rows: Vec<Row> = KINDS
        .iter()
        .enumerate()
        .map(|(kind, (name, _))| {
            let paper = Some(100.0 * SHARED[kind]);
            row(*name, "of the time, %", paper, 100.0 * gains[kind].overlap, Role::Predicted)
        })
        .collect();
    Ok(Figure {
        name: "nearpm-fig18",
        title: OVERLAP,
        source: "Seneviratne et al., EuroSys '23, §8.2.2, figure 18; inputs: figure 1, parameters/nearpm.toml",
        verdicts: vec![Verdict {
            question: "checkpointing least, shadow paging most".into(),
            answer: rows.iter().map(|row| format!("{} {:.1} %", row.label, row.model)).collect::<Vec<_>>().join(", "),
            holds: Some(gains[1].overlap < gains[0].overlap && gains[0].overlap < gains[2].overlap),
        }],
        rows,
        notes: vec![
            fitted(timing),
            "the paper counts what could run at the same time and does not say how; the model counts when a unit and the thread do. Programs that wait for each persist (figure 14) leave little".into(),
        ],
    })
}

pub(super) fn units(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.nearpm;
    let threads = timing.cores;
    let (mut rows, mut means) = (Vec::new(), Vec::new());
    for units in [1, 2, 4] {
        let shape = Shape { units, ..Shape::delayed(timing) };
        let mut sum = 0.0;
        for (kind, (name, _)) in KINDS.iter().enumerate() {
            let program = Program { threads, ..Program::average(kind) };
            let gain = experiment::gain(timing, program, shape)?.program;
            sum += gain;
            rows.push(row(format!("{name}, {units}"), SPEEDUP, None, gain, Role::Predicted));
        }
        means.push(sum / 3.0);
    }
    // The machine of figure 16 has four units (§8.1), and its averages are in the text.
    let averages = MACHINES[2].2;
    let paper = averages.iter().sum::<f64>() / averages.len() as f64;
    rows.push(row("average, 4", SPEEDUP, Some(paper), means[2], Role::Predicted));
    let rises = means.windows(2).all(|pair| pair[1] > pair[0]);
    Ok(Figure {
        name: "nearpm-fig19",
        title: UNITS,
        source: "Seneviratne et al., EuroSys '23, §8.3.2, figure 19; inputs: figure 1, parameters/nearpm.toml",
        rows,
        verdicts: vec![Verdict {
            question: "more units, more speed on average".into(),
            answer: means.iter().map(|mean| format!("{mean:.3}")).collect::<Vec<_>>().join(" < "),
            holds: Some(rises),
        }],
        notes: vec![
            fitted(timing),
            format!("the figure has no numbers; four units are the machine of figure 16, whose averages §8.2.4 prints. The paper does not say how many threads; here {threads}, one for each core"),
            "a device's bus carries no more than two units move, so four are a draw here; the paper lets units share the lines of a page, which is not described and not modelled".into(),
        ],
    })
}

pub(super) fn threads(inputs: &Inputs) -> Result<Figure, String> {
    let timing = &inputs.nearpm;
    let (mut rows, mut above) = (Vec::new(), true);
    let (mut falls, mut less, mut curves) = (true, true, Vec::new());
    for (name, shared) in [("Memcached", false), ("Redis", true)] {
        let mut gains = Vec::new();
        for threads in [1, 2, 4, 8, 16] {
            let program = Program { threads, shared, ..Program::average(0) };
            let gain = experiment::gain(timing, program, Shape::delayed(timing))?.program;
            gains.push(gain);
            rows.push(row(format!("{name}, {threads}"), SPEEDUP, None, gain, Role::Predicted));
        }
        above &= gains.iter().all(|gain| *gain > 1.0);
        falls &= gains.windows(2).all(|pair| pair[1] < pair[0]);
        less &= gains[4] < gains[0];
        let rise = gains.windows(2).map(|pair| pair[1] / pair[0] - 1.0).fold(0.0, f64::max);
        let values: Vec<String> = gains.iter().map(|gain| format!("{gain:.3}")).collect();
        curves.push(format!("{name} {}, a step rises by {:.2} % at most", values.join(" "), 100.0 * rise));
    }
    let curves = curves.join("; ");
    let ends = rows.iter().step_by(5).zip(rows.iter().skip(4).step_by(5));
    let ends: Vec<String> =
        ends.map(|(one, many)| format!("{:.3} and {:.3}", one.model, many.model)).collect();
    Ok(Figure {
        name: "nearpm-fig20",
        title: THREADS,
        source: "Seneviratne et al., EuroSys '23, §8.3.1, figure 20; inputs: figure 1, parameters/nearpm.toml",
        verdicts: vec![
            Verdict {
                question: "the speed-up falls with each doubling of the threads".into(),
                answer: curves,
                holds: Some(falls),
            },
            Verdict {
                question: "16 threads gain less than one".into(),
                answer: format!("with one and with 16: {}", ends.join(", ")),
                holds: Some(less),
            },
            Verdict {
                question: "NearPM stays faster than the CPU alone".into(),
                answer: if above { "always".into() } else { "not always".into() },
                holds: Some(above),
            },
        ],
        rows,
        notes: vec![
            fitted(timing),
            "both run the average program with logging: Memcached's threads have a pool each, Redis' share one; the paper prints no numbers".into(),
        ],
    })
}

/// The fitted scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The CPU's time for a command.
    pub command: Time,
    /// A further line of a copy by the CPU.
    pub cpu_line: Time,
}

/// Fits them anew, in whole nanoseconds: `command` so that 64 B come out, then `cpu_line` so that 16 kB do.
#[must_use]
pub fn fit(timing: &Timing) -> Fit {
    let mut timing = Timing { command: Time::ZERO, ..timing.clone() };
    let ns = |time: Time| time.as_ps() as f64 / 1e3;
    let wanted = |index: usize| COPY[index].1.unwrap_or(1.0);
    let near = ns(timing.cpu_copy(64)) / wanted(0);
    timing.command = Time::from_ns((near - ns(experiment::copy(&timing, 64))).round().max(0.0) as u64);
    let cpu = ns(experiment::copy(&timing, COPY[8].0)) * wanted(8);
    let lines = (COPY[8].0 / 64 - 1) as f64;
    Fit {
        command: timing.command,
        cpu_line: Time::from_ns(((cpu - ns(timing.cpu_copy(64))) / lines).round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_scalars_are_those_that_the_fit_gives() {
        let timing = Timing::shipped();
        assert_eq!(fit(&timing), Fit { command: timing.command, cpu_line: timing.cpu_line });
    }
}
