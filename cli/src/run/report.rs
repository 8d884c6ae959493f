// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exit report: the job's need, the memory that it got, and the cost.
//!
//! - **Flow** [`Outcome`] ─▶ lines on standard error, or one JSON object there or in a file; standard output belongs to the
//!   program
//! - **Order** the peak is that of the OOM killer's count. The time of faults is split by what it was spent on. The advice names
//!   budgets that would have cost less ([`super::curve`])
//! - **Owner** shares and costs are estimates: time in faults relative to the larger of CPU time and wall time

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::curve::{Curve, Run};
use super::outcome::Outcome;
use crate::failure::Failure;
use crate::{output, print};

const PAGE_BYTES: u64 = 4096;
/// Costs that the advice names budgets for: hardly noticed, and bearable.
const ADVISED_COSTS: [f64; 2] = [0.05, 0.3];
/// A budget that is larger by less than this share is not worth a line.
const WORTH_SHARE: f64 = 0.02;
/// Share of the time that deserves advice even if no better budget is known.
const NOTICED_SHARE: f64 = 0.1;
const MIB: u64 = 1 << 20;

impl Outcome {
    fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(own, _)| *own == name).map_or(0, |(_, count)| *count)
    }

    fn seconds(&self, name: &str) -> f64 {
        self.counter(name) as f64 / 1e9
    }

    /// Returns the bytes of stored pages over the bytes that they took; `None` if no page was stored.
    fn ratio(&self) -> Option<f64> {
        let bytes = self.counter("bytes_stored");
        (bytes > 0).then(|| (self.counter("pages_stored") * PAGE_BYTES) as f64 / bytes as f64)
    }

    /// Returns the time of the program's threads, in seconds: at least its CPU time and its wall time.
    fn time_s(&self) -> f64 {
        self.cpu_s.max(self.wall_s).max(1e-3)
    }

    /// Returns the time that went into page faults, in seconds; not more than the program took.
    fn lost_s(&self) -> f64 {
        self.seconds("fault_ns").min(self.time_s())
    }

    /// Returns the share of the program's time that went into page faults; 0 to 1.
    fn lost_share(&self) -> f64 {
        self.lost_s() / self.time_s()
    }

    /// Returns words for the end by a signal. Such a job may have needed more later, so its numbers hold until then only.
    fn ending(&self) -> Option<String> {
        let signal = self.exit_code.checked_sub(128).filter(|signal| (1..=64).contains(signal))?;
        self.refused.is_none().then(|| format!("until signal {signal} ended it"))
    }

    /// Returns the share of the peak that memlift covered.
    fn covered_share(&self) -> f64 {
        // Pages shared after a fork are counted in each process, so the sum can exceed the peak.
        let covered = self.covered.min(self.peak_counted);
        if self.peak_counted == 0 { 0.0 } else { covered as f64 / self.peak_counted as f64 }
    }

    /// Returns the costs of other budgets; `None` if no page came back in this run.
    pub fn curve(&self) -> Option<Curve> {
        Curve::of(&Run {
            budget: self.budget,
            need: self.need,
            away: self.away,
            store: self.store,
            returns: self.returns,
            lost_s: self.lost_s(),
            rest_s: self.time_s() - self.lost_s(),
        })
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let curve = self.curve().map(|curve| {
            let point = |(bytes, cost)| json!({"budget_bytes": bytes, "cost": cost});
            curve.points().into_iter().map(point).collect::<Vec<_>>()
        });
        let mut value = json!({
            "exit_code": self.exit_code,
            "backend": self.backend,
            "budget_bytes": self.budget,
            "budget_at_start_bytes": self.budget_at_start,
            "budget_from": self.origin,
            "peak_bytes": self.peak,
            "peak_counted_bytes": self.peak_counted,
            "peak_from": self.source,
            "need_bytes": self.need,
            "away_bytes": self.away,
            "least_budget_bytes": (self.least_budget > self.budget).then_some(self.least_budget),
            "outside_bytes": self.outside,
            "covered_share": self.covered_share(),
            "ratio": self.ratio(),
            "lost_s": self.lost_s(),
            "lost_share": self.lost_share(),
            "curve": curve,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "processes": self.processes,
            "compressed_memory_faults": self.events,
            "compressed_accesses": self.compressed_accesses,
            "spilled_bytes": self.counter("pages_spilled") * PAGE_BYTES,
            "refused": self.refused,
        });
        for (name, count) in &self.counters {
            value[*name] = json!(count);
        }
        value
    }

    fn memory_line(&self) -> String {
        let of_budget = 100.0 * self.peak_counted as f64 / self.budget.max(1) as f64;
        let mut line = format!(
            "memory  peak {} of {} ({of_budget:.0} %; {})",
            print::bytes(self.peak_counted),
            print::bytes(self.budget),
            self.source
        );
        if self.budget != self.budget_at_start && self.budget_at_start > 0 {
            line += &format!(", {} at the start", print::bytes(self.budget_at_start));
        }
        if self.need > self.budget {
            line += &format!("; without a budget about {}", print::bytes(self.need));
            line += &self.ending().map_or(String::new(), |ending| format!(" {ending}"));
        }
        line
    }

    fn away_line(&self) -> String {
        let spilled = self.counter("pages_spilled") * PAGE_BYTES;
        let away = match (self.ratio(), spilled) {
            (None, 0) => "nothing had to leave".to_owned(),
            (None, spilled) => format!("{} to the spill folder", print::bytes(spilled)),
            (Some(ratio), spilled) => format!(
                "at most {}, packed {ratio:.1}:1, {} to the spill folder",
                print::bytes(self.away),
                print::bytes(spilled)
            ),
        };
        format!("away    {away}")
    }

    fn time_line(&self) -> String {
        let mut line = format!(
            "time    {:.1} s, {} process{}",
            self.wall_s,
            self.processes,
            if self.processes == 1 { "" } else { "es" }
        );
        let share = 100.0 * self.lost_share();
        if share < 0.5 {
            return line + "; memory took less than 1 % of it";
        }
        // Each part lies within the time of the faults.
        let lost = self.seconds("fault_ns").max(1e-9);
        let mut left = share;
        let mut parts = Vec::new();
        for (name, what) in [
            ("paused_ns", "being paused"),
            ("room_ns", "making room"),
            ("unspill_ns", "reading the spill folder"),
        ] {
            let part = (share * self.seconds(name) / lost).min(left);
            left -= part;
            if part >= 0.5 {
                parts.push(format!("{part:.0} % {what}"));
            }
        }
        parts.insert(0, format!("{left:.0} % unpacking and placing pages"));
        line += &format!(
            "; about {share:.0} % of it brought memory back ({}), in {} faults",
            parts.join(", "),
            self.counter("faults")
        );
        line
    }

    /// Returns a budget that would have been better, with its cost.
    fn advice(&self) -> Option<String> {
        let megabytes = |bytes: u64| bytes.div_ceil(MIB);
        if self.least_budget > self.budget {
            return Some(format!(
                "for what it held when it did not fit, --memory {}M, or --spill to a folder on a disk",
                megabytes(self.least_budget)
            ));
        }
        let enough = self.peak_counted + self.peak_counted / 16;
        let Some(curve) = self.curve() else {
            let plenty = self.away == 0 && self.peak_counted > 0 && enough < self.budget / 4 * 3;
            return plenty
                .then(|| format!("--memory {}M would have been enough", megabytes(enough.max(8 * MIB))));
        };
        let (mut named, mut beyond) = (Vec::new(), self.budget as f64 * (1.0 + WORTH_SHARE));
        for cost in ADVISED_COSTS.into_iter().rev() {
            let budget = megabytes(curve.budget_for(cost)) * MIB;
            if curve.cost(self.budget).is_some_and(|now| now <= cost) || (budget as f64) < beyond {
                continue;
            }
            beyond = budget as f64 * (1.0 + WORTH_SHARE);
            let cost = 100.0 * curve.cost(budget).unwrap_or(cost);
            named.push(format!("--memory {}M would have cost about {cost:.0} %", budget / MIB));
        }
        let now = match curve.cost(self.budget) {
            Some(cost) => format!("{:.0} %", 100.0 * cost),
            None => "more than 20 times the time without it".to_owned(),
        };
        named.reverse();
        if named.is_empty() && self.lost_share() >= NOTICED_SHARE {
            // The run shows that memory was missing, and not how much: pages left although the budget was never reached.
            let more = megabytes(self.budget + self.budget / 4);
            return Some(format!(
                "--memory {more}M, a quarter more, may avoid most of this; `memlift run --profile` measures it"
            ));
        }
        let until = self.ending().map_or(String::new(), |ending| format!("{ending}: "));
        (!named.is_empty()).then(|| format!("{until}{}; this budget cost {now}", named.join(", ")))
    }

    fn text(&self) -> String {
        let mut lines = vec![self.memory_line(), self.away_line(), self.time_line()];
        lines.extend(self.advice().map(|advice| format!("advice  {advice}")));
        if self.processes == 0 {
            lines.push("no process of this job could be covered: its memory was only watched".to_owned());
        }
        lines.extend(self.refused.as_ref().map(|why| format!("ended: {why}")));
        lines.iter().map(|line| format!("memlift: {line}")).collect::<Vec<_>>().join("\n")
    }
}

