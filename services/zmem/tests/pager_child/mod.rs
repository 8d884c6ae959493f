// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A test in a process of its own: a process has one pager.

#![allow(dead_code, reason = "each test program uses a part")]

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

use memlift_zmem::arena::attach;
use memlift_zmem::block::{Job, Objectives, OnOverflow, Registry};
use memlift_zmem::pager::{Mechanism, Pager};

/// Names the test that this process is for.
const VARIABLE: &str = "MEMLIFT_TEST_CHILD";

/// Values of `MEMLIFT_DISABLE`: with the empty one they reach every way in which faults arrive and pages leave and return.
const MASKS: [&str; 5] =
    ["", "process_madvise,uffd_move", "uffd", "uffd,uffd_kernel", "uffd_wp,process_madvise"];

/// Runs `body` in new processes of this test program, as the test `name`, under each of [`MASKS`] and, where this user may
/// do that, as nobody; its failure is this test's.
pub fn under_every_mask(name: &str, body: impl Fn()) {
    if is_child(name) {
        return body();
    }
    for mask in MASKS {
        let prepare = |command: &mut Command| {
            command.env("MEMLIFT_DISABLE", mask);
        };
        in_child_with(name, prepare, &body);
    }
    if rustix::process::geteuid().is_root() {
        for mask in ["", "uffd"] {
            let prepare = |command: &mut Command| {
                command.env("MEMLIFT_DISABLE", mask).uid(NOBODY).gid(NOBODY);
            };
            in_child_with(name, prepare, &body);
        }
    }
}

/// The user without rights.
const NOBODY: u32 = 65_534;

fn is_child(name: &str) -> bool {
    std::env::var(VARIABLE).is_ok_and(|child| child == name)
}

/// Runs `body` in a new process of this test program, as the test `name`; its failure is this test's.
pub fn in_child(name: &str, body: impl FnOnce()) {
    in_child_with(name, |_| {}, body);
}

/// As [`in_child`], with `prepare` for the command: environment, user.
pub fn in_child_with(name: &str, prepare: impl FnOnce(&mut Command), body: impl FnOnce()) {
    let Some((text, status)) = outcome_of(name, prepare, body) else { return };
    assert!(status.success(), "{name} in its own process: {status}");
    assert!(text.contains("1 passed"), "{name} did not run in its own process");
}

/// As [`in_child`]. Returns what the process wrote and how it ended; in that process, runs `body` and returns `None`.
pub fn outcome_of(
    name: &str,
    prepare: impl FnOnce(&mut Command),
    body: impl FnOnce(),
) -> Option<(String, ExitStatus)> {
    if is_child(name) {
        body();
        return None;
    }
    let program = std::env::current_exe().expect("the test program");
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(VARIABLE, name);
    prepare(&mut command);
    let output = match command.output() {
        // Root in a folder of its own, as another user: there is nothing that this user could run.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!(
                "{name}: not run as that user, who may not enter the folder of {:?}",
                command.get_program()
            );
            return None;
        }
        other => other.expect("the test program runs"),
    };
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    Some((text, output.status))
}

/// A pager of a job of its own, in a registry of its own.
pub fn start(total: usize, on_overflow: OnOverflow) -> &'static Pager {
    let registry = Registry::create(1 << 40).expect("a registry");
    let objectives = Objectives { total, unused: 0, min_uncompressed: 0, on_overflow };
    let admission = Box::leak(Box::new(registry.admit("test", &objectives).expect("admitted")));
    let job = Box::leak(Box::new(Job::attach(registry, admission.block()).expect("attached")));
    attach(job).expect("a pager")
}

/// Numbers that repeat with their seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound.max(1)
    }
}

/// A child of a fork.
pub struct Child(i32);

impl Child {
    /// Waits for it; its failure is this test's.
    pub fn wait(self) {
        let mut status = 0;
        // SAFETY: the status is a local.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(waited, self.0);
        assert_eq!(status, 0, "the child of a fork failed");
    }
}

/// Forks as the preloaded library does; the child runs `body` and ends.
pub fn forked(pager: &'static Pager, body: impl FnOnce()) -> Child {
    pager.before_fork();
    // SAFETY: the child runs the body and leaves by `_exit`; what it uses of the C library is not held by another thread,
    // for the evictor allocates nothing.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        pager.after_fork_child();
        if pager.mechanism() == Mechanism::Thread {
            std::thread::spawn(|| pager.serve());
        }
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!passed)) };
    }
    pager.after_fork_parent();
    assert!(pid > 0, "fork");
    Child(pid)
}
