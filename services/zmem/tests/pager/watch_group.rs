// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The watcher in a memory cgroup of its own: files read before its first look are the job's cache, and are dropped.
//!
//! - **Method** a process of its own in a new group below this one, as `memlift run` is under a scheduler. If no group can be
//!   made (no root, or cgroup v2 without the memory controller for children), the test says so and is skipped

use std::io::Write;
use std::path::PathBuf;

use crate::pager_child::in_child;
use memlift_ground::region::MemoryGroup;
use memlift_zmem::block::{Admission, Objectives, OnOverflow, Registry};
use memlift_zmem::watch::{Source, Watcher};

const MIB: usize = 1 << 20;

/// A new group below this process's own.
struct Group(PathBuf);

impl Group {
    /// With this process in it.
    fn entered() -> Option<Group> {
        let above = MemoryGroup::own()?;
        let group = Group(above.directory.join(format!("memlift-test-{}", std::process::id())));
        std::fs::create_dir(&group.0).ok()?;
        let own = std::fs::write(group.0.join("cgroup.procs"), std::process::id().to_string())
            .ok()
            .and_then(|()| MemoryGroup::own());
        let alone = own.is_some_and(|own| own.directory == group.0 && own.limit().is_none());
        alone.then_some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(above) = self.0.parent() {
            let _ = std::fs::write(above.join("cgroup.procs"), std::process::id().to_string());
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A job with a total, in a registry of its own.
fn job(total: usize) -> Admission {
    let registry = Registry::create(1 << 40).expect("a registry");
    let on_overflow = OnOverflow::Fail;
    registry
        .admit("test", &Objectives { total, unused: 0, min_uncompressed: 0, on_overflow })
        .expect("admitted")
}

/// A cold start: the command's and the program's text are read from the disk, at this group's cost, before the first look.
#[test]
fn what_was_read_before_the_first_look_is_the_jobs_cache() {
    in_child("watch_group::what_was_read_before_the_first_look_is_the_jobs_cache", || {
        let Some(group) = Group::entered() else {
            eprintln!("skipped: no memory cgroup can be made below this one");
            return;
        };
        let usage = || MemoryGroup::own().and_then(|group| group.usage()).expect("it is counted") as usize;
        let folder = option_env!("CARGO_TARGET_TMPDIR").unwrap_or(".");
        let mut file = tempfile::tempfile_in(folder).expect("the build's folder can be written");
        file.write_all(&vec![7; 48 * MIB]).expect("room on the disk");
        file.sync_all().expect("a disk");
        assert!(usage() > 48 * MIB, "the file is in this group's cache");

        let total = 64 * MIB;
        let job = job(total);
        let mut watcher = Watcher::new(&job);
        assert!(matches!(watcher.source(), Source::Group(own) if own.directory == group.0));
        let seen = watcher.check();
        assert!(job.ledger().peak() as usize > 48 * MIB, "it is in what the killer sees: {seen:?}");
        assert!((seen.usage as usize) < 32 * MIB, "clean cache is nothing that cannot be dropped: {seen:?}");

        // The job grows. Together that is more than the total.
        let grown = vec![1u8; 30 * MIB];
        assert!(usage() > total);
        for _ in 0..500 {
            watcher.check();
            if usage() < total {
                break;
            }
            std::thread::sleep(watcher.pause());
        }
        assert!(usage() < total, "the cache was not dropped: {} bytes", usage());
        assert!(grown.iter().all(|byte| *byte == 1));
    });
}

/// A container with another process in it when the job starts, which ends later: its leavings are not the job's.
#[test]
fn a_group_that_was_not_the_jobs_at_first_never_is() {
    in_child("watch_group::a_group_that_was_not_the_jobs_at_first_never_is", || {
        let Some(_group) = Group::entered() else {
            eprintln!("skipped: no memory cgroup can be made below this one");
            return;
        };
        // Memory of the group that is in nobody's resident size.
        let file =
            rustix::fs::memfd_create("memlift-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        std::fs::File::from(file.try_clone().expect("a descriptor"))
            .write_all(&vec![7; 64 * MIB])
            .expect("room");
        let stranger =
            std::process::Command::new("sh").args(["-c", "sleep 100 > /dev/null 2>&1 & echo $!"]).output();
        let pid = String::from_utf8(stranger.expect("a shell").stdout).expect("text");
        let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number")).expect("a process");

        let job = job(64 * MIB);
        let mut watcher = Watcher::new(&job);
        assert_eq!(*watcher.source(), Source::Resident, "somebody else is there");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is there");
        // Members are read again once a second.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let seen = watcher.check();
        assert!((seen.usage as usize) < 48 * MIB, "what was there before counts as the job's: {seen:?}");
        assert_eq!(*watcher.source(), Source::Resident);
    });
}
