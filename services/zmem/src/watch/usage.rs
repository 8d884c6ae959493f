// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Usage of a job: the bytes that the killer counts, and the part that the pagers already account for.
//!
//! - **Flow** [`Usage::choose`] takes the cgroup as the source if only this process, its ancestors and its descendants are in
//!   it, else the resident sizes of the job's processes ─▶ [`Usage::now`], [`Usage::present`]
//! - **Order** the members of the cgroup are read again once a second. A stranger among them moves the job to resident sizes
//!   until it has gone. A cgroup that had a stranger at the start is never used, because the stranger's part of its memory is
//!   unknown
//! - **Owner** memory that the cgroup held before the job is not the job's: that of the shell around it, caches of the
//!   kernel. The memory of the watching process is the job's; if that process was alone in the cgroup, everything in it is
//!   the job's. Page cache that the kernel drops before it kills (clean pages of files) does not count against the job; the
//!   size including it is reported beside
//! - **Not here** reading the sizes of one process ([`super::resident`])

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use memlift_ground::region::MemoryGroup;

use super::{Present, resident};
use crate::block::{Process, Registry};

/// Source of the usage of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The cgroup, which is the job's own.
    Group(MemoryGroup),
    /// The processes' resident sizes.
    Resident,
}

/// Time between two readings of the cgroup's members and of the descendants.
const MEMBERS: Duration = Duration::from_millis(1000);
/// Bytes that the cgroup held before the job and that are too few to matter.
const NEGLIGIBLE_BYTES: i64 = 1 << 20;
/// Counting shared pages is followed by a pause of this many times its length, so that it takes about 1/20 of the time.
const SHARED_COUNT_PAUSE_FACTOR: u32 = 20;
/// The same for counting the pages of dormant processes: about 1/1000 of the time. An old count makes the bytes outside look
/// larger, which is safe, and the pages are counted again where it would matter.
const DORMANT_COUNT_PAUSE_FACTOR: u32 = 1000;

#[derive(Debug)]
pub(super) struct Usage {
    root: u32,
    source: Source,
    /// True if the cgroup has no limit: the kernel then drops none of its cache.
    limitless: bool,
    /// True if the cgroup was the job's own at the start.
    own_group: bool,
    /// Bytes that the cgroup held before the job: without cache that the kernel can drop, and with it.
    held_before_job: (i64, u64),
    members_read: Instant,
    /// Descendants of the root when they were last read.
    family: Vec<u32>,
    /// Resident bytes of the arenas of dormant processes, by pid.
    counted: HashMap<u32, i64>,
    count_again: Instant,
    /// For a job of several processes: bytes that are in more than one process's size, from the proportional sizes when they
    /// were last read.
    shared_bytes: i64,
    /// The proportional sizes take long to read, so they are not read again before this.
    next_shared_count: Instant,
}

