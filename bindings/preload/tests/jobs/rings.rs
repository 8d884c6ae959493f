// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that the kernel was given before memory was short: it arrives where it should, or the process is refused by name.

use crate::job;
use std::process::Output;

use crate::job::{Job, MIB};
use memlift_zmem::block::Counter;

/// Runs `rings MODE` beyond its budget, with a facility masked or none; nothing where the machine has no such rings.
fn run(mode: &str, mask: &str) -> Option<Output> {
    let job = Job::new(24 * MIB);
    let mut command = job.command(job::compile("rings"));
    let output = command.args([mode, "40"]).env("MEMLIFT_DISABLE", mask).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if said.starts_with("skipped") {
        eprintln!("{mode}: {said}");
        return None;
    }
    let faults = job.admission.ledger().counted(Counter::Faults);
    println!("{mode} without {mask:?}: {}, {faults} faults", output.status);
    assert!(!output.status.success() || faults > 100, "nothing was away: {faults} faults");
    Some(output)
}

fn is_right(mode: &str, mask: &str) {
    if let Some(output) = run(mode, mask) {
        assert_eq!(job::content(&format!("rings without {mask:?}"), &[mode], &output), "right\n");
    }
}

fn is_refused(mode: &str, mask: &str, word: &str) {
    let Some(output) = run(mode, mask) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{mode}: {}\n{said}", output.status);
    assert!(said.contains("the kernel reaches this program's memory") && said.contains(word), "{said}");
}

/// With MOVE the kernel shows pins by refusing to move a page; without it they are found in its lists.
const MASKS: [&str; 2] = ["", "uffd_move"];

#[test]
fn registered_buffers_of_a_ring_made_before_get_the_files_bytes() {
    MASKS.iter().for_each(|mask| is_right("registered", mask));
}

#[test]
fn buffers_registered_afterwards_get_the_files_bytes() {
    MASKS.iter().for_each(|mask| is_right("late", mask));
}

#[test]
fn memory_that_the_structure_of_a_registration_names_is_brought_back() {
    MASKS.iter().for_each(|mask| is_right("named", mask));
    is_right("named_later", "");
}

#[test]
fn plain_requests_of_a_ring_made_before_get_the_files_bytes() {
    MASKS.iter().for_each(|mask| is_right("plain", mask));
    is_right("vectors", "");
}

#[test]
fn a_request_that_waits_since_before_gets_its_bytes() {
    MASKS.iter().for_each(|mask| is_right("waiting", mask));
}

#[test]
fn asynchronous_reads_of_a_context_made_before_get_the_files_bytes() {
    is_right("aio", "");
    is_refused("aio", "uffd_move", "asynchronous I/O");
}

#[test]
fn rings_that_cannot_be_followed_are_refused_by_name() {
    is_refused("polled", "", "IORING_SETUP_SQPOLL");
    is_refused("provided", "", "provided buffers");
    is_refused("given", "", "provided buffers");
    is_refused("hidden", "", "IORING_REGISTER_RING_FDS");
}