/// Writes the report to the requested place.
pub fn write(outcome: &Outcome, file: Option<&Path>, force: bool, as_json: bool) -> Result<(), Failure> {
    let text = match file {
        Some(file) if file != Path::new("-") => {
            return output::write(file, "--report", force, format!("{:#}\n", outcome.json()).as_bytes());
        }
        Some(_) => format!("{}", outcome.json()),
        None if as_json => format!("{}", outcome.json()),
        None => outcome.text(),
    };
    let _ = writeln!(std::io::stderr(), "{text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use memlift::zmem::block::ABSENCES;

    fn outcome() -> Outcome {
        let mut returns = [0; ABSENCES];
        (returns[0], returns[5]) = (1000, 100);
        Outcome {
            budget: 100 << 20,
            budget_at_start: 100 << 20,
            peak_counted: 99 << 20,
            covered: 60 << 20,
            need: 180 << 20,
            away: 120 << 20,
            store: 40 << 20,
            returns,
            cpu_s: 30.0,
            wall_s: 31.0,
            processes: 1,
            source: "resident sizes".to_owned(),
            counters: vec![
                ("pages_stored", 10),
                ("bytes_stored", 20480),
                ("fault_ns", 15_500_000_000),
                ("room_ns", 3_100_000_000),
                ("faults", 7),
            ],
            ..Outcome::default()
        }
    }

    #[test]
    fn the_report_is_a_screen_of_whole_numbers() {
        let json = outcome().json();
        assert_eq!((&json["ratio"], &json["lost_share"]), (&json!(2.0), &json!(0.5)), "{json:#}");
        assert_eq!(json["curve"].as_array().map(Vec::len), Some(26));
        let text = outcome().text();
        for wanted in [
            "peak 99.0 MiB of 100.0 MiB (99 %; resident sizes); without a budget about 180.0 MiB",
            "at most 120.0 MiB, packed 2.0:1, 0 B to the spill folder",
            "31.0 s, 1 process; about 50 % of it brought memory back (40 % unpacking and placing pages, 10 % making room)",
            "--memory 104M would have cost about ",
            "; this budget cost 100 %",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(
            text.lines().count() == 4 && text.lines().all(|line| line.starts_with("memlift: ")),
            "{text}"
        );
    }

    #[test]
    fn shares_stay_between_nothing_and_all_whatever_the_counters_are() {
        let counters =
            vec![("fault_ns", u64::MAX), ("room_ns", u64::MAX), ("bytes_stored", 1), ("pages_stored", 9)];
        let odd = Outcome { covered: 900 << 20, cpu_s: 0.0, wall_s: 0.0, counters, ..outcome() };
        let text = odd.text();
        assert!(text.contains("about 100 % of it brought") && text.contains("100 % making room"), "{text}");
        assert!(text.contains("this budget cost more than 20 times the time without it"), "{text}");
        assert_eq!((&odd.json()["covered_share"], &odd.json()["lost_share"]), (&json!(1.0), &json!(1.0)));
        let idle = Outcome { counters: Vec::new(), returns: [0; ABSENCES], away: 0, need: 0, ..odd };
        let text = idle.text();
        assert!(text.contains("nothing had to leave") && text.contains("less than 1 %"), "{text}");
        assert!(!text.contains("advice"), "{text}");
    }

    #[test]
    fn the_advice_is_for_the_job_at_hand() {
        let small = Outcome { peak_counted: 20 << 20, away: 0, returns: [0; ABSENCES], ..outcome() };
        assert_eq!(small.advice().as_deref(), Some("--memory 22M would have been enough"));
        let over = Outcome { least_budget: (131 << 20) + 1, exit_code: 75, ..outcome() };
        assert!(over.advice().is_some_and(|advice| advice.contains("--memory 132M")));
        let cheap = Outcome { counters: vec![("fault_ns", 100_000_000)], ..outcome() };
        assert_eq!(cheap.advice(), None, "less than a hundredth needs none");
        let unknown = Outcome { need: 90 << 20, away: 4 << 20, store: 2 << 20, ..outcome() };
        let advice = unknown.advice().expect("half of the time was lost");
        assert!(advice.starts_with("--memory 125M, a quarter more, may avoid most of this"), "{advice}");
    }

    #[test]
    fn a_job_that_a_signal_ended_is_judged_until_then() {
        let ended = Outcome { exit_code: 128 + 15, ..outcome() };
        assert!(
            ended.text().contains("without a budget about 180.0 MiB until signal 15 ended it"),
            "{}",
            ended.text()
        );
        assert!(
            ended.advice().is_some_and(|advice| advice.starts_with("until signal 15 ended it: --memory "))
        );
        assert!(!Outcome { exit_code: 3, ..outcome() }.text().contains("signal"));
    }
}
