// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page cache of a job whose cgroup has no limit: where the budget leaves no room for it, it is dropped.
//!
//! Flow    the cgroup holds more than the total ─▶ files that the job's processes have open, or had at an earlier look ─▶ the
//!         kernel is told that they will not be needed; on cgroup v2 it is asked to reclaim what is still too much, where
//!         this user may and nothing can be swapped
//! Owner   below a limit of the cgroup's the kernel drops cache by itself, before it kills. At most a twentieth of a core.
//!         Pages that a program maps, or has not written back yet, stay
//! Not here cache of files that were closed between two looks and of cgroups that hold more than the job

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memlift_engine::region::MemoryGroup;
use rustix::fs::{Advice, fadvise};

/// Files that are remembered.
const FILES: usize = 1024;
/// Descriptors of a process that are looked at.
const DESCRIPTORS: usize = 1024;
/// Least time between two rounds.
const PAUSE: Duration = Duration::from_millis(20);
/// A round takes at most this part of the time: 1/20.
const SHARE: u32 = 20;

/// The files whose pages may lie in the cache.
#[derive(Debug)]
pub(super) struct Cache {
    /// By device and inode.
    files: HashMap<(u64, u64), PathBuf>,
    next: Instant,
}

impl Cache {
    pub fn new() -> Cache {
        Cache { files: HashMap::new(), next: Instant::now() }
    }

    /// Drops cache of the files of `pids` while their `group` holds `used` bytes, more than `total`; from three quarters
    /// of it on it learns their names.
    pub fn bound(&mut self, group: &MemoryGroup, pids: impl IntoIterator<Item = u32>, used: i64, total: i64) {
        let began = Instant::now();
        if used < total / 4 * 3 || began < self.next {
            return;
        }
        for pid in pids {
            self.learn(pid);
            if used > total {
                self.learn_mapped(pid);
            }
        }
        if used > total {
            self.files.retain(|_, path| drop_pages(path).is_some());
            let excess = used - total;
            let still =
                group.usage().is_some_and(|usage| i64::try_from(usage).is_ok_and(|usage| usage > total));
            if group.version == 2 && still && !swaps() {
                // Refused where it is not this user's, and an error where less was found: both leave things as they are.
                let _ = fs::write(group.directory.join("memory.reclaim"), excess.to_string());
            }
        }
        self.next = Instant::now() + (began.elapsed() * SHARE).max(PAUSE);
    }

    /// Notes the regular files that a process has open, and its program.
    fn learn(&mut self, pid: u32) {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let program = PathBuf::from(format!("/proc/{pid}/exe"));
        for path in entries.take(DESCRIPTORS).map(|entry| entry.path()).chain([program]) {
            if let Ok(target) = fs::read_link(&path) {
                self.note(&path, target);
            }
        }
    }

    /// Notes the files that a process maps: around the pages in use more was read than is used.
    fn learn_mapped(&mut self, pid: u32) {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mut last = "";
        for path in maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])) {
            if path != last {
                self.note(Path::new(path), PathBuf::from(path));
                last = path;
            }
        }
    }

    /// Notes what is there under a path, if it is a regular file, as `name`.
    fn note(&mut self, path: &Path, name: PathBuf) {
        let Ok(status) = fs::metadata(path) else { return };
        if status.is_file() && self.files.len() < FILES {
            self.files.entry((status.dev(), status.ino())).or_insert(name);
        }
    }
}

/// Tells the kernel that a file's pages will not be needed; none where it is gone or not to be read.
fn drop_pages(path: &Path) -> Option<()> {
    let quiet = rustix::fs::OFlags::NONBLOCK.union(rustix::fs::OFlags::NOCTTY).bits() as i32;
    let file: File = OpenOptions::new().read(true).custom_flags(quiet).open(path).ok()?;
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    fadvise(&file, 0, None, Advice::DontNeed).ok()
}

/// Whether there is a swap device, which reclaim would fill with what is no cache.
fn swaps() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_open_are_found_dropped_and_forgotten_when_they_are_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        fs::write(&path, vec![7; 1 << 20]).expect("written");
        let open = File::open(&path).expect("it is there");
        open.sync_all().expect("written back");
        let group = MemoryGroup { directory: folder.path().to_owned(), version: 1 };
        let mut cache = Cache::new();
        cache.bound(&group, [std::process::id()], 10, 100);
        assert!(cache.files.is_empty(), "there is room for it");
        cache.bound(&group, [std::process::id()], 80, 100);
        assert!(cache.files.values().any(|file| file.ends_with("data")));
        assert!(drop_pages(&path).is_some());
        assert_eq!(fs::read(&path).expect("still there"), vec![7; 1 << 20]);
        fs::remove_file(&path).expect("removed");
        cache.next = Instant::now();
        cache.bound(&group, [], 200, 100);
        assert!(!cache.files.values().any(|file| file.ends_with("data")));
        assert!(drop_pages(Path::new("/dev/null")).is_none(), "no regular file");
    }
}
