// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages of counters of drop-ins, as other processes read them (docs/formats/dropin.md).
//!
//! - **Flow** /proc/PID/fd: a memfd named memlift:… ─▶ read, not mapped ─▶ [`Page`]
//! - **Rule** only the numbers of a page are used, and nothing else in it is trusted

use std::fs;
use std::io::Read;

use memlift::ground::observe::dropin::{PAGE_BYTES, State, View};
use serde::Serialize;

/// A row of a page: name, number of calls, bytes read, bytes written, refusals.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub name: String,
    pub count: u64,
    pub source_bytes: u64,
    pub target_bytes: u64,
    pub failures: u64,
}

/// The counters that a drop-in publishes.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    pub name: String,
    pub state: &'static str,
    pub reason: String,
    /// Time at which the page was made, nanoseconds since 1970.
    #[serde(skip)]
    pub start_unix_ns: u64,
    pub rows: Vec<Row>,
}

impl Page {
    fn new(view: View<'_>) -> Page {
        let rows = view.rows().map(|(name, amount)| Row {
            name: name.collect(),
            count: amount.count,
            source_bytes: amount.source_bytes,
            target_bytes: amount.target_bytes,
            failures: amount.failures,
        });
        let state = match view.state() {
            State::Serving => "serving",
            State::PassingOn => "aside",
            State::Loaded => "loaded",
        };
        Page {
            name: view.name().collect(),
            state,
            reason: view.reason().collect(),
            start_unix_ns: view.start_unix_ns(),
            rows: rows.collect(),
        }
    }
}

/// Returns the pages of a process, one for each drop-in that counts there.
pub fn pages(pid: u32) -> Vec<Page> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let found = entries.filter(|entry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        target.to_str().is_some_and(|name| name.starts_with("/memfd:memlift:"))
    });
    found
        .filter_map(|entry| {
            let mut bytes = Vec::new();
            fs::File::open(entry.path()).ok()?.take(PAGE_BYTES as u64 + 1).read_to_end(&mut bytes).ok()?;
            let view = View::parse(&bytes)?;
            // A forked child inherits its parent's open files, but counts in a page of its own.
            (view.pid() == own_number(pid)).then(|| Page::new(view))
        })
        .collect()
}

/// Returns the pid of a process in its own namespace, which differs in a container.
fn own_number(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = numbers.and_then(|numbers| numbers.split_whitespace().last()?.parse().ok());
    inner.unwrap_or(u64::from(pid))
}
