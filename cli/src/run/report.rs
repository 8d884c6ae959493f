// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exit report: the job's need, the memory that it got, and the cost.
//!
//! - **Flow** [`Outcome`] ─▶ lines on standard error, or one JSON object there or in a file; standard output belongs to the
//!   program
//! - **Order** the peak is that of the OOM killer's count; the share that memlift covers and the compression ratio show how
//!   much more it could do
//! - **Owner** the share of time is an estimate: time in faults relative to the rest of the CPU time

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::launch::Outcome;
use crate::failure::Failure;
use crate::{output, print};

const PAGE_BYTES: u64 = 4096;
/// Share of a job's time in faults from which the report gives advice.
const SLOW_SHARE: f64 = 0.2;

impl Outcome {
    fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(own, _)| *own == name).map_or(0, |(_, count)| *count)
    }

    /// Returns the bytes of stored pages over the bytes that they took; `None` if no page was stored.
    fn ratio(&self) -> Option<f64> {
        let bytes = self.counter("bytes_stored");
        (bytes > 0).then(|| (self.counter("pages_stored") * PAGE_BYTES) as f64 / bytes as f64)
    }

    /// Returns an estimate of the program's run time relative to that without faults.
    fn slow_down(&self) -> f64 {
        let faults_s = self.counter("fault_ns") as f64 / 1e9;
        let rest = (self.cpu_s - faults_s).max(self.cpu_s / 100.0).max(1e-3);
        1.0 + faults_s / rest
    }

    /// Returns the share of the peak that memlift covered.
    fn covered_share(&self) -> f64 {
        // Pages shared after a fork are counted in each process, so the sum can exceed the peak.
        let covered = self.covered.min(self.peak_counted);
        if self.peak_counted == 0 { 0.0 } else { covered as f64 / self.peak_counted as f64 }
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let mut value = json!({
            "exit_code": self.exit_code,
            "backend": self.backend,
            "budget_bytes": self.budget,
            "budget_from": self.origin,
            "peak_bytes": self.peak,
            "peak_counted_bytes": self.peak_counted,
            "peak_from": self.source,
            "outside_bytes": self.outside,
            "covered_share": self.covered_share(),
            "ratio": self.ratio(),
            "slow_down_estimate": self.slow_down(),
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

    /// Returns an estimate of the share of the program's time that went into bringing memory back; 0 to 1.
    fn share_in_faults(&self) -> f64 {
        1.0 - 1.0 / self.slow_down()
    }

    fn text(&self) -> String {
        let of_budget = 100.0 * self.peak_counted as f64 / self.budget.max(1) as f64;
        let mut lines = vec![format!(
            "memory  peak {} of {} ({of_budget:.0} %; {}), {:.0} % of it memlift could put away",
            print::bytes(self.peak_counted),
            print::bytes(self.budget),
            self.source,
            100.0 * self.covered_share(),
        )];
        let spilled = self.counter("pages_spilled") * PAGE_BYTES;
        let away = match (self.ratio(), spilled) {
            (None, 0) => "nothing had to leave".to_owned(),
            (None, spilled) => format!("{} to the spill folder", print::bytes(spilled)),
            (Some(ratio), spilled) => format!(
                "{} packed {ratio:.1}:1, {} to the spill folder",
                print::bytes(self.counter("pages_stored") * PAGE_BYTES),
                print::bytes(spilled)
            ),
        };
        lines.push(format!("away    {away}"));
        let share = 100.0 * self.share_in_faults();
        lines.push(format!(
            "time    {:.1} s, {} process{}; about {share:.0} % of it brought memory back, in {} faults",
            self.wall_s,
            self.processes,
            if self.processes == 1 { "" } else { "es" },
            self.counter("faults"),
        ));
        if share >= 100.0 * SLOW_SHARE {
            lines.push("advice  more memory makes it faster: `memlift run --profile -- …` measures how much is enough".to_owned());
        }
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

    #[test]
    fn shares_and_ratios_come_from_the_counters() {
        let outcome = Outcome {
            budget: 100 << 20,
            peak_counted: 80 << 20,
            covered: 60 << 20,
            cpu_s: 3.0,
            processes: 1,
            source: "resident sizes".to_owned(),
            counters: vec![
                ("pages_stored", 10),
                ("bytes_stored", 20480),
                ("fault_ns", 1_000_000_000),
                ("faults", 7),
            ],
            ..Outcome::default()
        };
        let json = outcome.json();
        assert_eq!(json["ratio"], 2.0);
        assert_eq!(json["covered_share"], 0.75);
        assert_eq!(json["slow_down_estimate"], 1.5);
        let text = outcome.text();
        for wanted in
            ["peak 80.0 MiB of 100.0 MiB (80 %", "75 % of it", "packed 2.0:1", "33 % of it", "advice"]
        {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(text.lines().all(|line| line.starts_with("memlift: ")), "{text}");
        // Shares stay between 0 and 1, whatever the counters are.
        let odd =
            Outcome { covered: 900 << 20, cpu_s: 0.0, counters: vec![("fault_ns", u64::MAX)], ..outcome };
        let text = odd.text();
        assert!(text.contains("100 % of it memlift") && text.contains("about 100 % of it brought"), "{text}");
        let idle = Outcome { counters: Vec::new(), ..odd };
        assert!(
            idle.text().contains("nothing had to leave") && !idle.text().contains("advice"),
            "{}",
            idle.text()
        );
    }
}
