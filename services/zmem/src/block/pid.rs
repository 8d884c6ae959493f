// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Identity of a process, and a test that it still lives. A pid alone is not enough, because another process may have it by
//! now.
//!
//! - **Flow** [`Process::current`], [`Process::of`] ─▶ pid and start time from `/proc/PID/stat`; [`Process::lives`]: a pidfd
//!   can be opened, it is not readable (a zombie's is), and the start time is unchanged
//! - **Owner** nothing is stored between calls and nothing is allocated, since the child of a fork calls this too
//! - **Not here** processes of another PID namespace: they have another registry, or none

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, read};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// One process, identified beyond the reuse of its pid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Pid in this process's PID namespace.
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub started: u64,
}

impl Process {
    /// Returns this process. The kernel is asked on every call, since a fork changes the answer.
    pub fn current() -> Process {
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        Process { pid, started: started(pid).unwrap_or(0) }
    }

    /// Returns the process that has `pid` now.
    pub fn of(pid: u32) -> Option<Process> {
        started(pid).map(|started| Process { pid, started })
    }

    /// Returns true if the process has not ended. If that cannot be decided, it counts as alive.
    pub fn lives(self) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => {
                let mut ended = [PollFd::new(&handle, PollFlags::IN)];
                let zombie = poll(&mut ended, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }));
                if zombie == Ok(1) {
                    return false;
                }
            }
            Err(Errno::SRCH) => return false,
            Err(_) => {}
        }
        started(self.pid).is_none_or(|started| self.started == 0 || started == self.started)
    }
}

/// Returns field 22 of `/proc/PID/stat`. The name in field 2 may contain anything, so fields are counted from its last
/// bracket.
fn started(pid: u32) -> Option<u64> {
    let mut path = [0u8; 32];
    let path = stat_path(pid, &mut path);
    let file = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0u8; 1024];
    let length = read(&file, &mut text).ok()?;
    let text = &text[..length];
    let bracket = text.iter().rposition(|byte| *byte == b')')?;
    // Field 3 comes after the bracket and a blank.
    let field = text.get(bracket + 2..)?.split(|byte| *byte == b' ').nth(19)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn stat_path(pid: u32, space: &mut [u8; 32]) -> &[u8] {
    let mut digits = [0u8; 10];
    let mut rest = pid;
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let mut end = 0;
    for part in [b"/proc/".as_slice(), &digits[first..], b"/stat"] {
        space[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    &space[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_lives_until_it_ended_even_unreaped() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        let process = Process::of(child.id()).expect("it has a start time");
        assert!(process.lives());
        assert!(!Process { started: process.started + 1, ..process }.lives(), "another process of that pid");
        child.kill().expect("it can be killed");
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("not reaped");
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).expect("it ends");
        assert!(!process.lives(), "a zombie");
        child.wait().expect("it is reaped");
        assert!(!process.lives());
        assert!(Process::current().lives());
        assert_eq!(stat_path(0, &mut [0; 32]), b"/proc/0/stat");
        assert_eq!(stat_path(u32::MAX, &mut [0; 32]), b"/proc/4294967295/stat");
    }
}
