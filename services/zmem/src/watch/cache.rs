// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page cache of a job whose cgroup has no limit: dropped when the budget leaves no room for it.
//!
//! - **Flow** if the cgroup holds more than the total minus the reserve: at nearly every look, the pages that processes have
//!   read from their open files since the last drop are dropped. In rounds, all files are dropped that the job's processes
//!   have open or had open at an earlier look (the kernel is told that they will not be needed). On cgroup v2, the kernel is
//!   then asked to reclaim what is still too much, if this user may do that and there is no swap ─▶ after a round the watcher
//!   measures what is left and calls [`Cache::left`]: that cache will not go, and counts like other memory
//!   ([`Cache::undroppable_bytes`])
//! - **Owner** in a cgroup with a limit the kernel drops cache itself before it kills. Dropping takes at most a fifth of a
//!   core for files that are being read and a twentieth of a core for rounds, more if one round takes longer than a
//!   millisecond. Pages that a program maps or that are not written back yet stay, and with them the whole large folio in
//!   which any page is mapped. If the group's own cache is too small to matter, nothing is dropped: the pages of the files
//!   then belong to other groups, and would come back at the cost of this group, up to a read-ahead per page
//! - **Not here** cache of files that were closed between two looks; cgroups that hold more than the job

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::num::NonZero;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memlift_ground::region::MemoryGroup;
use rustix::fs::{Advice, fadvise};

/// Upper bound of the files that are remembered.
const FILES: usize = 1024;
/// Upper bound of a process's descriptors that are examined.
const DESCRIPTORS: usize = 1024;
/// Shortest time between two rounds; about the time between two looks.
const PAUSE: Duration = Duration::from_millis(4);
/// Longest time between two rounds: in twice this time, a job that reads files can fill a good part of a small budget.
const MOST_PAUSE: Duration = Duration::from_millis(20);
/// A round is followed by a pause of this many times its length, so that rounds take about 1/20 of the time.
const ROUND_PAUSE_FACTOR: u32 = 20;
/// Dropping files that are being read is followed by a pause of this many times its length: about 1/5 of the time.
const READ_PAUSE_FACTOR: u32 = 5;

/// Bytes of a file that one round drops while the file is dropped for the first time. All of a large file may be in the cache
/// by then, and dropping it in one call would take long.
const PIECE_BYTES: u64 = 32 << 20;
/// Bytes dropped behind a process's position in a file, and more if its position was further back at the last drop; and bytes
/// dropped ahead of the position.
const BEHIND_BYTES: u64 = 16 << 20;
const AHEAD_BYTES: u64 = 8 << 20;

/// Bytes of cache below which a group is not worth a round.
const LEAST_CACHE_BYTES: i64 = 1 << 20;
/// Cache that does not go counts against the job up to this part of the total: 1/4. Files that are closed before a look sees
/// them could fill all of the total, and no process is killed for their cache.
const MOST_UNDROPPABLE_SHARE: i64 = 4;

/// A file whose pages may lie in the cache.
#[derive(Debug)]
struct Known {
    path: PathBuf,
    /// Bytes that were dropped piece by piece. When this reaches the file's length, later rounds drop the whole file, little
    /// of which can have come since.
    dropped: u64,
    /// Position of the reader up to which the file was dropped, bytes.
    read: u64,
}

/// The files whose pages may lie in the cache.
#[derive(Debug)]
pub(super) struct Cache {
    /// The files by device and inode.
    files: HashMap<(u64, u64), Known>,
    next: Instant,
    next_read: Instant,
    /// Bytes of cache that were left after each of the last two rounds, newest first.
    left: [i64; 2],
}

impl Cache {
    pub fn new() -> Cache {
        let now = Instant::now();
        Cache { files: HashMap::new(), next: now, next_read: now, left: [0; 2] }
    }

    /// Notes the bytes of cache that were left after a round.
    pub fn left(&mut self, bytes: i64) {
        self.left = [bytes, self.left[0]];
    }

