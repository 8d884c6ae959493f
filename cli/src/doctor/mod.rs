// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift doctor`: the facilities of this machine, memlift's use of them, and advice about the missing ones.
//!
//! - **Flow** one file per section, each returns [`Check`]s ─▶ a [`Verdict`] for each service ─▶ text ([`page`]) or
//!   JSON
//! - **Exit** 0 if everything that memlift needs exists; 1 if something it needs is missing (✗). Anything else that is
//!   absent (–) has a fallback.

pub mod calibration;
mod cpu;
mod dsa;
mod facilities;
mod ipc;
mod memory;
mod page;
mod persist;
mod python;
mod transform;
mod traverse;

use std::path::Path;

use serde_json::{Value, json};

use page::Page;

use crate::failure::Failure;
use crate::{calibrate, print};

/// Result of a check.
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
    weight: Weight,
}

/// Consequence of an absent subject for its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    /// The service works fully without the subject.
    Extra,
    /// The service does less without it, or is slower.
    Limit,
    /// The service cannot be used without it.
    Need,
}

impl Check {
    /// Makes a check that found its subject.
    pub fn usable(what: &str, found: impl Into<String>) -> Self {
        Self {
            state: State::Usable,
            what: what.to_owned(),
            found: found.into(),
            advice: None,
            weight: Weight::Limit,
        }
    }

    /// Makes a check whose subject is absent, which is no fault.
    pub fn absent(what: &str, found: impl Into<String>) -> Self {
        Self { state: State::Absent, ..Self::usable(what, found) }
    }

    /// Makes a check whose subject is missing although memlift needs it.
    pub fn broken(what: &str, found: impl Into<String>) -> Self {
        Self { state: State::Broken, ..Self::usable(what, found) }
    }

    /// Adds a step that the user can take.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into()).filter(|text| !text.is_empty());
        self
    }

    /// Marks a subject that the service does not need: other programs, devices.
    pub fn extra(self) -> Self {
        Self { weight: Weight::Extra, ..self }
    }

    /// Marks a subject without which the service cannot be used.
    pub fn needed(self) -> Self {
        Self { weight: Weight::Need, ..self }
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

/// Prints the report, or with `fixes` the commands that it suggests.
pub fn run(folder: &Path, fixes: bool, as_json: bool) -> Result<(), Failure> {
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
    let verdicts = verdicts(&sections);
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
        let verdicts: serde_json::Map<String, Value> =
            verdicts.iter().map(|verdict| (verdict.service.to_owned(), verdict.json())).collect();
        let version = env!("CARGO_PKG_VERSION");
        print::json(&json!({ "memlift": version, "sections": sections, "verdicts": verdicts }))?;
    } else if fixes {
        print::line(&commands(&sections))?;
    } else {
        let page = Page::of_terminal();
        print::line(&format!("{}\n\n{}", page.sections(&sections), page.verdicts(&verdicts)))?;
    }
    if broken.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "memlift cannot do without: {}; the report says what to do",
        broken.join(", ")
    )))
}

/// Services that have a verdict, which are sections too.
const SERVICES: [&str; 5] = ["ipc", "transform", "persist", "traverse", "zmem"];

/// Judgement of a service on this machine.
#[derive(Debug)]
struct Verdict {
    service: &'static str,
    state: State,
    /// The first thing that is missing, and what to do about it.
    reason: Option<(String, Option<String>)>,
}

impl Verdict {
    fn words(&self) -> &'static str {
        match self.state {
            State::Usable => "ready",
            State::Absent => "works with limits",
            State::Broken => "not here",
        }
    }

    fn json(&self) -> Value {
        let (missing, advice) = self.reason.clone().unzip();
        json!({ "verdict": self.words(), "missing": missing, "advice": advice.flatten() })
    }
}

