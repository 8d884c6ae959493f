// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift run --profile`: measures run time against memory, and finds the smallest budget that is good enough.
//!
//! - **Flow** one run with all available memory: the job's need and its time ─▶ one run with half of that need, and the cost of
//!   the budgets between from its miss-ratio curve ([`super::curve`]); or one run per percentage that was asked for ─▶ table,
//!   curve, SVG ─▶ the smallest budget with which the job ends like the first and is not slower than accepted
//! - **Order** a budget with which the job does not end well ends the search downwards, because less will not do either. A signal
//!   that ends programs ends the whole profile, even if the program handles it
//! - **Owner** the program's standard output is discarded and its standard input is empty, because it runs several times
//! - **Not here** averaging: run the profile again if runs vary

use memlift::zmem::block::Registry;
use memlift::zmem::supervise;
use serde_json::json;

use super::curve::{Curve, Run};
use super::outcome::Outcome;
use super::plot::{self, Dot};
use super::{Args, once};
use crate::failure::Failure;
use crate::{output, print};

/// Value of `--profile` without a list: the curve.
pub const CURVE: &str = "curve";
/// Budgets of the second run of a curve, in percent of the job's need; a later one is tried if the job does not end well.
const SECOND_PERCENTS: [f64; 2] = [50.0, 75.0];
/// Budgets that the table of a curve shows, in percent.
const SHOWN_PERCENTS: [f64; 6] = [100.0, 90.0, 80.0, 70.0, 60.0, 50.0];

/// One run of a profile.
#[derive(Clone, Debug)]
struct Point {
    /// Memory given, in percent of the job's need.
    percent: f64,
    /// Outcome of the run.
    outcome: Outcome,
}

impl Point {
    fn dot(&self, first: &Outcome, best: Option<u64>) -> Dot {
        Dot {
            percent: self.percent,
            slow_down: self.outcome.wall_s / first.wall_s.max(1e-9),
            ended_well: self.outcome.exit_code == first.exit_code,
            chosen: best == Some(self.outcome.budget),
        }
    }
}

/// Result of a run of a profile under a budget.
enum Tried {
    Ended(Box<Point>),
    /// The budget is too small for any program.
    TooSmall,
    /// A signal came; the exit code.
    Interrupted(u8),
}

/// Runs the profile.
pub fn run(args: &Args, percents: &str, as_json: bool) -> Result<u8, Failure> {
    let percents = if percents == CURVE { None } else { Some(parse(percents)?) };
    let first = once(&Args { memory: Some(available()?), ..args.clone() })?;
    if let Some(code) = interrupted(&first) {
        return Ok(code);
    }
    print::progress(&format!(
        "without a tight budget: {} and {:.2} s",
        print::bytes(first.peak_counted),
        first.wall_s
    ));
    if first.exit_code != 0 {
        print::warn(&format!(
            "the program ends with exit code {}; the same is expected of every run",
            first.exit_code
        ));
    }
    match percents {
        Some(percents) => measured(args, &first, percents, as_json),
        None => estimated(args, &first, as_json),
    }
}

/// Runs the program under a percentage of its need.
fn attempt(args: &Args, first: &Outcome, percent: f64) -> Result<Tried, Failure> {
    let bytes = (first.peak_counted as f64 * percent / 100.0) as u64;
    let outcome = match once(&Args { memory: Some(bytes), ..args.clone() }) {
        Ok(outcome) => outcome,
        Err(Failure::Usage(why)) => {
            print::warn(&why);
            return Ok(Tried::TooSmall);
        }
        Err(other) => return Err(other),
    };
    if let Some(code) = interrupted(&outcome) {
        return Ok(Tried::Interrupted(code));
    }
    print::progress(&format!("{}: {:.2} s", print::bytes(bytes), outcome.wall_s));
    Ok(Tried::Ended(Box::new(Point { percent, outcome })))
}

