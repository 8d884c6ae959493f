// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fork whose sides then write: in a memory cgroup that allows no more than the budget, nobody is killed, and each side reads
//! what is its own.
//!
//! - **Method** a group of cgroup v1 or v2 below this process's own, with a limit. Where none can be made (no root, no memory
//!   controller for children), the test says so and is skipped

mod place;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use memlift::ground::region::MemoryGroup;
use place::{Place, text};

const MIB: u64 = 1 << 20;
/// Bytes that the kernel counts and nobody can foresee: page tables and stacks of a process that starts (docs/design/zmem.md).
const SLACK: u64 = 2 * MIB;

/// A memory cgroup with a limit.
struct Group {
    folder: PathBuf,
    version: u8,
}

impl Group {
    fn with_limit(name: &str, bytes: u64) -> Option<Group> {
        let above = MemoryGroup::own()?;
        let version = above.version;
        let group =
            Group { folder: above.directory.join(format!("memlift-{name}-{}", std::process::id())), version };
        std::fs::create_dir(&group.folder).ok()?;
        let limit = if version == 2 { "memory.max" } else { "memory.limit_in_bytes" };
        std::fs::write(group.folder.join(limit), bytes.to_string()).ok()?;
        Some(group)
    }

    /// Lets the command run in it.
    fn around(&self, command: &mut Command) {
        let processes = self.folder.join("cgroup.procs");
        // SAFETY: between fork and exec the child writes one file.
        unsafe { command.pre_exec(move || std::fs::write(&processes, "0")) };
    }

    /// How many processes the kernel killed in it for want of memory.
    fn killed(&self) -> u64 {
        let file = if self.version == 2 { "memory.events" } else { "memory.oom_control" };
        let text = std::fs::read_to_string(self.folder.join(file)).expect("the group's counts");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.parse().ok()).expect("the kernel counts its kills")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A killed process leaves the group a moment later.
        for _ in 0..500 {
            match std::fs::remove_dir(&self.folder) {
                Err(error) if error.raw_os_error() == Some(16) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

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
