// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program inside its budget runs as without: addresses that it asks for, libraries that it opens, memory that is in the way.

use crate::job;
use std::process::Command;

use crate::job::{Job, MIB};

/// `deepbind.c` as a library.
fn library(folder: &std::path::Path) -> std::path::PathBuf {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/deepbind.c");
    let library = folder.join("libdeepbind.so");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-shared", "-fPIC", "-DLIBRARY", "-o"])
        .args([&library, &source])
        .status()
        .expect("a C compiler");
    assert!(status.success(), "{} compiles", source.display());
    library
}

#[test]
fn addresses_that_a_program_asks_for_are_given_where_they_are_free() {
    assert_eq!(Job::new(256 * MIB).check("hints", &[]), "right\n");
}

#[test]
fn a_library_bound_to_itself_first_frees_what_the_program_allocated() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let library = library.to_str().expect("a plain path");
    assert_eq!(Job::new(64 * MIB).check("deepbind", &[library]), "right\n");
}

#[test]
fn the_arena_ends_before_memory_that_was_there_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let both = format!("{}:{}", job::library().display(), library(folder.path()).display());
    let job = Job::new(32 * MIB);
    let output =
        job.command(job::compile("maps")).arg("24").env("LD_PRELOAD", both).output().expect("it starts");
    assert_eq!(job::content("maps", &["24"], &output), "right\n");
}

#[test]
fn a_small_program_is_the_only_thread_of_its_process() {
    assert_eq!(Job::new(256 * MIB).check("alone", &[]), "right\n");
}

#[test]
fn protection_keys_are_absent_or_work_on_all_memory() {
    assert_eq!(Job::new(160 * MIB).check("keys", &[]), "right\n");
}