impl Usage {
    /// Chooses the source for the job that consists of the descendants of `root`.
    pub fn choose(root: u32) -> Usage {
        let now = Instant::now();
        let mut usage = Usage {
            root,
            source: Source::Resident,
            limitless: false,
            own_group: true,
            held_before_job: (0, 0),
            members_read: now,
            family: Vec::new(),
            counted: HashMap::new(),
            count_again: now,
            shared_bytes: 0,
            next_shared_count: now,
        };
        usage.read_members();
        usage.own_group = usage.source != Source::Resident;
        // If this process is alone in the group, nothing was there before the job: the cache is what the kernel read ahead of
        // this program.
        if let Source::Group(group) = &usage.source
            && group.members() != [root]
        {
            // This process exists for the job, so its memory is the job's.
            let own = resident::size(root).map_or(0, |size| size.anonymous + size.tables);
            let (counted, whole) = usage_without_and_with_cache(group).unwrap_or_default();
            usage.held_before_job = ((counted - own).max(0), whole.saturating_sub(own.max(0) as u64));
        }
        usage
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns true if page cache stays in the cgroup until the watcher drops it.
    pub fn holds_cache(&self) -> bool {
        self.limitless
    }

    /// Reads the cgroup's members and the descendants, and chooses the source by them.
    fn read_members(&mut self) {
        self.members_read = Instant::now();
        self.family = resident::family(self.root);
        let group = MemoryGroup::own().filter(|_| self.own_group).filter(|group| {
            let members = group.members();
            let mut ours: HashSet<u32> = self.family.iter().copied().collect();
            ours.extend(resident::ancestors(self.root));
            // The root group counts the whole machine, so it is no job's own.
            group.limit().is_some()
                | group.directory.parent().is_some_and(|up| up.join("cgroup.procs").exists())
                && !members.is_empty()
                && members
                    .iter()
                    .all(|member| ours.contains(member) || !Process::of(*member).is_some_and(Process::lives))
        });
        self.limitless = group.as_ref().is_some_and(|group| group.limit().is_none());
        self.source = group.map_or(Source::Resident, Source::Group);
    }

    /// Returns the bytes that count against the job, and all bytes that the killer sees. Neither includes what the cgroup
    /// held before the job.
    pub fn now(&mut self, registry: &Registry, block: usize) -> (i64, u64) {
        if self.members_read.elapsed() > MEMBERS {
            self.read_members();
        }
        // Reading the sizes of several processes takes long. It is done only if the cgroup held something before the job that
        // may have gone since, or if there is no cgroup.
        let needs_sizes = self.held_before_job.0 > NEGLIGIBLE_BYTES || self.source == Source::Resident;
        let resident = if needs_sizes { self.resident(registry, block) } else { 0 };
        if let Source::Group(group) = &self.source
            && let Some((counted, whole)) = usage_without_and_with_cache(group)
        {
            // Memory from before the job may have gone since, so usage is at least the sizes of the job's own processes.
            let counted = (counted - self.held_before_job.0).max(resident);
            return (counted, whole.saturating_sub(self.held_before_job.1).max(counted.max(0) as u64));
        }
        let resident = if needs_sizes { resident } else { self.resident(registry, block) };
        (resident, resident as u64)
    }

    fn resident(&mut self, registry: &Registry, block: usize) -> i64 {
        let mut pids: HashSet<u32> = self.family.iter().copied().filter(|pid| *pid != self.root).collect();
        pids.extend(registry.processes(block).filter_map(crate::block::Slot::pid));
        let mut sizes: Vec<(u32, resident::Size)> =
            pids.iter().filter_map(|pid| Some((*pid, resident::size(*pid)?))).collect();
        // A child that was started by vfork or posix_spawn has its parent's memory until its exec.
        let started = |size: &resident::Size| size.parent == self.root || pids.contains(&size.parent);
        sizes.retain(|(pid, size)| !(started(size) && resident::shares_memory(*pid, size.parent)));
        let (pids, sizes): (Vec<u32>, Vec<resident::Size>) = sizes.into_iter().unzip();
        let sum = sum_of(&sizes);
        if sizes.len() < 2 {
            return sum;
        }
        // Pages that forked processes share are in several sizes. The proportional sizes, read as often as time allows, tell
        // how much to subtract.
        if Instant::now() >= self.next_shared_count {
            let began = Instant::now();
            let proportional: i64 = pids.iter().filter_map(|pid| resident::proportional(*pid)).sum();
            let tables: i64 = sizes.iter().map(|size| size.tables).sum();
            // Memory that left while they were read is not shared, so the sizes are read again.
            let again: Vec<_> = pids.iter().filter_map(|pid| resident::size(*pid)).collect();
            self.shared_bytes = shared([sum, sum_of(&again)], proportional + tables);
            self.next_shared_count = Instant::now() + began.elapsed() * SHARED_COUNT_PAUSE_FACTOR;
        }
        (sum - self.shared_bytes).max(0)
    }

    /// Returns the bytes in arenas, stores and tables of the job's processes. With `fresh`, the pages of dormant processes
    /// are counted again.
    pub fn present(&mut self, registry: &Registry, block: usize, fresh: bool) -> Present {
        let mut sum = Present::default();
        let count = Instant::now() >= self.count_again || fresh;
        let began = Instant::now();
        let mut living = HashSet::new();
        for slot in registry.processes(block) {
            let Some(pid) = slot.pid() else { continue };
            living.insert(pid);
            let (arena, store, tables) = slot.published();
            let charged = slot.charged().max(0);
            let arena = if slot.active() {
                arena.min(i64::MAX as u64) as i64
            } else {
                if count {
                    self.counted.insert(pid, resident::in_arena(pid).unwrap_or(0));
                }
                self.counted.get(&pid).copied().unwrap_or(0)
            };
            // No process holds more than it charged, so a larger published size is not believed. An active process charges
            // page by page, so its charge, without what it charged in advance, is what it holds now.
            let charged = if slot.active() { slot.present() } else { charged };
            let rest = store.saturating_add(tables).min(i64::MAX as u64) as i64;
            let rest = rest.min(charged);
            let arena = arena.min(charged - rest);
            sum.arenas += arena;
            sum.total += if slot.active() { charged } else { arena + rest };
        }
        if count {
            self.counted.retain(|pid, _| living.contains(pid));
            self.count_again = Instant::now() + began.elapsed() * DORMANT_COUNT_PAUSE_FACTOR;
        }
        sum
    }
}

/// Returns the sum of the sizes of processes. Most of their files are the same libraries, so only the largest size of files counts.
fn sum_of(sizes: &[resident::Size]) -> i64 {
    let files = sizes.iter().map(|size| size.files).max().unwrap_or(0);
    sizes.iter().map(|size| size.anonymous + size.shared + size.tables).sum::<i64>() + files
}

/// Returns the bytes that are in several processes' sizes, from their sum before and after each page was counted once. Memory came
/// and went meanwhile: the smaller sum counts, so that the result is too small rather than too large.
fn shared(sums: [i64; 2], once: i64) -> i64 {
    (sums[0].min(sums[1]) - once).max(0)
}

/// Returns the bytes of a cgroup without the cache that the kernel drops before it kills, and with it. Mapped files, above
/// all program text, are in both, because they would be read again immediately.
fn usage_without_and_with_cache(group: &MemoryGroup) -> Option<(i64, u64)> {
    let (usage, stat) = (group.usage()?, group.stat());
    let mapped = stat.field(if group.version == 2 { "file_mapped" } else { "mapped_file" }).unwrap_or(0);
    let mapped = mapped.saturating_sub(stat.field("shmem").unwrap_or(0));
    Some((usage.saturating_sub(stat.reclaimable().saturating_sub(mapped)) as i64, usage))
}

#[cfg(test)]
mod tests {
    use super::shared;

    #[test]
    fn memory_that_leaves_or_comes_while_it_is_counted_is_not_shared() {
        assert_eq!(shared([100, 100], 80), 20);
        assert_eq!(shared([100, 80], 90), 0, "it left before each page was counted once, or after");
        assert_eq!(shared([80, 100], 90), 0, "it came");
    }
}
