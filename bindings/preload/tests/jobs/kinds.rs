// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Uses of the kernel that few programs make: within the budget and beyond it they give what they give without this library, or
//! the process is refused by name.

use crate::job;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::job::{Job, MIB};

/// Runs a program; a hang is this test's failure.
fn run(total: usize, program: &str, arguments: &[&str], mask: &str) -> Output {
    let job = Job::new(total);
    let mut command = job.command(job::compile(program));
    command.args(arguments).env("MEMLIFT_DISABLE", mask).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(120);
    while child.try_wait().expect("it is this test's child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("it is this test's child");
            panic!(
                "{program} {arguments:?} hangs: {}",
                String::from_utf8_lossy(&child.wait_with_output().expect("it ends").stderr)
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("it has ended")
}

const DORMANT: usize = 4096 * MIB;
const SHORT: usize = 20 * MIB;

/// Checks parts of a program beyond their budget; also within a budget, and without userfaultfd, if `everywhere`.
fn check(everywhere: bool, program: &str, parts: &[&[&str]]) {
    for part in parts {
        for (total, mask) in [(SHORT, ""), (DORMANT, ""), (SHORT, "uffd_move"), (SHORT, "uffd")] {
            let arguments = [&["30"], *part].concat();
            let how = format!("{program} under {} MiB without {mask:?}", total / MIB);
            let output = run(total, program, &arguments, mask);
            assert_eq!(job::content(&how, &arguments, &output), "right\n", "{how} {part:?}");
            if !everywhere {
                break;
            }
        }
    }
}

const LOCKS: &[&[&str]] = &[&["now"], &["next"], &["advice"], &["moved"], &["touched"]];
const NAMED: &[&[&str]] =
    &[&["interfaces"], &["filter"], &["trap"], &["wrong"], &["file"], &["pipe"], &["pipe", "late"]];
const ENDS: &[&[&str]] = &[
    &["first"],
    &["first", "late"],
    &["call"],
    &["call", "late"],
    &["raw"],
    &["raw", "late"],
    &["clone"],
    &["clone", "late"],
    &["cancel"],
    &["cancel", "late"],
];

#[test]
#[ignore = "soak"]
fn soak_all_kinds_are_right_with_each_mechanism() {
    for (program, parts) in [("whole", LOCKS), ("named", NAMED), ("ends", ENDS)] {
        check(true, program, parts);
    }
}

fn is_refused(program: &str, part: &[&str], word: &str) {
    let output = run(SHORT, program, &[&["30"], part].concat(), "");
    if String::from_utf8_lossy(&output.stdout).starts_with("skipped") {
        return;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{part:?}: {}\n{said}", output.status);
    assert!(said.contains("memlift: ") && said.contains(word), "{said}");
}

#[test]
fn mlockall_locks_the_programs_memory_and_no_reservation() {
    check(false, "whole", &LOCKS[..2]);
}

#[test]
fn locked_memory_refuses_advice_that_drops_it_and_stays_locked_when_it_moves() {
    check(false, "whole", &LOCKS[2..]);
}

#[test]
fn memory_that_a_structure_of_a_call_names_is_brought_back() {
    check(false, "named", &NAMED[..4]);
}

#[test]
fn a_pipe_has_the_programs_own_pages() {
    check(false, "named", &NAMED[5..]);
}

#[test]
fn a_program_reads_and_writes_its_own_memory_as_a_file() {
    check(false, "named", &NAMED[4..5]);
}

#[test]
fn a_process_ends_with_the_programs_last_thread() {
    check(false, "ends", &ENDS[..4]);
    // Within the budget, this library may have a thread too.
    assert_eq!(String::from_utf8_lossy(&run(DORMANT, "ends", &["400", "first"], "").stdout), "right\n");
}

#[test]
fn forks_that_libc_does_not_see_have_their_memory() {
    check(false, "ends", &[ENDS[5], ENDS[7]]);
}

#[test]
fn a_thread_that_waits_with_absent_memory_can_be_cancelled() {
    check(false, "ends", &ENDS[9..]);
}

#[test]
fn memory_that_others_share_or_page_is_refused_by_name() {
    is_refused("ends", &["shared", "late"], "CLONE_VM");
    is_refused("ends", &["files", "late"], "CLONE_FILES");
    is_refused("named", &["faults"], "userfaultfd");
    is_refused("named", &["faults", "late"], "userfaultfd");
}
