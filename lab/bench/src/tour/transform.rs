// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Second chapter: Debian's nginx before and after the drop-ins, as a table.
//!
//! - **Flow** tour/transform_chapter.py ─▶ JSON lines (`about`, `row`, `missing`, `error`) ─▶ text, or the lines as they are
//! - **Skipped** where nginx, the pages or a drop-in cannot be had: a line says what to install, and nothing has failed
//! - **Not here** how it measures; that script says so in its own header

use serde::Deserialize;
use serde_json::Value;

use super::TourOptions;
use crate::BenchError;
use crate::python::Script;
use crate::row::three_digits;
use memlift_cli::libraries;

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
    nginx: String,
    files: u64,
    connections: u64,
    server_core: u64,
    client_core: u64,
    rounds: u64,
    measured_s: f64,
}

/// In each pair: with the drop-in, without it.
#[derive(Debug, Deserialize)]
struct Entry {
    workload: String,
    requests_per_s: (f64, f64),
    cpu_s: (f64, f64),
    bytes: (f64, f64),
    ratio: f64,
    cpu_ratio: f64,
    complaints: u64,
}

/// Runs the chapter; gives whether what could be had ran and was right.
pub(super) fn run(options: &TourOptions) -> Result<bool, BenchError> {
    let (mut about, mut entries, mut remarks) = (None, Vec::new(), Vec::new());
    let mut arguments = libraries::arguments();
    if options.quick {
        arguments.push("--quick".to_owned());
    }
    let script = Script { path: "tour/transform_chapter.py", arguments };
    let ended = script.run(|value: Value| {
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
    })?;
    if !options.json {
        print!("{}", chapter(about.as_ref(), &entries, &remarks));
    }
    Ok(ended && remarks.iter().all(|remark| remark.starts_with("skipped: ")))
}

/// The chapter as text.
fn chapter(about: Option<&About>, entries: &[Entry], remarks: &[String]) -> String {
    let mut text = "\ntransform: Debian's nginx before and after, nothing recompiled\n".to_owned();
    if let Some(about) = about {
        text += &format!(
            "{}, one worker on core {}, client on core {}, {} connections kept alive. gzip: {} pieces of Debian's \
             python3.11-doc,\neach answer unpacked and compared before; TLS: AES-128-GCM, random files. Medians of {} \
             rounds, {:.0} s.\n\n",
            about.nginx,
            about.server_core,
            about.client_core,
            about.connections,
            about.files,
            about.rounds,
            about.measured_s,
        );
    }
    if !entries.is_empty() {
        text += &format!(
            "{:<16} {:>13} {:>15} {:>9} {:>13} {:>15} {:>9} {:>15}\n",
            "nginx serves",
            "req/s before",
            "req/s after",
            "times",
            "CPU µs before",
            "CPU µs after",
            "times",
            "bytes, × before"
        );
    }
    for entry in entries {
        let size = format!("{:.0}, {:.3}", entry.bytes.0, entry.bytes.0 / entry.bytes.1);
        text += &format!(
            "{:<16} {:>13} {:>15} {:>9} {:>13} {:>15} {:>9} {:>15}\n",
            entry.workload,
            three_digits(entry.requests_per_s.1),
            three_digits(entry.requests_per_s.0),
            format!("{}×", three_digits(entry.ratio)),
            three_digits(entry.cpu_s.1 * 1e6),
            three_digits(entry.cpu_s.0 * 1e6),
            format!("{}×", three_digits(entry.cpu_ratio)),
            size,
        );
        if entry.complaints > 0 {
            text += &format!("  nginx wrote {} complaints to its error log\n", entry.complaints);
        }
    }
    if !entries.is_empty() {
        text += "\nafter: LD_PRELOAD=libmemlift_z.so, or an openssl.cnf with the provider (memlift dropin enable does both). CPU: \
                 of the worker,\nper request. TLS is not bound by the server alone where the client's core decrypts as much: \
                 there the CPU column counts.\n";
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
    fn a_line_has_both_sides_and_missing_things_are_said() {
        let row = r#"{"chapter": "transform", "kind": "row", "workload": "gzip 6, 4 KiB", "requests_per_s": [20000.0, 8000.0],
            "cpu_s": [5e-5, 1.25e-4], "bytes": [1000.0, 950.0], "ratio": 2.5, "cpu_ratio": 2.5, "complaints": 0}"#;
        let Line::Row(entry) = serde_json::from_str(row).expect("a row") else { panic!("not a row") };
        let text = chapter(None, &[entry], &["skipped: sudo apt install nginx".to_owned()]);
        let line = text.lines().find(|line| line.starts_with("gzip 6")).expect("the row's line");
        assert!(line.contains("8000") && line.contains("20000") && line.contains("2.50×"), "{line}");
        assert!(line.contains("50.0") && line.contains("125") && line.contains("1000, 1.053"), "{line}");
        assert!(text.contains("sudo apt install nginx"));
    }
}