/// Measures each of the budgets.
fn measured(args: &Args, first: &Outcome, mut percents: Vec<f64>, as_json: bool) -> Result<u8, Failure> {
    percents.sort_by(|one, other| other.total_cmp(one));
    let mut points: Vec<Point> = Vec::new();
    for percent in percents {
        match attempt(args, first, percent)? {
            Tried::Ended(point) => points.push(*point),
            Tried::TooSmall => break,
            Tried::Interrupted(code) => return Ok(code),
        }
        if points.last().is_some_and(|point| point.outcome.exit_code != first.exit_code) {
            break;
        }
    }
    let good = |point: &&Point| {
        point.outcome.exit_code == first.exit_code && point.outcome.wall_s <= first.wall_s * args.slow_down
    };
    let best = points.iter().filter(good).map(|point| point.outcome.budget).min();
    let dots: Vec<Dot> = points.iter().map(|point| point.dot(first, best)).collect();
    let line: Vec<(f64, f64)> = dots.iter().map(|dot| (dot.percent, dot.slow_down)).collect();
    draw(args, &line, &dots)?;
    if as_json {
        let rows: Vec<_> = points
            .iter()
            .map(|point| {
                let mut row = point.outcome.json();
                row["percent"] = json!(point.percent);
                row["slow_down"] = json!(point.outcome.wall_s / first.wall_s);
                row
            })
            .collect();
        return print::json(&json!({
            "unlimited": first.json(),
            "runs": rows,
            "slow_down_accepted": args.slow_down,
            "smallest_budget_bytes": best,
        }))
        .map(|()| 0);
    }
    print::line(&table(first, &points))?;
    print::line(&plot::terminal(&dots))?;
    conclude(args, first, best)
}

/// Runs the program once more, under a budget that is too small, and computes the cost of the budgets between.
fn estimated(args: &Args, first: &Outcome, as_json: bool) -> Result<u8, Failure> {
    let mut second: Option<Point> = None;
    for percent in SECOND_PERCENTS {
        match attempt(args, first, percent)? {
            Tried::Ended(point) => {
                let ended_well = point.outcome.exit_code == first.exit_code;
                second = Some(*point);
                if ended_well {
                    break;
                }
            }
            Tried::TooSmall => {}
            Tried::Interrupted(code) => return Ok(code),
        }
    }
    let second = second.filter(|point| point.outcome.exit_code == first.exit_code);
    let need = first.peak_counted.max(1);
    let curve = second.as_ref().and_then(|point| measured_curve(first, &point.outcome));
    let points: Vec<(u64, f64)> = match (&curve, &second) {
        (Some(curve), _) => curve
            .points()
            .into_iter()
            .map(|(budget, cost)| (budget, 1.0 + cost.unwrap_or(f64::INFINITY)))
            .collect(),
        // Nothing had to come back, so the second budget costs nothing.
        (None, Some(point)) => vec![(point.outcome.budget, 1.0), (need, 1.0)],
        (None, None) => vec![(need, 1.0)],
    };
    let best = match (&curve, &second) {
        (Some(curve), _) => Some(curve.budget_for((args.slow_down - 1.0).max(0.0))),
        (None, Some(point)) => Some(point.outcome.budget),
        (None, None) => None,
    };
    let percent = |bytes: u64| 100.0 * bytes as f64 / need as f64;
    let line: Vec<(f64, f64)> =
        points.iter().map(|(budget, slow_down)| (percent(*budget), *slow_down)).collect();
    let dots: Vec<Dot> = second.iter().map(|point| point.dot(first, best)).collect();
    draw(args, &line, &dots)?;
    if as_json {
        let rows: Vec<_> = points
            .iter()
            .map(|(budget, slow_down)| {
                json!({
                    "budget_bytes": budget,
                    "percent": percent(*budget),
                    "slow_down": slow_down.is_finite().then_some(slow_down),
                })
            })
            .collect();
        return print::json(&json!({
            "unlimited": first.json(),
            "runs": second.iter().map(|point| point.outcome.json()).collect::<Vec<_>>(),
            "curve": rows,
            "slow_down_accepted": args.slow_down,
            "smallest_budget_bytes": best,
        }))
        .map(|()| 0);
    }
    let Some(second) = second else {
        print::line(&format!(
            "it does not end well with {:.0} % of the {} that it needs",
            SECOND_PERCENTS[SECOND_PERCENTS.len() - 1],
            print::bytes(need)
        ))?;
        return Ok(0);
    };
    print::line(&table(first, std::slice::from_ref(&second)))?;
    let shown = SHOWN_PERCENTS.into_iter().filter(|shown| *shown >= second.percent);
    let shown: Vec<Dot> = shown
        .map(|percent| Dot {
            percent,
            slow_down: 1.0 + curve.as_ref().map_or(0.0, |curve| cost_at(curve, &second, need, percent)),
            ended_well: true,
            chosen: false,
        })
        .collect();
    print::line("estimated from these two runs:")?;
    print::line(&plot::terminal(&shown))?;
    conclude(args, first, best)
}

