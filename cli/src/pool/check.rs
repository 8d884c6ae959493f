// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift pool check`: prints damage and notes; the exit code is 1 if there is damage.

use std::path::{Path, PathBuf};

use memlift::persist::check::{self, Finding, Level, Report};
use serde_json::{Value, json};

use super::{failure, info};
use crate::failure::Failure;
use crate::print;

/// Checks a pool and prints the findings.
pub fn check(files: &[PathBuf], as_json: bool) -> Result<(), Failure> {
    let (report, path) = (check::check(files).map_err(failure(&files[0]))?, &*files[0]);
    if as_json {
        let mut document = info::document(path, &report);
        document["findings"] = findings(&report);
        document["sound"] = report.sound().into();
        print::json(&document)?;
    } else {
        print::line(&text(path, &report))?;
    }
    match report.damage().count() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!(
            "{count} damaged places; memlift pool repair {} NEW writes a repaired copy",
            path.display()
        ))),
    }
}

/// Returns the findings as JSON.
pub fn findings(report: &Report) -> Value {
    let one = |finding: &Finding| {
        json!({
            "level": if finding.level == Level::Damage { "damage" } else { "note" }, "part": finding.part.name(),
            "offset": finding.offset, "what": finding.what,
        })
    };
    report.findings.iter().map(one).collect()
}

/// Returns the findings as lines for people.
pub fn lines(report: &Report) -> Vec<String> {
    report
        .findings
        .iter()
        .map(|one| {
            let mark = if one.level == Level::Damage { '✗' } else { '–' };
            let at = one.offset.map(|offset| format!(" at {offset:#x}")).unwrap_or_default();
            format!("  {mark} {}{at}: {}", one.part.name(), one.what)
        })
        .collect()
}

fn text(path: &Path, report: &Report) -> String {
    let mut all = vec![info::text(path, report), String::new()];
    all.extend(lines(report));
    if report.sound() {
        all.push("  ✓ no damage".to_owned());
    }
    all.join("\n")
}
