// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift run --profile`: measures run time against memory, and finds the smallest budget that is good enough.
//!
//! - **Flow** one run with all available memory: the job's need and its time ─▶ one run per percentage of that need ─▶ table,
//!   curve, SVG ─▶ the smallest budget whose run ended like the first and was not slower than accepted
//! - **Order** a budget with which the job does not end well ends the search downwards, because less will not do either. A signal
//!   that ends programs ends the whole profile, even if the program handles it
//! - **Owner** the program's standard output is discarded and its standard input is empty, because it runs several times
//! - **Not here** averaging: run the profile again if runs vary

use memlift::zmem::block::Registry;
use memlift::zmem::supervise;
use serde_json::json;

use super::launch::Outcome;
use super::{Args, once, plot};
use crate::failure::Failure;
use crate::{output, print};

/// One run of a profile.
#[derive(Clone, Debug)]
pub struct Point {
    /// Memory given, in percent of the job's need.
    pub percent: f64,
    /// Outcome of the run.
    pub outcome: Outcome,
}

/// Runs the profile.
pub fn run(args: &Args, percents: &str, as_json: bool) -> Result<u8, Failure> {
    let mut percents = parse(percents)?;
    percents.sort_by(|one, other| other.total_cmp(one));
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
    let mut points = Vec::new();
    for percent in percents {
        let bytes = (first.peak_counted as f64 * percent / 100.0) as u64;
        let outcome = match once(&Args { memory: Some(bytes), ..args.clone() }) {
            Ok(outcome) => outcome,
            Err(Failure::Usage(why)) => {
                print::warn(&why);
                break;
            }
            Err(other) => return Err(other),
        };
        if let Some(code) = interrupted(&outcome) {
            return Ok(code);
        }
        let ended_well = outcome.exit_code == first.exit_code;
        print::progress(&format!("{}: {:.2} s", print::bytes(bytes), outcome.wall_s));
        points.push(Point { percent, outcome });
        if !ended_well {
            break;
        }
    }
    let good = |point: &&Point| {
        point.outcome.exit_code == first.exit_code && point.outcome.wall_s <= first.wall_s * args.slow_down
    };
    let best = points.iter().filter(good).min_by_key(|point| point.outcome.budget);
    if let Some(file) = &args.plot {
        output::write(
            file,
            "--plot",
            args.force,
            plot::svg(&first, &points, best, args.slow_down).as_bytes(),
        )?;
    }
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
            "smallest_budget_bytes": best.map(|point| point.outcome.budget),
        }))
        .map(|()| 0);
    }
    print::line(&table(&first, &points))?;
    print::line(&plot::terminal(&first, &points))?;
    print::line(&match best {
        Some(point) => format!(
            "smallest budget within {:.2}×: --memory {}M ({:.0} % of what it needs)",
            args.slow_down,
            point.outcome.budget.div_ceil(1 << 20),
            point.percent
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
            format!("{:.2}×", outcome.wall_s / first.wall_s.max(1e-9)),
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
