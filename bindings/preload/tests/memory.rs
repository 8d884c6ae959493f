// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The heap and mappings of unmodified programs under budgets that they exceed.

mod job;

use job::{Job, MIB};

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
