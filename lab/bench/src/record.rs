// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps the measured rows: `lab/bench/record/<cpu, family and model>/<date>.jsonl` of the checkout around the current folder.
//!
//! - **Layout** one JSON object per row: the row's fields, and under `machine` the CPU, its cores, the kernel, the
//!   time (UTC), the version of memlift and the commit of the checkout
//! - **Order** lines are appended; nothing is ever rewritten
//! - **Agreement** [`agreement`] compares the verdicts of a run with those of the newest recorded rows, both by today's definitions

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use memlift_cli::date::date;
use serde::Deserialize;

use crate::{BenchError, Definition, Row, Verdict, machine};

/// A recorded row and where it was recorded.
#[derive(Deserialize)]
pub(crate) struct Recorded {
    #[serde(flatten)]
    pub row: Row,
    pub machine: Machine,
}

#[derive(Deserialize)]
pub(crate) struct Machine {
    pub kernel: String,
    pub time: String,
}

/// The newest row of each name and rival.
pub(crate) type Newest = BTreeMap<(String, String), Recorded>;

/// Verdicts of a run beside those that were recorded on this CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Rows with a goal that have a verdict in both.
    pub compared: usize,
    /// Name, rival, recorded verdict and verdict of this run, of the rows whose verdicts differ.
    pub changed: Vec<(String, String, Verdict, Verdict)>,
}

impl Agreement {
    /// Share of the compared rows whose verdict is the recorded one, in percent; 100 if none was compared.
    pub fn percent(&self) -> usize {
        (self.compared - self.changed.len()) * 100 / self.compared.max(1)
            + 100 * usize::from(self.compared == 0)
    }
}

/// Compares the verdicts of a run with the newest recorded rows of this CPU.
pub(crate) fn agreement(definitions: &[Definition], rows: &[Row]) -> Result<Agreement, BenchError> {
    let folder = checkout()?.join("lab/bench/record").join(machine::cpu_folder());
    let recorded = if folder.is_dir() { newest(&folder)? } else { Newest::new() };
    Ok(compare(definitions, rows, &recorded))
}

fn compare(definitions: &[Definition], rows: &[Row], recorded: &Newest) -> Agreement {
    let mut found = Agreement::default();
    let timed = |verdict: &Verdict| *verdict != Verdict::Missing;
    for row in rows {
        let is_it = |one: &&Definition| one.name == row.name && one.rival == row.rival;
        let Some(definition) = definitions.iter().find(is_it) else { continue };
        if definition.ratio.is_none() && definition.count_max.is_empty() {
            continue;
        }
        let Some(now) = row.verdict.filter(timed) else { continue };
        let Some(before) = recorded.get(&(row.name.clone(), row.rival.clone())) else { continue };
        let judged = match before.row.verdict {
            Some(Verdict::Missing) => None,
            _ => definition.judge(&before.row, false),
        };
        let Some(before) = judged else { continue };
        found.compared += 1;
        if before != now {
            found.changed.push((row.name.clone(), row.rival.clone(), before, now));
        }
    }
    found
}

pub(crate) fn newest(folder: &Path) -> Result<Newest, BenchError> {
    let mut newest = Newest::new();
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(BenchError::file(folder))?
        .map(|entry| entry.map(|entry| entry.path()).map_err(BenchError::file(folder)))
        .collect::<Result<_, _>>()?;
    files.sort();
    for file in files {
        for line in fs::read_to_string(&file).map_err(BenchError::file(&file))?.lines() {
            let recorded: Recorded = serde_json::from_str(line)
                .map_err(|error| BenchError::file(&file)(std::io::Error::other(error)))?;
            let key = (recorded.row.name.clone(), recorded.row.rival.clone());
            // Lines of a file are in the order of their measurement.
            if newest.get(&key).is_none_or(|known| known.machine.time <= recorded.machine.time) {
                newest.insert(key, recorded);
            }
        }
    }
    Ok(newest)
}

/// The commit that is checked out, with `-changed` if files differ from it; nothing where git does not say.
fn commit(checkout: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(checkout).args(arguments).output().ok()?;
        let said = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| said.trim().to_owned())
    };
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no", "--", ":!lab/bench/record"])?;
    Some(if changed.is_empty() { head } else { format!("{head}-changed") })
}

/// Appends the rows; gives the file.
pub fn append(rows: &[Row]) -> Result<PathBuf, BenchError> {
    let checkout = checkout()?;
    let folder = checkout.join("lab/bench/record").join(machine::cpu_folder());
    fs::create_dir_all(&folder).map_err(BenchError::file(&folder))?;
    let time = now();
    let path = folder.join(format!("{}.jsonl", &time[..10]));
    let machine = serde_json::json!({
        "cpu": machine::cpu_name(),
        "cores": machine::cores(),
        "kernel": machine::kernel(),
        "time": time,
        "version": env!("CARGO_PKG_VERSION"),
        "commit": commit(&checkout),
    });
    let mut text = String::new();
    for row in rows {
        let mut line = serde_json::to_value(row).expect("a row is plain data");
        line["machine"] = machine.clone();
        text.push_str(&line.to_string());
        text.push('\n');
    }
    let mut file =
        OpenOptions::new().create(true).append(true).open(&path).map_err(BenchError::file(&path))?;
    file.write_all(text.as_bytes()).map_err(BenchError::file(&path))?;
    Ok(path)
}

/// Now, as 2000-02-29T12:34:56Z.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{}T{:02}:{:02}:{:02}Z", date(seconds), seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

/// The nearest folder upwards that holds lab/bench/definitions.
pub(crate) fn checkout() -> Result<PathBuf, BenchError> {
    let here = std::env::current_dir().map_err(BenchError::system("finding the current folder"))?;
    here.ancestors()
        .find(|folder| folder.join("lab/bench/definitions").is_dir() && folder.join("Cargo.toml").is_file())
        .map(PathBuf::from)
        .ok_or(BenchError::NoCheckout)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verdicts that differ are named; rows without one on either side are not compared.
    #[test]
    fn verdicts_are_compared_with_the_newest_of_the_record() {
        let definitions = crate::definition::all("ipc").expect("parses");
        let timed: Vec<&Definition> = definitions.iter().filter(|one| one.ratio == Some(6.0)).collect();
        let (first, second) = (timed[0], timed[1]);
        let row = |definition: &Definition, low: f64| {
            let mut row = Row { low: Some(low), ..Row::new(definition) };
            row.verdict = definition.judge(&row, false);
            row
        };
        let mut recorded = Newest::new();
        let mut record = |row: Row| {
            let machine = Machine { kernel: String::new(), time: String::new() };
            recorded.insert((row.name.clone(), row.rival.clone()), Recorded { row, machine });
        };
        record(row(first, 9.0));
        record(row(second, 9.0));
        let missing = Row { verdict: Some(Verdict::Missing), ..row(second, 1.0) };
        for (rows, compared, changed) in [
            (vec![row(first, 8.0), row(second, 7.0)], 2, 0),
            (vec![row(first, 8.0), row(second, 2.0)], 2, 1),
            (vec![row(first, 8.0), missing], 1, 0),
            (vec![], 0, 0),
        ] {
            let found = compare(&definitions, &rows, &recorded);
            assert_eq!((found.compared, found.changed.len()), (compared, changed), "{found:?}");
            assert_eq!(found.percent(), if changed == 0 { 100 } else { 50 });
        }
    }

    #[test]
    fn this_test_runs_in_a_checkout() {
        assert!(checkout().expect("found upwards").join("lab/bench/definitions/copy.toml").is_file());
    }
}
