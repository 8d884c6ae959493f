// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One measured row: the fields of the measuring contract, as a JSON line or a line of the table.
//!
//! - **Flow** `Definition` ──[`Row::new`]──▶ empty row ──[`Row::measured`]──▶ judged row ──[`Sink`]──▶ stdout
//! - **Layout** name · ours · theirs · unit · rival · ratio · low · count · cpu_s · qualifies · verdict; what was not
//!   measured is null

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::definition::Definition;
use crate::statistics::{self, Pair};

/// Result of a row against its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The target is reached, or there is none and the row verified.
    Ok,
    /// The target is not reached, or the row failed.
    Short,
    /// A rival, or something that the row needs, is not installed.
    Missing,
}

/// Reason that there is no measured row.
#[derive(Debug)]
pub enum Stop {
    /// A rival, or something that the row needs, is missing; the text says what to install.
    Missing(String),
    /// The measurement failed.
    Failed(BenchError),
}

impl From<BenchError> for Stop {
    fn from(error: BenchError) -> Stop {
        Stop::Failed(error)
    }
}

/// Measures rows one after the other; gives how many failed.
pub(crate) fn each(
    definitions: &[Definition],
    sink: &mut Sink,
    row: impl Fn(&Definition) -> Result<Row, Stop>,
) -> usize {
    let mut failed = 0;
    for definition in definitions {
        eprintln!("{} against {} …", definition.name, definition.rival);
        sink.push(row(definition).unwrap_or_else(|stop| match stop {
            Stop::Missing(what) => Row::missing(definition, &what),
            Stop::Failed(error) => {
                failed += 1;
                Row::failed(definition, &error.to_string())
            }
        }));
    }
    failed
}

/// CPU-seconds of all threads of all processes, per call.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CpuSeconds {
    /// CPU-seconds with memlift.
    pub ours: Option<f64>,
    /// CPU-seconds with the rival.
    pub theirs: Option<f64>,
}

/// One line of a bench.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The exact name from `definitions/*.toml`.
    pub name: String,
    /// Median with memlift, in `unit`.
    pub ours: Option<f64>,
    /// Median with the rival, in `unit`.
    pub theirs: Option<f64>,
    /// Unit of both.
    pub unit: String,
    /// Name of the rival; `limit` for a physical limit.
    pub rival: String,
    /// Greater than 1: memlift is better. Against `limit`: the share of the limit reached.
    pub ratio: Option<f64>,
    /// 95 % bootstrap lower bound of `ratio`.
    pub low: Option<f64>,
    /// Counts that do not depend on the machine, by name.
    pub count: BTreeMap<String, u64>,
    /// CPU-seconds per call.
    pub cpu_s: CpuSeconds,
    /// Conditions that make the comparison fair or unfair.
    pub qualifies: String,
    /// None where `--quick` gives no verdict on time.
    pub verdict: Option<Verdict>,
}

impl Row {
    /// A row of which nothing is known yet.
    pub fn new(definition: &Definition) -> Row {
        Row {
            name: definition.name.clone(),
            ours: None,
            theirs: None,
            unit: definition.unit.clone(),
            rival: definition.rival.clone(),
            ratio: None,
            low: None,
            count: BTreeMap::new(),
            cpu_s: CpuSeconds::default(),
            qualifies: String::new(),
            verdict: None,
        }
    }

    /// Fills in medians, ratio, bound and verdict from pairs of seconds.
    #[must_use]
    pub fn measured(mut self, definition: &Definition, seconds: &[Pair], quick: bool) -> Row {
        let (ours, theirs) = (seconds.iter().map(|pair| pair.0), seconds.iter().map(|pair| pair.1));
        let medians = (self.shown(statistics::median(ours)), self.shown(statistics::median(theirs)));
        (self.ours, self.theirs) = (Some(medians.0), Some(medians.1));
        self.ratio = Some(statistics::ratio(seconds));
        if seconds.len() >= statistics::PAIRS_MIN {
            self.low = Some(statistics::ratio_low(seconds));
        }
        self.verdict = definition.judge(&self, quick);
        self
    }

    /// Seconds in the row's unit.
    pub fn shown(&self, seconds: f64) -> f64 {
        match self.unit.as_str() {
            "req/s" | "key/s" => seconds.recip(),
            unit => seconds * unit_per_second(unit),
        }
    }

    /// A row that could not be compared; `reason` says what to install.
    pub fn missing(definition: &Definition, reason: &str) -> Row {
        Row { verdict: Some(Verdict::Missing), qualifies: reason.to_owned(), ..Row::new(definition) }
    }

    /// A row that failed.
    pub fn failed(definition: &Definition, reason: &str) -> Row {
        Row { verdict: Some(Verdict::Short), qualifies: format!("failed: {reason}"), ..Row::new(definition) }
    }

