// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resident memory of a process, as `/proc` reports it.
//!
//! - **Flow** [`size`] from `status` (counters, cheap); [`proportional`] from `smaps_rollup` and [`in_arena`] from `smaps` (the
//!   kernel walks the page tables: milliseconds per gigabyte)
//! - **Owner** a process that has ended or cannot be read has no size (`None`)

use std::fs;

use crate::pager::{ARENA_BASE, ARENA_BYTES};

/// Resident bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of anonymous memory.
    pub anonymous: i64,
    /// Bytes of file pages.
    pub files: i64,
    /// Bytes of shared memory.
    pub shared: i64,
    /// Bytes of page tables.
    pub tables: i64,
    /// The process's parent.
    pub parent: u32,
}

/// Returns the resident bytes of a process according to the kernel's counters.
pub fn size(pid: u32) -> Option<Size> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok()).unwrap_or(0);
    let field = |name| field(&status, name).unwrap_or(0);
    Some(Size {
        parent,
        anonymous: field("RssAnon:"),
        files: field("RssFile:"),
        shared: field("RssShmem:"),
        tables: field("VmPTE:"),
    })
}

/// Returns true if two processes have the same memory, as a child of `vfork` or `posix_spawn` has its parent's until its exec. Every size of such a
/// child is its parent's. False if the kernel does not say.
pub fn shares_memory(one: u32, other: u32) -> bool {
    const MEMORY: i32 = 1;
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, MEMORY, 0, 0) == 0 }
}

/// Returns the resident bytes of a process, where each page is divided by the number of processes that map it.
pub fn proportional(pid: u32) -> Option<i64> {
    field(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:")
}

/// Returns the resident bytes of a process's arena.
pub fn in_arena(pid: u32) -> Option<i64> {
    Some(arena_of(&fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?))
}

fn arena_of(smaps: &str) -> i64 {
    let mut inside = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some((start, _)) = line.split_once('-')
            && let Ok(start) = usize::from_str_radix(start, 16)
        {
            inside = start.checked_sub(ARENA_BASE).is_some_and(|offset| offset < ARENA_BYTES);
        } else if inside && let Some(bytes) = field(line, "Rss:") {
            sum += bytes;
        }
    }
    sum
}

/// Reads a line such as `VmPTE:  12 kB`; returns bytes.
fn field(text: &str, name: &str) -> Option<i64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse::<i64>().ok()?.checked_mul(1024)
}

/// Returns a process and all its descendants.
pub fn family(root: u32) -> Vec<u32> {
    let mut family = vec![root];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        next += 1;
        let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
                if !family.contains(&child) {
                    family.push(child);
                }
            }
        }
    }
    family
}

/// Returns the ancestors of a process, the parent first.
pub fn ancestors(pid: u32) -> Vec<u32> {
    let mut ancestors = Vec::new();
    let mut now = pid;
    while ancestors.len() < 256 {
        let Ok(status) = fs::read_to_string(format!("/proc/{now}/status")) else { break };
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        match parent {
            Some(parent) if parent > 0 => {
                ancestors.push(parent);
                now = parent;
            }
            _ => break,
        }
    }
    ancestors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_arena_is_summed() {
        let smaps = format!(
            "00400000-00500000 r-xp 00000000 00:00 0  /x-y\nSize: 1024 kB\nRss: 512 kB\n{:x}-{:x} rw-p 00000000 00:00 0\nRss:  \
             8 kB\nPss: 4 kB\nffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\nRss: 4 kB\n",
            ARENA_BASE,
            ARENA_BASE + 0x10000
        );
        assert_eq!(arena_of(&smaps), 8192);
    }

    extern "C" fn sleep_and_end(_: *mut libc::c_void) -> i32 {
        let time = libc::timespec { tv_sec: 3, tv_nsec: 0 };
        // SAFETY: the time lives over the first call; the second ends this process alone.
        unsafe {
            libc::syscall(libc::SYS_nanosleep, &raw const time, 0);
            libc::syscall(libc::SYS_exit, 0);
        }
        0
    }

    #[test]
    fn a_child_of_vfork_has_its_parents_memory() {
        let own = std::process::id();
        let parent = std::thread::spawn(|| {
            let mut stack = vec![0u128; 4096];
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            // SAFETY: the stack is the child's alone, as this thread waits until the child has ended.
            let child = unsafe {
                libc::clone(sleep_and_end, stack.as_mut_ptr_range().end.cast(), flags, std::ptr::null_mut())
            };
            // SAFETY: the child is this thread's; no status is wanted.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        });
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        let sharing = || family(own).into_iter().any(|pid| pid != own && shares_memory(pid, own));
        while !parent.is_finished() && !sharing() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let found = sharing();
        assert!(!shares_memory(sleeper.id(), own));
        sleeper.kill().expect("it can be killed");
        sleeper.wait().expect("it is reaped");
        parent.join().expect("the thread ends");
        // A kernel without the call says nothing.
        assert!(found || !shares_memory(own, own));
    }

    #[test]
    fn this_process_has_sizes_and_parents() {
        let own = std::process::id();
        let size = size(own).expect("its own status");
        assert!(size.anonymous > 0 && size.files > 0 && size.tables > 0);
        assert!(proportional(own).is_some_and(|bytes| bytes > 0));
        assert!(!ancestors(own).is_empty());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        assert!(family(own).contains(&child.id()));
        child.kill().expect("it can be killed");
        child.wait().expect("it is reaped");
    }
}
