// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refused facilities: without something it needs the library goes on or ends the process with a message; it neither hangs
//! nor panics.

use crate::job;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::job::{Job, MIB};

/// Runs a command to its end; a hang is this test's failure.
fn output_of(mut command: Command, how: &str) -> Output {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{how}: {error}"));
    let deadline = Instant::now() + Duration::from_secs(240);
    while child.try_wait().expect("it is this test's child").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("it is this test's child");
            let output = child.wait_with_output().expect("it has ended");
            panic!("{how} hangs: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("it has ended")
}

#[test]
fn a_filter_of_the_programs_own_ends_it_in_words_or_not_at_all() {
    let calls = [
        libc::SYS_ioctl,
        libc::SYS_madvise,
        libc::SYS_process_madvise,
        libc::SYS_mprotect,
        libc::SYS_seccomp,
        libc::SYS_rt_sigaction,
        libc::SYS_pread64,
        libc::SYS_openat,
    ];
    for (call, number, when, mask) in calls.into_iter().flat_map(|call| {
        [
            (call, libc::EPERM, "late", ""),
            (call, libc::ENOSYS, "early", ""),
            (call, libc::EINVAL, "late", "uffd"),
        ]
    }) {
        let job = Job::new(24 * MIB);
        let mut command = job.command(job::compile("sandbox"));
        command.args([when, &call.to_string(), &number.to_string(), "40"]).env("MEMLIFT_DISABLE", mask);
        let how = format!("call {call} refused {when} with {number}, without {mask:?}");
        let output = output_of(command, &how);
        let said = String::from_utf8_lossy(&output.stderr);
        println!("{how}: {}; {}", output.status, said.lines().last().unwrap_or_default());
        if output.status.success() {
            assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n", "{how}");
        } else {
            assert!(matches!(output.status.code(), Some(71 | 125)), "{how}: {}\n{said}", output.status);
            assert!(said.contains("memlift: ") && !said.contains("panicked"), "{how}: {said}");
        }
    }
}

#[test]
fn a_process_without_a_free_descriptor_is_whole_or_ends_in_words() {
    for (late, mask) in [("0", ""), ("1", ""), ("0", "uffd"), ("1", "uffd")] {
        let job = Job::new(56 * MIB);
        let mut command = job.command(job::compile("full"));
        let output =
            command.args(["40", "64", late]).env("MEMLIFT_DISABLE", mask).output().expect("it starts");
        assert_eq!(job::content("full", &[late, mask], &output), "right\n");
    }
    let job = Job::new(36 * MIB);
    let output = job.command(job::compile("full")).args(["40", "20", "0"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("RLIMIT_NOFILE"), "{said}");
}

#[test]
fn a_limit_on_address_space_ends_it_in_words_or_not_at_all() {
    for limit in [96, 128, 192, 256, 320, 512, 768, 1024, 2048, 4096, 8192, 16384, 65536, 1 << 20] {
        let bytes = (limit * MIB) as u64;
        let job = Job::new(32 * MIB);
        let mut command = job.command(job::compile("heap"));
        command.arg(if limit < 1024 { "2" } else { "32" });
        let how = format!("{limit} MiB of address space");
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
                match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            })
        };
        let output = output_of(command, &how);
        let said = String::from_utf8_lossy(&output.stderr);
        println!("{how}: {}; {}", output.status, said.lines().last().unwrap_or_default());
        if !output.status.success() {
            assert!(limit < 1024, "{how}: {}\n{said}", output.status);
            assert_eq!(output.status.code(), Some(125), "{how}: {}\n{said}", output.status);
            assert!(said.contains("memlift: ") && said.contains("ulimit -v"), "{how}: {said}");
        }
    }
}