    /// The row as a line of the table under [`TABLE_HEAD`].
    pub fn table_line(&self) -> String {
        let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), three_digits);
        let verdict = match self.verdict {
            Some(Verdict::Ok) => "ok",
            Some(Verdict::Short) => "short",
            Some(Verdict::Missing) => "missing",
            None => "ran",
        };
        let mut line = format!(
            "{:<32} {:>9} {:>9} {:<5} {:<12} {:>6} {:>6} {:>9} {:>9}  {verdict}",
            self.name,
            number(self.ours),
            number(self.theirs),
            self.unit,
            self.rival,
            number(self.ratio),
            number(self.low),
            number(self.cpu_s.ours.map(|seconds| seconds * 1e3)),
            number(self.cpu_s.theirs.map(|seconds| seconds * 1e3)),
        );
        if self.ours.is_none() && self.ratio.is_none() {
            line.push_str(&format!("  ({})", self.qualifies));
        }
        line
    }
}

/// Heads the columns of [`Row::table_line`]; `cpu` is in CPU-milliseconds per call.
pub const TABLE_HEAD: &str = "name                                  ours    theirs unit  rival         ratio    low  cpu ours cpu theirs verdict";

/// Returns how many of a unit make a second; 1 if the unit is no time.
fn unit_per_second(unit: &str) -> f64 {
    match unit {
        "ms" => 1e3,
        "us" => 1e6,
        "ns" => 1e9,
        _ => 1.0,
    }
}

/// Three significant digits, but whole numbers in full.
pub(crate) fn three_digits(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if magnitude >= 100.0 {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else if magnitude >= 0.01 {
        format!("{value:.2}")
    } else {
        format!("{value:.1e}")
    }
}

/// Sink of finished rows: prints them at once and keeps them for the summary.
pub(crate) struct Sink {
    json: bool,
    rows: Vec<Row>,
}

impl Sink {
    /// Prints the table's head unless `json`.
    pub fn new(json: bool) -> Sink {
        if !json {
            println!("{TABLE_HEAD}");
        }
        Sink { json, rows: Vec::new() }
    }

    /// Prints a row.
    pub fn push(&mut self, row: Row) {
        if self.json {
            println!("{}", serde_json::to_string(&row).expect("a row is plain data"));
        } else {
            println!("{}", row.table_line());
        }
        self.rows.push(row);
    }

    /// Prints what qualifies the rows; gives them back.
    pub fn finish(self) -> Vec<Row> {
        if !self.json {
            let shared = shared_qualifiers(&self.rows);
            if !shared.is_empty() {
                println!("\nqualified by (--json: of each row):");
            }
            for line in shared {
                println!("  {line}");
            }
        }
        self.rows
    }
}

/// The parts of the rows' `qualifies` that more than one row has, or all of them of a single row; each once.
fn shared_qualifiers(rows: &[Row]) -> Vec<&str> {
    let measured: Vec<&Row> = rows.iter().filter(|row| row.ours.is_some()).collect();
    let mut parts: Vec<(&str, usize)> = Vec::new();
    for part in measured.iter().flat_map(|row| row.qualifies.split("; ")) {
        match parts.iter_mut().find(|(known, _)| *known == part) {
            Some((_, times)) => *times += 1,
            None => parts.push((part, 1)),
        }
    }
    parts.into_iter().filter(|(_, times)| *times > 1 || measured.len() == 1).map(|(part, _)| part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Definition {
        crate::definition::all("copy").expect("parses").remove(0)
    }

    #[test]
    fn json_has_exactly_the_fields_of_the_contract() {
        let row = Row::new(&definition());
        let value = serde_json::to_value(&row).expect("plain data");
        let mut fields: Vec<_> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "count",
                "cpu_s",
                "low",
                "name",
                "ours",
                "qualifies",
                "ratio",
                "rival",
                "theirs",
                "unit",
                "verdict"
            ]
        );
        assert_eq!(serde_json::from_value::<Row>(value).expect("reads back"), row);
    }

    #[test]
    fn seconds_become_the_unit_of_the_definition() {
        let definition = definition();
        let row = Row::new(&definition).measured(&definition, &[(0.010, 0.020); 21], false);
        assert_eq!((row.ours, row.theirs), (Some(10.0), Some(20.0)));
        assert_eq!(row.verdict, Some(Verdict::Ok));
        let few = Row::new(&definition).measured(&definition, &[(0.010, 0.020); 20], false);
        assert_eq!((few.low, few.verdict), (None, Some(Verdict::Short)));
    }

    #[test]
    fn a_missing_rival_is_never_ok() {
        let row = Row::missing(&definition(), "pip install pyzmq");
        assert_eq!(row.verdict, Some(Verdict::Missing));
        assert!(row.table_line().contains("pip install pyzmq"));
    }

    #[test]
    fn qualifiers_of_several_rows_stand_once() {
        let row = |qualifies: &str| Row {
            ours: Some(1.0),
            qualifies: qualifies.to_owned(),
            ..Row::new(&definition())
        };
        let rows = [row("two cores; 3 GB/s"), row("two cores; 4 GB/s")];
        assert_eq!(shared_qualifiers(&rows), ["two cores"]);
        assert_eq!(shared_qualifiers(&rows[..1]), ["two cores", "3 GB/s"]);
    }
}