fn cost_at(curve: &Curve, second: &Point, need: u64, percent: f64) -> f64 {
    let budget = ((need as f64 * percent / 100.0) as u64).max(second.outcome.budget);
    curve.cost(budget).unwrap_or(f64::INFINITY)
}

/// Returns the curve of the second run, with its cost as the two runs measure it; `None` if nothing came back.
fn measured_curve(first: &Outcome, second: &Outcome) -> Option<Curve> {
    Curve::of(&Run {
        budget: second.budget,
        need: first.peak_counted,
        away: second.away,
        store: second.store,
        returns: second.returns,
        lost_s: (second.wall_s - first.wall_s).max(0.0),
        rest_s: first.wall_s,
    })
}

fn draw(args: &Args, line: &[(f64, f64)], dots: &[Dot]) -> Result<(), Failure> {
    let Some(file) = &args.plot else { return Ok(()) };
    output::write(file, "--plot", args.force, plot::svg(line, dots, args.slow_down).as_bytes())
}

fn conclude(args: &Args, first: &Outcome, best: Option<u64>) -> Result<u8, Failure> {
    print::line(&match best {
        Some(bytes) => format!(
            "smallest budget within {:.2}×: --memory {}M ({:.0} % of what it needs)",
            args.slow_down,
            bytes.div_ceil(1 << 20),
            100.0 * bytes as f64 / first.peak_counted.max(1) as f64
        ),
        None => format!(
            "no budget of these is within {:.2}×: it needs {}",
            args.slow_down,
            print::bytes(first.peak_counted)
        ),
    })?;
    Ok(0)
}

/// Returns the first run's budget: all memory that no other job has, less a reserve.
fn available() -> Result<u64, Failure> {
    let registry =
        Registry::open(&Registry::folder()).map_err(|error| Failure::Unavailable(error.to_string()))?;
    let others = u64::try_from(registry.implicit().unused()).unwrap_or(0);
    Ok(memlift::ground::region::Headroom::read().bytes.min(others) / 16 * 15)
}

/// Returns the exit code if a signal ended a run: then there is no curve.
fn interrupted(outcome: &Outcome) -> Option<u8> {
    let signal = outcome.ending_signal?;
    print::warn(&format!("{} came: the profile is not finished", supervise::signal_name(signal)));
    Some(128 + signal as u8)
}

fn parse(percents: &str) -> Result<Vec<f64>, Failure> {
    let wrong = || Failure::Usage(format!("--profile={percents}: write percentages, for example 100,80,60"));
    let parsed: Option<Vec<f64>> = percents
        .split(',')
        .map(|text| text.trim().parse::<f64>().ok().filter(|percent| (1.0..=1000.0).contains(percent)))
        .collect();
    parsed.filter(|percents| !percents.is_empty()).ok_or_else(wrong)
}

fn table(first: &Outcome, points: &[Point]) -> String {
    let row = |percent: String, outcome: &Outcome| {
        vec![
            percent,
            print::bytes(outcome.budget),
            print::bytes(outcome.peak_counted),
            format!("{:.2} s", outcome.wall_s),
            plot::times(outcome.wall_s / first.wall_s.max(1e-9)),
            if outcome.exit_code == first.exit_code {
                "ok".to_owned()
            } else {
                format!("exit {}", outcome.exit_code)
            },
        ]
    };
    let mut rows = vec![row("all".to_owned(), first)];
    rows.extend(points.iter().map(|point| row(format!("{:.0} %", point.percent), &point.outcome)));
    print::table(&[">memory", ">budget", ">peak", ">time", ">slow-down", "end"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read() {
        assert_eq!(parse("100, 80,62.5").ok(), Some(vec![100.0, 80.0, 62.5]));
        for wrong in ["", "0", "-3", "x", "100,,50"] {
            assert!(matches!(parse(wrong), Err(Failure::Usage(_))), "{wrong}");
        }
    }
}