    /// Returns the part of `cached` bytes that was left after both of the last two rounds, at most a fixed part of `total`.
    pub fn undroppable_bytes(&self, cached: i64, total: i64) -> i64 {
        self.left[0].min(self.left[1]).min(cached).min(total / MOST_UNDROPPABLE_SHARE).max(0)
    }

    /// Drops cache of the files of `pids` if their `group` holds `used` bytes, more than `most`, of which `cached` are cache.
    /// From three quarters of `most` on, the names of the files are noted. Returns true if this was a round that dropped
    /// whole files.
    pub fn bound(&mut self, group: &MemoryGroup, pids: &[u32], used: i64, cached: i64, most: i64) -> bool {
        let began = Instant::now();
        if used < most / 4 * 3 || cached < LEAST_CACHE_BYTES {
            return false;
        }
        if used > most && began >= self.next_read {
            pids.iter().for_each(|pid| self.learn(*pid, true));
            self.next_read = Instant::now() + began.elapsed() * READ_PAUSE_FACTOR;
        }
        let began = Instant::now();
        if began < self.next {
            return false;
        }
        for &pid in pids {
            self.learn(pid, false);
            if used > most {
                self.learn_mapped(pid);
            }
        }
        let mut pieces = Duration::ZERO;
        if used > most {
            self.files.retain(|_, known| known.drop_more(&mut pieces).is_some());
            let excess = used - most;
            let still =
                group.usage().is_some_and(|usage| i64::try_from(usage).is_ok_and(|usage| usage > most));
            if group.version == 2 && still && !swaps() {
                // Writing is refused without the right to it, and fails if less can be reclaimed. Neither changes anything.
                let _ = fs::write(group.directory.join("memory.reclaim"), excess.to_string());
            }
        }
        // Each piece is dropped only once, so the time for pieces does not count as the round's.
        self.next = Instant::now()
            + (began.elapsed().saturating_sub(pieces) * ROUND_PAUSE_FACTOR).clamp(PAUSE, MOST_PAUSE);
        used > most && pieces.is_zero()
    }

    /// Notes the regular files that a process has open, and its program. With `drop`, drops the pages that it has read from
    /// them.
    fn learn(&mut self, pid: u32, drop: bool) {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for entry in entries.take(DESCRIPTORS) {
            let path = entry.path();
            let Ok(target) = fs::read_link(&path) else { continue };
            let Some(known) = self.note(&path, target).filter(|_| drop) else { continue };
            let Some(at) = position(pid, &entry.file_name().to_string_lossy()).filter(|at| *at > 0) else {
                continue;
            };
            let start = at.saturating_sub(BEHIND_BYTES);
            let start = if known.read > 0 { start.min(known.read) } else { start };
            known.read = at;
            drop_pages(&path, start, NonZero::new(at - start + AHEAD_BYTES));
        }
        let program = PathBuf::from(format!("/proc/{pid}/exe"));
        if let Ok(target) = fs::read_link(&program) {
            self.note(&program, target);
        }
    }

    /// Notes the files that a process maps: read-ahead brought in more pages than those that are mapped and in use.
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

    /// Notes the file at `path`, if it is a regular file, under the name `name`.
    fn note(&mut self, path: &Path, name: PathBuf) -> Option<&mut Known> {
        let status = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let (key, full) = ((status.dev(), status.ino()), self.files.len() >= FILES);
        match self.files.entry(key) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(place) if !full => Some(place.insert(Known { path: name, dropped: 0, read: 0 })),
            Entry::Vacant(_) => None,
        }
    }
}

