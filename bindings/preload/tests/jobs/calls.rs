// SPDX-License-Identifier: Apache-2.0 OR MIT
//! System calls, signals and forks of unmodified programs whose memory is away.

use crate::job;
use std::os::unix::process::ExitStatusExt;

use crate::job::{Job, MIB};

#[test]
fn calls_with_buffers_that_are_away_give_what_the_kernel_gives() {
    assert_eq!(Job::new(32 * MIB).check("calls", &["24"]), "right\n");
}

#[test]
fn handlers_masks_and_stacks_of_the_program_still_work() {
    let job = Job::new(32 * MIB);
    let output = job.command(job::compile("signals")).arg("24").output().expect("it starts");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "right\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.status.signal(), Some(11), "its last fault has the default action");
}

#[test]
fn parent_and_child_keep_their_own_contents() {
    assert_eq!(Job::new(32 * MIB).check("forks", &["6", "0"]), "right\n");
}

#[test]
fn a_program_that_gives_up_its_rights_goes_on() {
    assert_eq!(Job::new(32 * MIB).check("credentials", &["64"]), "right\n");
}

#[test]
fn a_fork_in_the_middle_of_other_threads_faults_is_whole() {
    assert_eq!(Job::new(32 * MIB).check("forks", &["6", "1"]), "right\n");
}

#[test]
fn a_program_that_closes_everything_keeps_its_contents() {
    assert_eq!(Job::new(32 * MIB).check("closes", &["24"]), "right\n");
}

#[test]
fn a_handler_that_jumps_out_of_a_call_leaves_nothing_pinned() {
    assert_eq!(Job::new(32 * MIB).check("jumps", &[]), "right\n");
}

#[test]
fn stacks_in_the_arena_go_away_and_come_back() {
    assert_eq!(Job::new(32 * MIB).check("coroutines", &["24"]), "right\n");
}

#[test]
fn rare_and_recent_calls_say_the_same_with_memory_that_is_away() {
    assert_eq!(Job::new(36 * MIB).check("recent", &["40"]), "right\n");
}

#[test]
fn buffers_of_calls_that_wait_stay_while_their_neighbours_move() {
    assert_eq!(Job::new(32 * MIB).check("pinned", &["24"]), "right\n");
}

#[test]
fn calls_that_wait_from_before_memory_was_short_get_their_bytes() {
    assert_eq!(Job::new(48 * MIB).check("standing", &["56"]), "right\n");
}

#[test]
fn a_call_under_way_when_memory_becomes_short_is_made_once_and_gives_its_own_result() {
    for _ in 0..12 {
        assert_eq!(Job::new(24 * MIB).check("asked", &["32"]), "right\n");
    }
}

/// Runs a program without one way to move pages or another.
fn with_each_mechanism(name: &str, total: usize, arguments: &[&str]) {
    for mask in ["", "uffd_move", "uffd"] {
        let job = Job::new(total);
        let mut command = job.command(job::compile(name));
        let output = command.args(arguments).env("MEMLIFT_DISABLE", mask).output().expect("it starts");
        assert_eq!(job::content(&format!("{name} without {mask:?}"), arguments, &output), "right\n");
    }
}

#[test]
fn locked_memory_stays_where_it_is() {
    with_each_mechanism("locks", 24 * MIB, &["40"]);
}

#[test]
fn a_robust_mutex_tells_that_its_owner_has_ended() {
    with_each_mechanism("robust", 24 * MIB, &["40"]);
}

#[test]
fn threads_wait_on_futexes_whose_memory_goes_away() {
    with_each_mechanism("futexes", 40 * MIB, &["60", "400"]);
}
