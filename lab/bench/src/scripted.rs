// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows that a Python script measures: it gives one line per row, this side judges.
//!
//! - **Flow** definitions ─▶ `--row NAME RIVAL` ─▶ one JSON line per row: pairs of seconds, counts, CPU-seconds, or
//!   why not ─▶ statistics ─▶ row
//! - **Not here** how a row is measured; which rows there are

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::definition::Definition;
use crate::python::Script;
use crate::row::Sink;
use crate::{BenchError, CpuSeconds, Options, Row, Verdict};

/// Row as a script reports it, one JSON line.
#[derive(Debug, Deserialize)]
struct Line {
    name: String,
    rival: String,
    #[serde(default)]
    pairs: Vec<(f64, f64)>,
    #[serde(default)]
    value: Option<f64>,
    #[serde(default)]
    cpu: Option<(Option<f64>, Option<f64>)>,
    #[serde(default)]
    count: BTreeMap<String, u64>,
    #[serde(default)]
    qualifies: String,
    #[serde(default)]
    verified: bool,
    #[serde(default)]
    missing: Option<String>,
    #[serde(default)]
    error: Option<String>,
}

/// Lets the script at `path` (below lab/bench/) measure the rows; gives how many failed.
pub(crate) fn run(
    path: &'static str,
    mut arguments: Vec<String>,
    definitions: &[Definition],
    options: &Options,
    sink: &mut Sink,
) -> Result<usize, BenchError> {
    for row in definitions {
        arguments.extend(["--row".to_owned(), row.name.clone(), row.rival.clone()]);
    }
    if options.quick {
        arguments.push("--quick".to_owned());
    }
    let (mut failed, mut seen) = (0, Vec::new());
    Script { path, arguments }.run(|value| {
        let Some((definition, row)) = judge(definitions, value, options.quick) else { return };
        failed += usize::from(row.qualifies.starts_with("failed: "));
        seen.push((definition.name.clone(), definition.rival.clone()));
        sink.push(row);
    })?;
    for row in definitions.iter().filter(|row| !seen.contains(&(row.name.clone(), row.rival.clone()))) {
        failed += 1;
        sink.push(Row::failed(row, &format!("{path} gave no line for it")));
    }
    Ok(failed)
}

/// The row that a line makes, with its definition; None for a line about nothing that was asked for.
fn judge(definitions: &[Definition], value: Value, quick: bool) -> Option<(&Definition, Row)> {
    let line: Line = serde_json::from_value(value).ok()?;
    let definition = definitions.iter().find(|row| row.name == line.name && row.rival == line.rival)?;
    if let Some(reason) = line.missing {
        return Some((definition, Row::missing(definition, &reason)));
    }
    if line.error.is_some() || !line.verified {
        let reason = line.error.unwrap_or_else(|| "the bytes were not verified".to_owned());
        return Some((definition, Row::failed(definition, &reason)));
    }
    let mut row = Row::new(definition);
    row.count = line.count;
    row.qualifies = line.qualifies;
    if let Some((ours, theirs)) = line.cpu {
        row.cpu_s = CpuSeconds { ours, theirs };
    }
    if let Some(value) = line.value {
        row.ours = Some(value);
        row.verdict = definition.judge(&row, quick);
        return Some((definition, row));
    }
    if line.pairs.iter().any(|(ours, theirs)| !(*ours > 0.0 && *theirs > 0.0)) || line.pairs.is_empty() {
        row.verdict = Some(Verdict::Short);
        return Some((definition, Row::failed(definition, "there are no pairs of times")));
    }
    let row = row.measured(definition, &line.pairs, quick);
    Some((definition, row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definitions() -> Vec<Definition> {
        crate::definition::all("ipc").expect("parses")
    }

    #[test]
    fn pairs_become_a_judged_row() {
        let pairs = vec![[0.010, 0.080]; 21];
        let line = json!({"name": "ipc/array/134217728", "rival": "zmq", "pairs": pairs, "cpu": [0.02, 0.1],
            "qualifies": "two cores", "verified": true});
        let definitions = definitions();
        let (_, row) = judge(&definitions, line, false).expect("a row");
        assert_eq!((row.ours, row.theirs, row.unit.as_str()), (Some(10.0), Some(80.0), "ms"));
        assert_eq!(row.verdict, Some(Verdict::Ok));
        assert_eq!(row.cpu_s, CpuSeconds { ours: Some(0.02), theirs: Some(0.1) });
    }

    #[test]
    fn missing_failed_and_unverified_rows_are_never_ok() {
        let definitions = definitions();
        let verdict = |line| judge(&definitions, line, false).map(|(_, row)| (row.verdict, row.qualifies));
        let (missing, reason) =
            verdict(json!({"name": "ipc/bytes/64/python", "rival": "zmq", "missing": "pip install pyzmq"}))
                .expect("row");
        assert_eq!((missing, reason.as_str()), (Some(Verdict::Missing), "pip install pyzmq"));
        for line in [
            json!({"name": "ipc/bytes/64/python", "rival": "zmq", "error": "RuntimeError: x"}),
            json!({"name": "ipc/bytes/64/python", "rival": "zmq", "pairs": [[1.0, 9.0]]}),
            json!({"name": "ipc/bytes/64/python", "rival": "zmq", "pairs": [], "verified": true}),
        ] {
            let (verdict, reason) = verdict(line).expect("row");
            assert_eq!(verdict, Some(Verdict::Short));
            assert!(reason.starts_with("failed: "));
        }
        assert!(judge(&definitions, json!({"name": "ipc/other", "rival": "zmq"}), false).is_none());
    }

    #[test]
    fn idle_is_judged_by_its_count_even_when_quick() {
        let definitions = definitions();
        let line = |wakeups| {
            json!({"name": "ipc/idle", "rival": "none", "value": f64::from(wakeups), "verified": true,
                "count": {"wakeups": wakeups}})
        };
        let verdict = |wakeups| judge(&definitions, line(wakeups), true).and_then(|(_, row)| row.verdict);
        assert_eq!(verdict(0), Some(Verdict::Ok));
        assert_eq!(verdict(3), Some(Verdict::Short));
    }
}