impl Known {
    /// Drops the file's next piece, or all of the file after the last piece. Returns `None` if the file is gone or cannot be
    /// read. The time that a piece takes is added to `pieces`.
    fn drop_more(&mut self, pieces: &mut Duration) -> Option<()> {
        let length = fs::metadata(&self.path).ok()?.len();
        if self.dropped >= length {
            return drop_pages(&self.path, 0, None);
        }
        let began = Instant::now();
        drop_pages(&self.path, self.dropped, NonZero::new(PIECE_BYTES))?;
        self.dropped += PIECE_BYTES;
        *pieces += began.elapsed();
        Some(())
    }
}

/// Returns the position of a process's descriptor in its file, bytes from the start.
fn position(pid: u32, descriptor: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("pos:"))?.trim().parse().ok()
}

/// Tells the kernel that pages of a file will not be needed: `length` bytes from `start` on, or all that follow. Returns
/// `None` if the file is gone or cannot be read.
fn drop_pages(path: &Path, start: u64, length: Option<NonZero<u64>>) -> Option<()> {
    let quiet = rustix::fs::OFlags::NONBLOCK.union(rustix::fs::OFlags::NOCTTY).bits() as i32;
    let file: File = OpenOptions::new().read(true).custom_flags(quiet).open(path).ok()?;
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    fadvise(&file, start, length, Advice::DontNeed).ok()
}

/// Returns true if there is a swap device; the kernel's reclaim would fill it with memory that is not cache.
fn swaps() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

#[cfg(test)]
mod tests {
    use std::io::Seek;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_two_rounds_left_counts_up_to_a_quarter_of_the_total() {
        let mut cache = Cache::new();
        assert_eq!(cache.undroppable_bytes(50, 100), 0, "no round yet");
        cache.left(20);
        assert_eq!(cache.undroppable_bytes(50, 100), 0, "it may have come while files were dropped");
        cache.left(12);
        assert_eq!(cache.undroppable_bytes(50, 100), 12);
        assert_eq!(cache.undroppable_bytes(5, 100), 5, "the kernel dropped it meanwhile");
        assert_eq!(cache.undroppable_bytes(50, 40), 10);
        cache.left(0);
        assert_eq!(cache.undroppable_bytes(50, 100), 0);
    }

    #[test]
    fn files_that_are_open_are_found_dropped_and_forgotten_when_they_are_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("data");
        fs::write(&path, vec![7; 1 << 20]).expect("written");
        let open = File::open(&path).expect("it is there");
        open.sync_all().expect("written back");
        let group = MemoryGroup { directory: folder.path().to_owned(), version: 1 };
        let mut cache = Cache::new();
        let (own, total) = ([std::process::id()], 100 << 20);
        let _ = cache.bound(&group, &own, total / 10, total / 10, total);
        assert!(cache.files.is_empty(), "there is room for it");
        assert!(!cache.bound(&group, &own, 2 * total, LEAST_CACHE_BYTES - 1, total));
        assert!(cache.files.is_empty(), "what is in the cache is others'");
        let _ = cache.bound(&group, &own, total / 5 * 4, total / 5, total);
        let known = |cache: &Cache| cache.files.values().any(|file| file.path.ends_with("data"));
        assert!(known(&cache));
        let mut time = Duration::ZERO;
        let mut file = Known { path: path.clone(), dropped: 0, read: 0 };
        assert!(file.drop_more(&mut time).is_some() && file.dropped >= 1 << 20 && time > Duration::ZERO);
        assert!(file.drop_more(&mut time).is_some());
        (&open).seek(std::io::SeekFrom::Start(12_345)).expect("within");
        assert_eq!(position(std::process::id(), &open.as_raw_fd().to_string()), Some(12_345));
        assert_eq!(position(std::process::id(), "none"), None);
        assert_eq!(fs::read(&path).expect("still there"), vec![7; 1 << 20]);
        fs::remove_file(&path).expect("removed");
        cache.next = Instant::now();
        let _ = cache.bound(&group, &[], 2 * total, total, total);
        assert!(!known(&cache));
        assert!(drop_pages(Path::new("/dev/null"), 0, None).is_none(), "no regular file");
    }
}
