// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift doctor`: what this machine offers, what memlift makes of it, and what to do about the rest.
//!
//! - **Flow** one file per section, each gives [`Check`]s ─▶ text or JSON
//! - **Exit** 0 when everything that memlift needs is there; 1 when something it needs is not (✗). What is merely
//!   absent (–) has a fallback.

pub mod calibration;
mod cpu;
mod dsa;
mod facilities;
mod ipc;
mod memory;
mod persist;
mod python;
mod transform;
mod traverse;

use std::path::Path;

use serde_json::{Value, json};

use crate::failure::Failure;
use crate::{calibrate, print};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Present, and memlift uses it.
    Usable,
    /// Missing or masked; a fallback is used.
    Absent,
    /// Missing, and memlift needs it.
    Broken,
}

/// One line of the report.
#[derive(Debug)]
pub struct Check {
    state: State,
    what: String,
    found: String,
    advice: Option<String>,
}

impl Check {
    /// A check that found its subject.
    pub fn usable(what: &str, found: impl Into<String>) -> Self {
        Self { state: State::Usable, what: what.to_owned(), found: found.into(), advice: None }
    }

    /// A check that did not find its subject, which is no fault.
    pub fn absent(what: &str, found: impl Into<String>) -> Self {
        Self { state: State::Absent, ..Self::usable(what, found) }
    }

    /// A check that did not find something that memlift needs.
    pub fn broken(what: &str, found: impl Into<String>) -> Self {
        Self { state: State::Broken, ..Self::usable(what, found) }
    }

    /// Adds a step that the user can take.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into()).filter(|text| !text.is_empty());
        self
    }

    fn json(&self) -> Value {
        let state = match self.state {
            State::Usable => "usable",
            State::Absent => "absent",
            State::Broken => "broken",
        };
        json!({ "what": self.what, "state": state, "found": self.found, "advice": self.advice })
    }
}

/// Prints the report.
pub fn run(folder: &Path, as_json: bool) -> Result<(), Failure> {
    let engine = calibrate::open().map_err(|failure| failure.to_string());
    let sections: Vec<(&str, Vec<Check>)> = vec![
        ("cpu", cpu::checks(&engine)),
        ("memory", memory::checks()),
        ("memory cgroup", memory::cgroup_checks()),
        ("kernel facilities", facilities::checks()),
        ("ipc", ipc::checks()),
        ("transform", transform::checks()),
        ("persist", persist::checks(folder)),
        ("traverse", traverse::checks()),
        ("zmem", crate::run::checks()),
        ("Intel DSA", dsa::checks()),
        ("calibration", calibration::checks(&engine)),
        ("Python", python::checks()),
    ];
    let broken: Vec<&str> = sections
        .iter()
        .flat_map(|(_, checks)| checks)
        .filter(|check| check.state == State::Broken)
        .map(|check| check.what.as_str())
        .collect();
    if as_json {
        let sections: Vec<Value> = sections
            .iter()
            .map(|(name, checks)| {
                json!({ "section": name, "checks": checks.iter().map(Check::json).collect::<Vec<_>>() })
            })
            .collect();
        print::json(&json!({ "memlift": env!("CARGO_PKG_VERSION"), "sections": sections }))?;
    } else {
        print::line(&text(&sections))?;
    }
    if broken.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "memlift cannot do without: {}; the report says what to do",
        broken.join(", ")
    )))
}

fn text(sections: &[(&str, Vec<Check>)]) -> String {
    let width = sections.iter().flat_map(|(_, checks)| checks).map(|check| check.what.chars().count()).max();
    let width = width.unwrap_or(0);
    let mut lines = Vec::new();
    for (name, checks) in sections {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push((*name).to_owned());
        for check in checks {
            let mark = match check.state {
                State::Usable => '✓',
                State::Absent => '–',
                State::Broken => '✗',
            };
            let padding = " ".repeat(width - check.what.chars().count());
            lines.push(format!("  {mark} {}{padding}  {}", check.what, check.found).trim_end().to_owned());
            if let Some(advice) = &check.advice {
                lines.push(format!("    {}  → {advice}", " ".repeat(width)));
            }
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_state_and_advice() {
        let checks = vec![
            Check::usable("memory", "4 GiB"),
            Check::absent("huge pages", "none").advise("sysctl vm.nr_hugepages=512"),
        ];
        assert_eq!(
            text(&[("memory", checks)]),
            "memory\n  ✓ memory      4 GiB\n  – huge pages  none\n                → sysctl vm.nr_hugepages=512"
        );
    }
}
