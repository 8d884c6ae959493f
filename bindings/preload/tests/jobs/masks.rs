// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same programs without one kernel facility or another, as another user, and with a spill folder.
//!
//! - **Repeats** `make test` runs each mask and each user with half of the programs; `make soak` runs all with all

use crate::job;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::job::{Job, MIB};

const NOBODY: u32 = 65534;

/// Programs and their arguments; all fit into 32 MiB.
const PROGRAMS: [(&str, &[&str]); 8] = [
    ("calls", &["24"]),
    ("closes", &["24"]),
    ("coroutines", &["24"]),
    ("crowded", &["24"]),
    ("forks", &["6", "1"]),
    ("maps", &["24"]),
    ("overlays", &["24"]),
    ("pinned", &["24"]),
];

fn run(name: &str, arguments: &[&str], prepare: impl Fn(&mut Command)) {
    let job = Job::new(32 * MIB);
    let mut command = job.command(job::compile(name));
    command.args(arguments);
    prepare(&mut command);
    let output = command.output().expect("it starts");
    let how = format!(
        "{name} with {:?}",
        command.get_envs().filter(|(key, _)| *key == "MEMLIFT_DISABLE").collect::<Vec<_>>()
    );
    assert_eq!(job::content(&how, arguments, &output), "right\n");
}

/// Part of [`PROGRAMS`] that a test runs.
#[derive(Clone, Copy)]
enum Chosen {
    All,
    /// Those at even positions.
    Even,
    /// Those at odd positions.
    Odd,
}

/// Runs programs with this value of `MEMLIFT_DISABLE`. Each value has a test of its own, so that a machine's cores share them.
fn run_with(mask: &str, chosen: Chosen) {
    for (at, (name, arguments)) in PROGRAMS.into_iter().enumerate() {
        let wanted = match chosen {
            Chosen::All => true,
            Chosen::Even => at % 2 == 0,
            Chosen::Odd => at % 2 == 1,
        };
        if wanted {
            run(name, arguments, |command| {
                command.env("MEMLIFT_DISABLE", mask);
            });
        }
    }
}

// The two masks differ in the calls that evict pages, which every program makes: each mask runs with half of the programs.

#[test]
fn programs_are_right_without_calls_for_many_ranges() {
    run_with("process_madvise", Chosen::Even);
}

#[test]
fn programs_are_right_without_userfaultfd_and_calls_for_many_ranges() {
    run_with("uffd,process_madvise", Chosen::Odd);
}

#[test]
fn programs_are_right_without_userfaultfd() {
    run_with("uffd", Chosen::All);
}

#[test]
#[ignore = "soak"]
fn soak_all_programs_are_right_with_every_mask() {
    for mask in ["process_madvise", "uffd,process_madvise"] {
        run_with(mask, Chosen::All);
    }
}

#[test]
fn torture_is_right_without_userfaultfd() {
    run("torture", &["5", "48"], |command| {
        command.env("MEMLIFT_DISABLE", "uffd");
    });
}

/// Runs the test that calls it again as a user without rights, and gives whether this is that run.
fn is_nobody(test: &str) -> bool {
    const VARIABLE: &str = "MEMLIFT_TEST_NOBODY";
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let status = std::fs::read_to_string("/proc/self/status").expect("what this process is");
    if !status.lines().any(|line| line.starts_with("Uid:\t0\t0\t")) {
        // Whoever this is has no more rights than nobody.
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command
        .args([test, "--exact", "--nocapture", "--include-ignored"])
        .env(VARIABLE, "1")
        .env("HOME", "/")
        .current_dir("/");
    let output = match command.uid(NOBODY).gid(NOBODY).output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("{test}: not run, nobody may not enter the folder of {:?}", command.get_program());
            return false;
        }
        other => other.expect("it starts"),
    };
    assert!(job::content(test, &["as nobody"], &output).contains("1 passed"));
    false
}

#[test]
fn programs_are_right_for_a_user_without_rights() {
    if is_nobody("masks::programs_are_right_for_a_user_without_rights") {
        run_with("", Chosen::Odd);
    }
}

#[test]
fn programs_are_right_for_a_user_without_rights_and_userfaultfd() {
    if is_nobody("masks::programs_are_right_for_a_user_without_rights_and_userfaultfd") {
        run_with("uffd", Chosen::Even);
    }
}

#[test]
#[ignore = "soak"]
fn soak_all_programs_are_right_for_a_user_without_rights() {
    if is_nobody("masks::soak_all_programs_are_right_for_a_user_without_rights") {
        for mask in ["", "uffd"] {
            run_with(mask, Chosen::All);
        }
    }
}

#[test]
fn what_does_not_pack_goes_to_the_spill_folder_and_comes_back() {
    for mask in ["", "uffd"] {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder on a disk");
        let job = Job::new(24 * MIB);
        let mut command = job.command(job::compile("noise"));
        command.arg("48").env(memlift_zmem::block::ENV_SPILL, folder.path()).env("MEMLIFT_DISABLE", mask);
        let output = command.output().expect("it starts");
        assert_eq!(job::content("noise", &["48"], &output), "right\n");
    }
}
