// SPDX-License-Identifier: Apache-2.0 OR MIT
//! C programs as peers that are killed: `kills.c`, which is both sides.
//!
//! - **Order** without a C compiler nothing is run; one line says so

mod program;

use program::{compile, run, start};

/// Kills so many servers and so many clients in each mode.
fn kills(count: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("kills");
    if !compile("tests/kills.c", &program, false) {
        return;
    }
    for mode in ["sync", "async", "pipelined", "watch"] {
        let prefix = folder.path().join(mode);
        let said = run(start(&program).arg(count.to_string()).arg(mode).arg(prefix));
        println!("{}", said.trim_end());
    }
}

#[test]
fn killed_peers_leave_no_program_in_c_waiting() {
    kills(4);
}

#[test]
#[ignore = "long: run by make soak"]
fn soak_killed_peers_leave_no_program_in_c_waiting() {
    kills(std::env::var("MEMLIFT_KILLS").map_or(10_000, |text| text.parse().expect("a number")));
}
