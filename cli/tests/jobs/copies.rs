// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fork whose sides then write: in a memory cgroup that allows no more than the budget, nobody is killed, and each side reads
//! what is its own.
//!
//! - **Method** a group of cgroup v1 or v2 below this process's own, with a limit. Where none can be made (no root, no memory
//!   controller for children), the test says so and is skipped

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::group::Group;
use crate::place::{Place, text};

const MIB: u64 = 1 << 20;
/// Bytes that the kernel counts and nobody can foresee: page tables and stacks of a process that starts (docs/design/zmem.md).
const SLACK: u64 = 2 * MIB;

/// The program, compiled.
fn copies(place: &Place) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings/preload/tests/programs");
    let program = place.folder.path().join("copies");
    let built = Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(programs.join("copies.c")).status();
    assert!(built.expect("a C compiler").success());
    program
}

/// Twice the memory of the program is more than each budget, and its memory alone more than the smaller one.
#[test]
fn who_writes_after_a_fork_is_not_killed_and_nobody_is() {
    let place = Place::new();
    let program = copies(&place);
    let program = program.to_str().expect("a plain name");
    for (budget, writer) in [(80, "parent"), (80, "child"), (56, "both"), (40, "both"), (56, "chain")] {
        let Some(group) = Group::with_limit("copies", budget * MIB + SLACK) else {
            eprintln!("skipped: no memory cgroup can be made below this one");
            return;
        };
        let spill = place.folder.path().to_str().expect("a plain name");
        let total = format!("{budget}M");
        let mut command =
            place.memlift(&["run", "--memory", &total, "--spill", spill, "--", program, "48", "2", writer]);
        group.around(&mut command);
        let output = command.output().expect("it runs");
        let said = text(&output.stderr);
        assert_eq!(group.killed(), 0, "{budget} MiB, {writer}: {said}");
        assert_eq!(text(&output.stdout), "right\n", "{budget} MiB, {writer}: {}: {said}", output.status);
    }
}
