// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory cgroup of version 1 or 2 with a limit, below this process's own.
//!
//! - **Owner** the group is removed when the value is dropped, after its processes have ended

#![allow(dead_code, reason = "each test program uses a part")]

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use memlift::ground::region::MemoryGroup;

/// A memory cgroup with a limit.
pub struct Group {
    folder: PathBuf,
    version: u8,
}

impl Group {
    /// Makes a group below this process's own; `None` where none can be made.
    pub fn with_limit(name: &str, bytes: u64) -> Option<Group> {
        let above = MemoryGroup::own()?;
        let version = above.version;
        let group =
            Group { folder: above.directory.join(format!("memlift-{name}-{}", std::process::id())), version };
        std::fs::create_dir(&group.folder).ok()?;
        group.set_limit(bytes).ok()?;
        Some(group)
    }

    /// Changes the limit.
    pub fn set_limit(&self, bytes: u64) -> std::io::Result<()> {
        let limit = if self.version == 2 { "memory.max" } else { "memory.limit_in_bytes" };
        std::fs::write(self.folder.join(limit), bytes.to_string())
    }

    /// Lets the command run in it.
    pub fn around(&self, command: &mut Command) {
        let processes = self.folder.join("cgroup.procs");
        // SAFETY: between fork and exec the child writes one file.
        unsafe { command.pre_exec(move || std::fs::write(&processes, "0")) };
    }

    /// How many processes the kernel killed in it for want of memory.
    pub fn killed(&self) -> u64 {
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
