// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Third chapter: a program is killed in the middle; a table shows the state that it left.
//!
//! - **Flow** a folder on a disk ─▶ tour/persist_chapter.py, which starts this program again as the one that is killed ─▶ JSON lines
//!   (`about`, `row`, `missing`, `error`) ─▶ text, or the lines as they are
//! - **Skipped** where the text cannot be had, or no folder is on a disk: a line says what to do, and nothing has failed
//! - **Not here** how it measures; that script says so in its own header

use serde::Deserialize;
use serde_json::{Value, json};

use super::TourOptions;
use crate::BenchError;
use crate::contender::CHILD_ARGUMENT;
use crate::persist::{self, Folder};
use crate::python::Script;
use crate::row::three_digits;

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    About(About),
    Row(Entry),
    Missing { missing: String },
    Error { error: String },
}

#[derive(Debug, Deserialize)]
struct About {
    words: u64,
    kills: u64,
    file_system: String,
    guarantee: String,
    sqlite: String,
}

#[derive(Debug, Deserialize)]
struct Entry {
    store: String,
    words_per_s: f64,
    cpu_s: f64,
    open_s: f64,
    said: u64,
    there: u64,
    wrong: u64,
}

/// Runs the chapter; gives whether what could be had ran and was right.
pub(super) fn run(options: &TourOptions) -> Result<bool, BenchError> {
    let (mut about, mut entries, mut remarks) = (None, Vec::new(), Vec::new());
    let mut hear = |value: Value| {
        if options.json {
            println!("{value}");
        }
        match serde_json::from_value(value) {
            Ok(Line::About(line)) => about = Some(line),
            Ok(Line::Row(entry)) => entries.push(entry),
            Ok(Line::Missing { missing }) => remarks.push(format!("skipped: {missing}")),
            Ok(Line::Error { error }) => remarks.push(format!("failed: {error}")),
            Err(error) => remarks.push(format!("a line that cannot be read: {error}")),
        }
    };
    let ended = match Folder::new() {
        Ok(folder) => script(&folder, options)?.run(hear)?,
        Err(missing) => {
            hear(json!({"chapter": "persist", "kind": "missing", "missing": missing}));
            true
        }
    };
    if !options.json {
        print!("{}", chapter(about.as_ref(), &entries, &remarks));
    }
    Ok(ended && remarks.iter().all(|remark| remark.starts_with("skipped: ")))
}

fn script(folder: &Folder, options: &TourOptions) -> Result<Script<'static>, BenchError> {
    let program = std::env::current_exe().map_err(BenchError::system("finding this program"))?;
    let mut arguments =
        vec![format!("--folder={}", folder.path.display()), format!("--file-system={}", folder.file_system)];
    if options.quick {
        arguments.push("--quick".to_owned());
    }
    for (option, value) in [
        ("--program", program.display().to_string()),
        ("--argument", CHILD_ARGUMENT.to_owned()),
        ("--argument", persist::NAME.to_owned()),
        ("--argument", "words".to_owned()),
    ] {
        arguments.push(format!("{option}={value}"));
    }
    Ok(Script { path: "tour/persist_chapter.py", arguments })
}

/// The chapter as text.
fn chapter(about: Option<&About>, entries: &[Entry], remarks: &[String]) -> String {
    let mut text = "\npersist: kill -9 in the middle, and what is there afterwards\n".to_owned();
    if let Some(about) = about {
        text += &format!(
            "A program counts the words of Debian's python3.11-doc ({} of them) in an ordered map on {}, one durable \
             transaction\nper word, and says so after each. Kills: {}; after each, another process opens the file and \
             compares.\nmemlift: {}. SQLite {}: WAL, synchronous=FULL, by Python.\n\n",
            about.words, about.file_system, about.kills, about.guarantee, about.sqlite,
        );
    }
    if !entries.is_empty() {
        text += &format!(
            "{:<9} {:>11} {:>11} {:>9} {:>12} {:>12} {:>17}\n",
            "kept in", "words/s", "CPU µs", "open ms", "words said", "words there", "missing or wrong"
        );
    }
    for entry in entries {
        text += &format!(
            "{:<9} {:>11} {:>11} {:>9} {:>12} {:>12} {:>17}\n",
            entry.store,
            three_digits(entry.words_per_s),
            three_digits(entry.cpu_s * 1e6),
            three_digits(entry.open_s * 1e3),
            entry.said,
            entry.there,
            entry.wrong,
        );
    }
    if let [ours, theirs] = entries {
        text += &format!(
            "\nmemlift makes {}× the words per second durable. there may be one more than said: the kill came between \
             the two.\nCPU: of the program per word, its start included. Both wait for the same disk: its sync is most \
             of a word's time.\n",
            three_digits(ours.words_per_s / theirs.words_per_s)
        );
    }
    for remark in remarks {
        text += &format!("{remark}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_was_said_and_what_is_there() {
        let row = |store: &str, rate: f64| {
            let row = json!({"chapter": "persist", "kind": "row", "store": store, "words_per_s": rate, "cpu_s": 1e-4,
                "open_s": 0.002, "said": 4711, "there": 4712, "wrong": 0});
            let Ok(Line::Row(entry)) = serde_json::from_value(row) else { panic!("not a row") };
            entry
        };
        let entries = [row("memlift", 5000.0), row("SQLite", 2500.0)];
        let text = chapter(None, &entries, &["skipped: sudo apt install python3.11-doc".to_owned()]);
        let line = text.lines().find(|line| line.starts_with("memlift ")).expect("the row's line");
        assert!(line.contains("5000") && line.contains("4711") && line.contains("4712"), "{line}");
        assert!(text.contains("2.00×") && text.contains("sudo apt install python3.11-doc"));
    }
}
