// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes docs/benchmarks from lab/bench/record: a page per service, with a table and a drawing per CPU.
//!
//! - **Flow** `record/<cpu>/<date>.jsonl` ─▶ the newest row of each name, rival and CPU ─▶ judged by today's definitions ─▶ `SERVICE.md`,
//!   `pictures/SERVICE-<cpu>.svg` and `README.md`; `notes/SERVICE.md` ends a page
//! - **Order** CPUs as `record/cpus.toml` lists them, rows as their definitions do; the same records give the same bytes
//! - **Not here** numbers of any other source: a row that was never recorded is listed as not measured

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::record::{Newest, Recorded, newest};
use crate::row::three_digits;
use crate::{BenchError, Definition, Row, SERVICES, Verdict, definition, record, report};

#[derive(Deserialize)]
struct Cpus {
    cpu: Vec<Cpu>,
}

/// A CPU that rows were recorded on.
#[derive(Deserialize)]
struct Cpu {
    folder: String,
    title: String,
}

fn number(value: Option<f64>, unit: &str) -> String {
    value.map_or_else(
        || "–".to_owned(),
        |value| format!("{} {unit}", three_digits(value)).trim_end().to_owned(),
    )
}

/// Returns the goals of a row as text: for the lower bound of its ratio, and for its counts.
fn wanted(definition: &Definition) -> String {
    let ratio = definition.ratio.map(three_digits);
    let counts = definition.count_max.iter().map(|(name, max)| format!("{name} ≤ {max}"));
    ratio.into_iter().chain(counts).collect::<Vec<_>>().join(", ")
}

/// One service on one CPU: its rows in the order of the definitions.
fn table(out: &mut String, rows: &[(&Definition, &Recorded, Option<Verdict>)]) {
    out.push_str("| row | against | ours | theirs | ratio | low | wanted | | counts | date |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (definition, Recorded { row, machine }, verdict) in rows {
        let verdict = match verdict {
            Some(Verdict::Ok) => "ok",
            Some(Verdict::Short) => "**short**",
            Some(Verdict::Missing) => "not installed",
            None => "",
        };
        let counts: Vec<String> = row.count.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {} | {} | {} | {verdict} | {} | {} |",
            row.name,
            row.rival,
            number(row.ours, &row.unit),
            number(row.theirs, &row.unit),
            number(row.ratio, ""),
            number(row.low, ""),
            wanted(definition),
            counts.join(", "),
            &machine.time[..10],
        );
    }
}

/// How each row was measured: the configuration of both sides.
fn details(out: &mut String, rows: &[(&Definition, &Recorded, Option<Verdict>)]) {
    out.push_str("\n<details><summary>How each row was measured</summary>\n\n| row | against | how | kernel |\n|---|---|---|---|\n");
    for (_, Recorded { row, machine }, _) in rows {
        let how = row.qualifies.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;");
        let _ = writeln!(out, "| `{}` | {} | {how} | {} |", row.name, row.rival, machine.kernel);
    }
    out.push_str("\n</details>\n");
}