fn verdicts(sections: &[(&str, Vec<Check>)]) -> Vec<Verdict> {
    let of_service = |service: &'static str| {
        let checks = sections.iter().find(|(name, _)| *name == service).map_or(&[][..], |(_, checks)| checks);
        let gravity = |check: &Check| match (check.state, check.weight) {
            (State::Usable, _) | (State::Absent, Weight::Extra) => 0,
            (State::Absent, Weight::Limit) => 1,
            (State::Absent, Weight::Need) | (State::Broken, _) => 2,
        };
        // Sessions depend on facilities of the kernel.
        let facilities = sections.iter().filter(|(name, _)| service == "ipc" && *name == "kernel facilities");
        let broken = facilities.flat_map(|(_, checks)| checks).filter(|check| check.state == State::Broken);
        let checks: Vec<&Check> = checks.iter().chain(broken).collect();
        let worst = checks.iter().map(|check| gravity(check)).max().unwrap_or(0);
        let state = [State::Usable, State::Absent, State::Broken][worst];
        let first = checks.iter().find(|check| worst > 0 && gravity(check) == worst);
        let reason = first.map(|check| (format!("{}: {}", check.what, check.found), check.advice.clone()));
        Verdict { service, state, reason }
    };
    SERVICES.map(of_service).into()
}

/// Returns the commands among the suggestions, as a script.
fn commands(sections: &[(&str, Vec<Check>)]) -> String {
    const PROGRAMS: [&str; 7] =
        ["memlift ", "apt ", "sysctl ", "mount ", "modprobe ", "accel-config ", "ulimit "];
    let mut lines =
        vec!["# Suggestions of memlift doctor; read them, then run those that you want.".to_owned()];
    for check in sections.iter().flat_map(|(_, checks)| checks).filter(|check| check.state != State::Usable) {
        let Some(advice) = &check.advice else { continue };
        let advice = advice.trim_start_matches("optional: ").trim_start_matches("optional, as root: ");
        let is_command =
            PROGRAMS.iter().any(|program| advice.starts_with(program)) || advice.starts_with("echo ");
        lines.push(format!("# {}: {}", check.what, check.found));
        // A sentence after the command becomes a comment.
        let (command, rest) = advice.split_once(" takes ").unwrap_or((advice, ""));
        let (command, rest) = command.split_once(", as root").unwrap_or((command, rest));
        let (command, rest) = command.split_once(';').unwrap_or((command, rest));
        match (is_command, rest.trim()) {
            (true, "") => lines.push(command.to_owned()),
            (true, rest) => lines.push(format!("{command}  # {rest}")),
            (false, _) => lines.push(format!("#   {advice}")),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_names_the_worst_of_what_is_missing() {
        let sections = vec![
            ("ipc", vec![Check::usable("names", "work"), Check::absent("rival", "none").extra()]),
            ("persist", vec![Check::absent("a", "first").advise("do this"), Check::absent("b", "second")]),
            (
                "zmem",
                vec![Check::absent("c", "slow"), Check::absent("d", "gone").needed().advise("build it")],
            ),
        ];
        let said: Vec<_> = verdicts(&sections)
            .into_iter()
            .map(|verdict| (verdict.service, verdict.words(), verdict.reason))
            .collect();
        assert_eq!(said[0], ("ipc", "ready", None));
        assert_eq!(said[1].1, "ready", "nothing is known against it");
        let reason = Some(("a: first".to_owned(), Some("do this".to_owned())));
        assert_eq!(said[2], ("persist", "works with limits", reason));
        let reason = Some(("d: gone".to_owned(), Some("build it".to_owned())));
        assert_eq!(said[4], ("zmem", "not here", reason));
    }

    #[test]
    fn suggestions_become_a_script() {
        let checks = vec![
            Check::absent("clang", "not found").advise("apt install clang"),
            Check::absent("calibration", "built-in").advise("memlift calibrate takes a second and helps"),
            Check::absent("guarantee", "a file in memory").advise("put pools on a disk"),
            Check::usable("libz", "there").advise("memlift dropin check PROGRAM says who uses it"),
        ];
        let script = commands(&[("all", checks)]);
        let run: Vec<&str> = script.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(run, ["apt install clang", "memlift calibrate  # a second and helps"]);
        assert!(script.contains("#   put pools on a disk") && !script.contains("PROGRAM"));
    }
}
