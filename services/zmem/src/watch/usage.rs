// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Usage of a job: the bytes that the killer counts, and the part that the pagers already account for.
//!
//! - **Flow** [`Usage::choose`]: the cgroup, if nobody is in it but this process, its ancestors and descendants; else the
//!   resident sizes of the job's processes ─▶ [`Usage::now`], [`Usage::present`]
//! - **Order** the members of the cgroup are read again once a second: a stranger moves the job to resident sizes, until it is gone. A
//!   cgroup that had a stranger at the start stays out: nobody knows what in it was the stranger's
//! - **Owner** memory that the cgroup held before the job is not the job's: the shell around it, caches of the kernel. The
//!   process that watches is the job's, and where it was alone in the cgroup everything is. Page cache that the kernel drops
//!   before it kills (clean pages of files) does not count against the job; the whole is reported beside it
//! - **Not here** reading a process's sizes ([`super::resident`])

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use memlift_ground::region::MemoryGroup;

use super::{Present, resident};
use crate::block::{Process, Registry};

/// Source of the usage of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The cgroup: it is the job's own.
    Group(MemoryGroup),
    /// The processes' resident sizes.
    Resident,
}

/// Time between two readings of the cgroup's members and the descendants.
const MEMBERS: Duration = Duration::from_millis(1000);
/// Bytes that may have been there before the job and make no difference.
const NOTHING: i64 = 1 << 20;
/// Part of the time that counting shared pages may take: 1/20.
const SHARE: u32 = 20;
/// Part of the time that counting a dormant process's pages may take: 1/1000. An old count is safe, and taken anew where it would
/// matter.
const DORMANT_SHARE: u32 = 1000;

#[derive(Debug)]
pub(super) struct Usage {
    root: u32,
    source: Source,
    /// The cgroup has no limit: the kernel drops none of its cache.
    limitless: bool,
    /// The cgroup was the job's own at the start.
    own_group: bool,
    /// Bytes that the cgroup held before the job, without and with cache.
    before: (i64, u64),
    asked: Instant,
    /// Descendants of the root, as last seen.
    family: Vec<u32>,
    /// Pages counted in the arenas of dormant processes, by pid.
    counted: HashMap<u32, i64>,
    count_again: Instant,
    /// Resident size per process of a job of several, by pid: proportional sizes take long to read.
    proportional: (Instant, i64),
}

impl Usage {
    /// Chooses the source for the descendants of `root`.
    pub fn choose(root: u32) -> Usage {
        let now = Instant::now();
        let mut usage = Usage {
            root,
            source: Source::Resident,
            limitless: false,
            own_group: true,
            before: (0, 0),
            asked: now,
            family: Vec::new(),
            counted: HashMap::new(),
            count_again: now,
            proportional: (now, 0),
        };
        usage.ask();
        usage.own_group = usage.source != Source::Resident;
        // If this process is alone in the group, nothing was there before: the cache is what the kernel read ahead of this
        // program.
        if let Source::Group(group) = &usage.source
            && group.members() != [root]
        {
            // This process is there for the job: its memory is the job's.
            let own = resident::size(root).map_or(0, |size| size.anonymous + size.tables);
            let (counted, whole) = held(group).unwrap_or_default();
            usage.before = ((counted - own).max(0), whole.saturating_sub(own.max(0) as u64));
        }
        usage
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Returns true if cache stays in it until somebody drops it.
    pub fn holds_cache(&self) -> bool {
        self.limitless
    }

    fn ask(&mut self) {
        self.asked = Instant::now();
        self.family = resident::family(self.root);
        let group = MemoryGroup::own().filter(|_| self.own_group).filter(|group| {
            let members = group.members();
            let mut ours: HashSet<u32> = self.family.iter().copied().collect();
            ours.extend(resident::ancestors(self.root));
            // The root group counts the whole machine.
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

    /// Returns the bytes that count against the job, and the whole that the killer sees. Both are without what the cgroup held
    /// before the job.
    pub fn now(&mut self, registry: &Registry, block: usize) -> (i64, u64) {
        if self.asked.elapsed() > MEMBERS {
            self.ask();
        }
        // Sizes of several processes take long to read: only where something was there before that may have gone.
        let asked = self.before.0 > NOTHING || self.source == Source::Resident;
        let resident = if asked { self.resident(registry, block) } else { 0 };
        if let Source::Group(group) = &self.source
            && let Some((counted, whole)) = held(group)
        {
            // Memory from before the job may have gone since: usage is at least the processes' own sizes.
            let counted = (counted - self.before.0).max(resident);
            return (counted, whole.saturating_sub(self.before.1).max(counted.max(0) as u64));
        }
        let resident = if asked { resident } else { self.resident(registry, block) };
        (resident, resident as u64)
    }

    fn resident(&mut self, registry: &Registry, block: usize) -> i64 {
        let mut pids: HashSet<u32> = self.family.iter().copied().filter(|pid| *pid != self.root).collect();
        pids.extend(registry.processes(block).filter_map(crate::block::Slot::pid));
        let sizes: Vec<resident::Size> = pids.iter().filter_map(|pid| resident::size(*pid)).collect();
        let files = sizes.iter().map(|size| size.files).max().unwrap_or(0);
        let own: i64 = sizes.iter().map(|size| size.anonymous + size.shared + size.tables).sum();
        if sizes.len() < 2 {
            return own + files;
        }
        // Pages that forks share are in several sizes: count them once, as often as time allows.
        if Instant::now() >= self.proportional.0 {
            let began = Instant::now();
            let proportional: i64 = pids.iter().filter_map(|pid| resident::proportional(*pid)).sum();
            let tables: i64 = sizes.iter().map(|size| size.tables).sum();
            let shared = own + files - (proportional + tables);
            self.proportional = (Instant::now() + began.elapsed() * SHARE, shared.max(0));
        }
        (own + files - self.proportional.1).max(0)
    }

    /// Returns the bytes in arenas, stores and tables of the job's processes; `fresh` counts dormant ones again.
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
            // Nobody holds more than it charged: what it says beyond that is not believed. An active process charges page by
            // page, so its charge is what it holds at this moment but for what it charged in advance.
            let charged = if slot.active() { slot.present() } else { charged };
            let rest = store.saturating_add(tables).min(i64::MAX as u64) as i64;
            let rest = rest.min(charged);
            let arena = arena.min(charged - rest);
            sum.arenas += arena;
            sum.total += if slot.active() { charged } else { arena + rest };
        }
        if count {
            self.counted.retain(|pid, _| living.contains(pid));
            self.count_again = Instant::now() + began.elapsed() * DORMANT_SHARE;
        }
        sum
    }
}

/// Returns the bytes of a cgroup without the cache that the kernel drops first, and with it. Mapped files, text above all,
/// count in both: they would be read again at once.
fn held(group: &MemoryGroup) -> Option<(i64, u64)> {
    let (usage, stat) = (group.usage()?, group.stat());
    let mapped = stat.field(if group.version == 2 { "file_mapped" } else { "mapped_file" }).unwrap_or(0);
    let mapped = mapped.saturating_sub(stat.field("shmem").unwrap_or(0));
    Some((usage.saturating_sub(stat.reclaimable().saturating_sub(mapped)) as i64, usage))
}
