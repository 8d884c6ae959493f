// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit of a job's cgroup changes while the job runs: the budget follows it, and a job that is larger than the new limit is
//! compressed and not killed.
//!
//! - **Method** as in copies.rs: a group below this process's own. Where none can be made, the test says so and is skipped

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::place::{Place, python, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The first job's total and unused objective, in bytes.
fn sizes(place: &Place) -> [u64; 2] {
    let output = place.run(&["--json", "job", "list"]);
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    ["total_bytes", "unused_objective_bytes"]
        .map(|name| list["jobs"][0][name].as_u64().unwrap_or_else(|| panic!("no {name}: {list:#}")))
}

/// Waits until the job's total is another than `before`.
fn changed(place: &Place, before: u64) -> [u64; 2] {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let now = sizes(place);
        if now[0] != before {
            return now;
        }
        assert!(Instant::now() < deadline, "the budget stays {before}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_budget_follows_the_limit_in_both_directions() {
    let place = Place::new();
    let Some(group) = Group::with_limit("follow", 400 * MIB) else {
        eprintln!("skipped: no memory cgroup can be made below this one");
        return;
    };
    let mut command = place.memlift(&["run", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    group.around(&mut command);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "ready");
    let [first, unused] = sizes(&place);
    assert!(first > 300 * MIB && first < 400 * MIB && unused == first / 128, "{first} {unused}");
    group.set_limit(200 * MIB).expect("the group is ours");
    let [second, unused] = changed(&place, first);
    // The headroom is the same for both, so the budget changes by as much as the limit, but for what came before the first look.
    assert!(second.abs_diff(first - 200 * MIB) < 4 * MIB, "{first} {second}");
    assert!(unused.abs_diff(second / 128) <= 1, "{unused}");
    group.set_limit(500 * MIB).expect("the group is ours");
    let [third, _] = changed(&place, second);
    assert_eq!(third, second + 300 * MIB);
    // A budget that the user gives is not exceeded, and a limit below it binds.
    assert!(place.run(&["job", "set", "1", "--memory", "100M"]).status.success());
    group.set_limit(600 * MIB).expect("the group is ours");
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(sizes(&place)[0], 100 * MIB);
    group.set_limit(90 * MIB).expect("the group is ours");
    let [fifth, _] = changed(&place, 100 * MIB);
    assert!(fifth < 80 * MIB, "{fifth}");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("signalled");
    let said = text(&child.wait_with_output().expect("it ends").stderr);
    assert_eq!(said.matches("changed: the budget is").count(), 3, "{said}");
    assert!(said.contains("at the start"), "the report tells both budgets: {said}");
}

/// Waits for a line, then fills memory and reads it again.
const LATER: &str = "
import sys
print('ready', flush=True)
sys.stdin.readline()
parts = []
for part in range(160):
    parts.append(bytearray(b''.join((part * 7919 + i).to_bytes(8, 'little') for i in range(256)) * 512))
print(sum(sum(part[::509]) for part in parts))
";

#[test]
fn a_job_under_a_limit_that_was_lowered_is_not_killed() {
    let place = Place::new();
    let Some(group) = Group::with_limit("lowered", 500 * MIB) else {
        eprintln!("skipped: no memory cgroup can be made below this one");
        return;
    };
    let python = python();
    let mut command = place.memlift(&["run", "--", &python, "-c", LATER]);
    group.around(&mut command);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "ready");
    let [before, _] = sizes(&place);
    group.set_limit(140 * MIB).expect("nobody uses more");
    changed(&place, before);
    child.stdin.take().expect("piped").write_all(b"go\n").expect("it reads");
    let sum = lines.next().map(|line| line.expect("read"));
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(group.killed(), 0, "{}", text(&output.stderr));
    let alone = std::process::Command::new(&python)
        .args(["-c", LATER])
        .stdin(Stdio::null())
        .output()
        .expect("python starts");
    assert_eq!(sum.as_deref(), text(&alone.stdout).lines().nth(1), "{}", text(&output.stderr));
}
