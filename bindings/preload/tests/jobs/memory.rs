// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The heap and mappings of unmodified programs under budgets that they exceed.

use crate::job;
use crate::job::{Job, MIB};

#[test]
fn a_heap_beyond_the_budget_keeps_its_contents() {
    assert_eq!(Job::new(48 * MIB).check("heap", &["48"]), "right\n");
}

#[test]
fn without_a_job_the_library_is_a_malloc() {
    let output = std::process::Command::new(job::compile("heap"))
        .arg("8")
        .env("LD_PRELOAD", job::library())
        .output()
        .expect("it starts");
    assert_eq!(job::content("heap", &["8"], &output), "right\n");
}

#[test]
fn threads_make_move_and_free_memory_beyond_the_budget() {
    assert_eq!(Job::new(40 * MIB).check("threads", &["64", "4"]), "right\n");
}

#[test]
fn the_mmap_family_does_what_the_kernel_does() {
    assert_eq!(Job::new(32 * MIB).check("maps", &["24"]), "right\n");
}

#[test]
fn files_and_shared_memory_over_parts_of_the_arena_are_whole() {
    assert_eq!(Job::new(32 * MIB).check("overlays", &["24"]), "right\n");
}

#[test]
fn programs_with_an_environment_of_their_own_are_members() {
    for (budget, more) in [(100, "0"), (36, "40")] {
        assert_eq!(Job::new(budget * MIB).check("cleared", &[more]), "right\n");
    }
}

#[test]
fn limits_on_address_space_hold_for_the_programs_own_memory() {
    for (budget, more, masked) in [(600, "0", ""), (600, "100", ""), (48, "100", ""), (48, "100", "uffd")] {
        let job = Job::new(budget * MIB);
        let mut command = job.command(job::compile("limits"));
        let output = command.arg(more).env("MEMLIFT_DISABLE", masked).output().expect("it starts");
        assert_eq!(job::content("limits", &[more, masked], &output), "right\n");
    }
}

#[test]
fn a_reservation_of_a_tebibyte_costs_what_is_used_of_it() {
    assert_eq!(Job::new(100 * MIB).check("reserved", &["128"]), "right\n");
}

#[test]
fn memory_comes_and_goes_with_as_many_mappings_as_there_may_be() {
    assert_eq!(Job::new(32 * MIB).check("crowded", &["24"]), "right\n");
}

#[test]
fn within_the_budget_nothing_is_trapped() {
    let job = Job::new(4096 * MIB);
    let output = job.command("cat").arg("/proc/self/status").output().expect("it starts");
    let status = job::content("cat", &[], &output);
    assert!(status.contains("Seccomp:\t0"), "no filter in a dormant process: {status}");
}

#[test]
fn a_process_that_cannot_join_its_job_is_refused_in_words() {
    let job = Job::new(64 * MIB);
    let output = job.command("true").env("MEMLIFT_ZMEM_BLOCK", "77").output().expect("it starts");
    assert_eq!(output.status.code(), Some(125));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("memlift: this process cannot be put under its budget"), "{said}");
}

/// Parts of `advice.c`, each in a process of its own.
fn advice(parts: &[&str]) {
    for mask in ["", "uffd"] {
        for part in parts {
            let job = Job::new(20 * MIB);
            let mut command = job.command(job::compile("advice"));
            let output = command.args(["24", part]).env("MEMLIFT_DISABLE", mask).output().expect("it starts");
            assert_eq!(job::content("advice", &[mask, part], &output), "right\n");
        }
    }
}

#[test]
fn memory_is_left_out_of_dumps_wiped_or_absent_in_children_as_the_program_asked() {
    advice(&["dump", "wipe", "absent"]);
}

#[test]
fn a_move_may_leave_its_old_place_mapped() {
    advice(&["move"]);
}

#[test]
fn the_kernels_words_about_memory_are_true() {
    advice(&["present", "codes"]);
}