/// Writes the pages into `out` and returns those that were written, in order.
pub fn write(out: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let folder = record::checkout()?.join("lab/bench/record");
    let file = folder.join("cpus.toml");
    let text = fs::read_to_string(&file).map_err(BenchError::file(&file))?;
    let cpus: Cpus =
        toml::from_str(&text).map_err(|error| BenchError::file(&file)(std::io::Error::other(error)))?;
    let recorded: Vec<(Cpu, Newest)> = cpus
        .cpu
        .into_iter()
        .map(|cpu| newest(&folder.join(&cpu.folder)).map(|rows| (cpu, rows)))
        .collect::<Result<_, _>>()?;
    let pictures = out.join("pictures");
    fs::create_dir_all(&pictures).map_err(BenchError::file(&pictures))?;
    let mut written = Vec::new();
    let mut save = |path: PathBuf, text: &str| {
        fs::write(&path, text).map_err(BenchError::file(&path))?;
        written.push(path);
        Ok::<(), BenchError>(())
    };
    let mut index = String::from(
        "# Numbers\n\nEvery row of `memlift bench`, as it was last recorded in `lab/bench/record` on each CPU. These pages are made by `memlift-lab report`.\n\n\
         - **ratio** how many times better memlift is than the rival, by medians of at least 21 interleaved pairs; above 1 is better. Against `limit` it is the share of \
         that limit that was reached.\n- **low** the 95 % lower bound of the ratio. A row is *ok* if it reaches what is **wanted**, and **short** if not.\n\
         - Both sides write and read every byte and compare checksums. Machines were virtual, with two cores shared with others: take ratios, not times.\n\n\
         To measure a service where you are: `memlift bench SERVICE --report DIR`; `tools/setup rivals` installs who ipc is compared with. \
         On a CPU of this table, `memlift bench SERVICE --agree` says which verdicts are other ones there.\n\n\
         | service | CPU | ok | short | rival not installed | not measured there |\n|---|---|---|---|---|---|\n",
    );
    for service in SERVICES {
        let definitions = definition::all(service)?;
        let mut page = format!(
            "# {service}: numbers\n\nMade from `lab/bench/record` by `memlift-lab report`; [what the columns mean](README.md). \
             `memlift bench {service} --only ROW` measures a row again.\n"
        );
        for (cpu, newest) in &recorded {
            let rows: Vec<_> = definitions
                .iter()
                .filter_map(|definition| {
                    let recorded = newest.get(&(definition.name.clone(), definition.rival.clone()))?;
                    let missing = recorded.row.verdict == Some(Verdict::Missing);
                    let verdict =
                        if missing { Some(Verdict::Missing) } else { definition.judge(&recorded.row, false) };
                    Some((definition, recorded, verdict))
                })
                .collect();
            if rows.is_empty() {
                continue;
            }
            let count = |wanted| rows.iter().filter(|(_, _, verdict)| *verdict == Some(wanted)).count();
            let _ = writeln!(
                index,
                "| [{service}]({service}.md#{}) | {} | {} | {} | {} | {} |",
                cpu.folder,
                cpu.title,
                count(Verdict::Ok),
                count(Verdict::Short),
                count(Verdict::Missing),
                definitions.len() - rows.len(),
            );
            let _ = writeln!(page, "\n<a id=\"{}\"></a>\n\n## {}\n", cpu.folder, cpu.title);
            let plain: Vec<Row> = rows
                .iter()
                .map(|(_, recorded, verdict)| Row { verdict: *verdict, ..recorded.row.clone() })
                .collect();
            if let Some(drawing) = report::ratios(&plain) {
                let name = format!("{service}-{}.svg", cpu.folder);
                save(pictures.join(&name), &drawing)?;
                let _ = writeln!(
                    page,
                    "![Ratios with their lower bounds; hollow dots are short](pictures/{name})\n"
                );
            }
            table(&mut page, &rows);
            details(&mut page, &rows);
        }
        let notes = folder.with_file_name("notes").join(format!("{service}.md"));
        if notes.exists() {
            let notes = fs::read_to_string(&notes).map_err(BenchError::file(&notes))?;
            let _ = write!(page, "\n## Notes\n\n{notes}");
        }
        save(out.join(format!("{service}.md")), &page)?;
    }
    save(out.join("README.md"), &index)?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_pages_are_what_the_record_gives() {
        let made = tempfile::tempdir().expect("a folder");
        let committed = record::checkout().expect("found upwards").join("docs/benchmarks");
        for path in write(made.path()).expect("written") {
            let beside = committed.join(path.strip_prefix(made.path()).expect("inside"));
            let text = fs::read_to_string(&path).expect("just written");
            assert!(
                fs::read_to_string(&beside).is_ok_and(|there| there == text),
                "{} is out of date: memlift-lab report",
                beside.display()
            );
        }
    }

    #[test]
    fn every_recorded_folder_has_a_title() {
        let folder = record::checkout().expect("found upwards").join("lab/bench/record");
        let text = fs::read_to_string(folder.join("cpus.toml")).expect("there");
        let mut titled: Vec<String> =
            toml::from_str::<Cpus>(&text).expect("parses").cpu.into_iter().map(|cpu| cpu.folder).collect();
        titled.sort();
        let mut folders: Vec<String> = fs::read_dir(&folder)
            .expect("readable")
            .map(|entry| entry.expect("readable"))
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().into_string().expect("plain"))
            .collect();
        folders.sort();
        assert_eq!(titled, folders);
    }
}
