// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The library in a program that nobody records, or that is told to write where it cannot: the program is as it ever was.
//!
//! - **Not here** what a trace holds: `cli/tests/jobs/run.rs` records real programs

use std::process::Command;

/// Output of the program with the library preloaded, and the trace that it is told to write.
fn said(trace: Option<&str>) -> (Option<i32>, String, String) {
    let here = std::env::current_exe().expect("a test program has a path");
    let built = here.ancestors().find_map(|folder| {
        let library = folder.join("libmemlift_tap.so");
        library.is_file().then_some(library)
    });
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "head -c 3000000 /dev/zero | tr '\\0' x | wc -c; exit 5"]);
    command
        .env("LD_PRELOAD", built.expect("the library is built with its tests"))
        .env_remove("MEMLIFT_TRACE");
    command.envs(trace.map(|path| ("MEMLIFT_TRACE", path)));
    let output = command.output().expect("sh starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_program_that_is_not_recorded_is_left_alone() {
    for trace in [None, Some(""), Some("/no/such/folder/trace"), Some("/dev/null"), Some("/etc/hostname")] {
        assert_eq!(said(trace), (Some(5), "3000000".to_owned(), String::new()), "{trace:?}");
    }
}
