// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `memlift dropin status`: lists the processes that have a drop-in, according to their maps, and its work, according to its own
//! counters.
//!
//! - **Flow** subject ─▶ its processes ─▶ /proc/PID/maps: attached or not ─▶ its pages of counters ([`super::page`]) ─▶ table or
//!   JSON
//! - **Exit** 0 at least one process has a drop-in · 1 no process has one · 3 no process runs, or none may be inspected

use std::fs;

use memlift_cli::libraries::Dropin;
use serde_json::{Value, json};

use super::original;
use super::page::{Page, pages};
use super::subject::{self, Subject};
use super::unit::Place;
use crate::failure::Failure;
use crate::print;

/// Entry of the auxiliary vector that tells the loader not to trust its environment (getauxval(3)).
const AT_SECURE: u64 = 23;

#[derive(Debug)]
struct Process {
    pid: u32,
    attached: Vec<String>,
    pages: Vec<Page>,
    /// Reason that the process has no drop-in, or no page of counters, as far as that is visible.
    reason: Option<&'static str>,
}

/// Prints which processes of the subject have a drop-in, with its counters.
pub fn status(subject: &str, place: &Place, as_json: bool) -> Result<(), Failure> {
    let (subject, pids) = running(subject, place)?;
    if pids.is_empty() {
        return Err(Failure::Unavailable(format!(
            "{} does not run: there is nothing to look at",
            subject.name()
        )));
    }
    let (mut processes, mut unseen) = (Vec::new(), None);
    for pid in pids {
        match inspect(pid) {
            Ok(process) => processes.push(process),
            Err(failure) => unseen = Some(failure),
        }
    }
    if processes.is_empty() {
        return Err(unseen.unwrap_or_else(|| Failure::Unavailable(format!("{} has ended", subject.name()))));
    }
    let outdated = original::outdated_remark(&subject, &place.root);
    if as_json {
        print::json(
            &json!({ "remarks": outdated.iter().collect::<Vec<_>>(), "subject": subject.name(), "kind": subject.kind(), "processes": processes.iter().map(Process::json).collect::<Vec<_>>() }),
        )?;
    } else {
        print::line(&text(&subject, &processes, outdated.as_deref()))?;
    }
    if processes.iter().any(|process| !process.attached.is_empty()) {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{} runs without a drop-in: memlift dropin enable attaches it, and it must be started again after that",
        subject.name()
    )))
}

/// Returns the subject and its processes. If a bare name's unit does not run, the name stands for the unit's program,
/// because servers in a container are started without their units.
fn running(name: &str, place: &Place) -> Result<(Subject, Vec<u32>), Failure> {
    let subject = Subject::find(name, place)?;
    let pids = subject.processes();
    let bare = !name.ends_with(".service") && place.root.is_this_machine();
    if let Subject::Unit(unit) = &subject
        && let Some(program) = unit.program.clone().filter(|_| bare && pids.is_empty())
    {
        let command = Subject::Command(program);
        let pids = command.processes();
        if !pids.is_empty() {
            return Ok((command, pids));
        }
    }
    Ok((subject, pids))
}

fn inspect(pid: u32) -> Result<Process, Failure> {
    let files = subject::mapped(pid)?;
    let attached: Vec<String> = Dropin::ALL
        .iter()
        .filter_map(|one| files.iter().find(|path| path.file_name().is_some_and(|name| name == one.file())))
        .map(|path| path.display().to_string())
        .collect();
    let pages = pages(pid);
    let reason =
        if attached.is_empty() { unattached(pid) } else { uncounted(pid).filter(|_| pages.is_empty()) };
    Ok(Process { pid, attached, pages, reason })
}

/// Reason that the loader has not brought a drop-in into a process.
fn unattached(pid: u32) -> Option<&'static str> {
    let auxiliary = fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let secure = auxiliary.chunks_exact(16).any(|entry| {
        let word = |at: usize| u64::from_ne_bytes(core::array::from_fn(|index| entry[at + index]));
        word(0) == AT_SECURE && word(8) != 0
    });
    if secure {
        return Some(
            "it was started with more rights than its caller (set-uid, set-gid or file capabilities): LD_PRELOAD and OPENSSL_CONF are ignored then",
        );
    }
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let names = |name: &[u8]| environment.split(|byte| *byte == 0).any(|one| one.starts_with(name));
    (!environment.is_empty() && !names(b"LD_PRELOAD=") && !names(b"OPENSSL_CONF="))
        .then_some("neither LD_PRELOAD nor OPENSSL_CONF is in its environment")
}

/// Reason that an attached drop-in shows no counters.
fn uncounted(pid: u32) -> Option<&'static str> {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    if !environment.is_empty() && !environment.split(|byte| *byte == 0).any(|one| one == b"MEMLIFT_STATS=1") {
        return Some("MEMLIFT_STATS=1 is not in its environment");
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    match mode {
        Some("1" | "2") => Some(
            "it runs behind a filter of system calls (seccomp), which may forbid the page of counters; the drop-in works without",
        ),
        _ => Some("nothing was done yet, or it closed the page's descriptor"),
    }
}

impl Process {
    fn json(&self) -> Value {
        json!({ "pid": self.pid, "attached": self.attached, "reason": self.reason, "counters": self.pages })
    }
}

fn text(subject: &Subject, processes: &[Process], remark: Option<&str>) -> String {
    let mut lines = vec![subject.name()];
    for process in processes {
        let attached =
            if process.attached.is_empty() { "no drop-in".to_owned() } else { process.attached.join(", ") };
        lines.push(format!("  {}  {attached}", process.pid));
        for page in &process.pages {
            let reason = if page.reason.is_empty() { String::new() } else { format!(": {}", page.reason) };
            lines.push(format!("    {} {}{reason}", page.name, page.state));
            let rows: Vec<Vec<String>> = page
                .rows
                .iter()
                .filter(|row| row.count > 0)
                .map(|row| {
                    let bytes = [row.source_bytes, row.target_bytes].map(print::bytes);
                    vec![
                        row.name.clone(),
                        row.count.to_string(),
                        bytes[0].clone(),
                        bytes[1].clone(),
                        row.failures.to_string(),
                    ]
                })
                .collect();
            if !rows.is_empty() {
                let table = print::table(&["what", ">messages", ">read", ">written", ">refused"], &rows);
                lines.extend(table.lines().map(|line| format!("      {line}")));
            }
        }
        lines.extend(process.reason.map(|reason| format!("    – {reason}")));
    }
    lines.extend(remark.map(|remark| format!("  – {remark}")));
    lines.join("\n")
}
