// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The watcher: tells a block what its processes hold outside their arenas, as the killer counts it.
//!
//! ```text
//! outside = usage − present          usage    the cgroup's, where it is the job's own; else the processes' resident sizes
//!                                    present  what lies in arenas, stores and tables: published when active, else counted
//! block.outside = outside + reserve  reserve  what came on top between two looks, the worst of the last ones, doubled;
//!                                             what of it has no room now is kept by the processes and made by eviction
//! ```
//!
//! - **Flow** look ─▶ sweep the dead ─▶ usage, present ─▶ [`Registry::set_outside_with`] ─▶ cache above the total is dropped ─▶
//!   active when little is left ─▶ sleep
//! - **Order** `present` is read before and after `usage`, and the smaller counts: a page that came in between is counted as
//!   outside, never as nothing. If a process joined or left meanwhile, the look is repeated at once. `unused` below zero is no
//!   event yet: eviction has some looks to make up for it
//! - **Owner** one watcher per job: `memlift run`, or the first process of an explicit job. The size
//!   of a process's memory and its children are read from the kernel; what a process publishes is believed up to its charge
//! - **Not here** eviction (the pager), the end of the job (`memlift run`)

mod cache;
mod resident;
mod usage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::block::{Admission, NEAR, Registry, looks};

pub use usage::Source;
use usage::Usage;

/// Times between two looks at a job: while it is short, and while it is active.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(5)];
/// Bounds of that time while the job is not active: half of the time in which what is left can be filled.
const DORMANT_LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];
/// Bytes that can be filled in a millisecond: two cores that touch new memory, a page in two microseconds each.
const FILLED_IN_MS: u64 = 4 << 20;
/// A dormant job that has more than this left is looked at again before half of that is filled, bytes.
pub(crate) const FILLED_BETWEEN_LOOKS: i64 = 2 * DORMANT_LOOKS[0].as_millis() as i64 * FILLED_IN_MS as i64;
/// The reserve is at least this, and at most 1/16 of the total.
const LEAST_RESERVE: i64 = 1 << 20;
/// Looks in a row with `unused` below zero, and not rising, that make an event.
const PATIENCE: u32 = 20;
/// Most repetitions of a look because processes joined or left meanwhile.
const AGAIN: u32 = 3;
/// Looks over which the worst growth is remembered.
const MEMORY: u32 = 200;

/// Measurements of one look at a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Bytes that the killer counts. Page cache that it drops first is left out, but for the part that stays.
    pub usage: i64,
    /// Bytes in arenas, stores and tables.
    pub present: i64,
    /// Bytes of these in arenas.
    pub arenas: i64,
    /// Bytes outside: usage less present.
    pub outside: i64,
    /// Bytes that the block was told on top of `outside`.
    pub reserve: i64,
}

/// Looks at one job.
#[derive(Debug)]
pub struct Watcher {
    registry: Registry,
    block: usize,
    usage: Usage,
    cache: cache::Cache,
    growth: Growth,
    /// Value of the ledger's `membership` that `growth` belongs to.
    membership: u64,
    /// Little was left at the last look, and less than eviction keeps.
    near: bool,
    /// Bytes of the budget that nothing filled at the last look, cache that only this watcher drops included.
    left: i64,
    pressed: bool,
    /// Looks in a row that found `unused` below zero, and the bytes that the last one found.
    negative: (u32, i64),
}

impl Watcher {
    /// For the job of `admission`, whose first process is or will be a child of this process.
    pub fn new(admission: &Admission) -> Watcher {
        looks::begins(admission.ledger());
        Watcher {
            registry: admission.registry().clone(),
            block: admission.block(),
            usage: Usage::choose(std::process::id()),
            cache: cache::Cache::new(),
            growth: Growth::default(),
            membership: 0,
            near: false,
            left: 0,
            pressed: false,
            negative: (0, 0),
        }
    }

    /// The source that usage is read from.
    pub fn source(&self) -> &Source {
        self.usage.source()
    }

    /// Looks at the job once: measures it, tells the block, drops cache above the total, activates the processes when
    /// little is left.
    pub fn look(&mut self) -> Seen {
        let registry = self.registry.clone();
        registry.sweep_block(self.block);
        let (control, ledger) = (registry.control(self.block), registry.ledger(self.block));
        let mut membership = ledger.membership();
        let (mut counted, mut whole, mut present) = self.measure();
        for _ in 0..AGAIN {
            let now = ledger.membership();
            if now == membership {
                break;
            }
            membership = now;
            (counted, whole, present) = self.measure();
        }
        // Cache that only this watcher drops, and the part of it that does not go.
        let used = i64::try_from(whole).unwrap_or(i64::MAX);
        let droppable = used - counted;
        let held = if self.usage.holds_cache() { droppable } else { 0 };
        let stays = self.cache.stays(held, control.total());
        let (counted, cached) = (counted + stays, held - stays);
        let outside = counted - present.total;
        if membership != self.membership {
            // A process that joined or left is no growth.
            self.growth.last = None;
            self.membership = membership;
        }
        // Cache grows like anything else between two looks.
        let reserve = self.growth.reserve(outside + cached, control.total());
        registry.set_outside_with(self.block, outside, reserve);
        registry.note_usage(self.block, whole);
        // The measurement is told first: dropping cache may take long.
        if let Source::Group(group) = self.usage.source() {
            let pids: Vec<u32> = registry
                .processes(self.block)
                .filter_map(crate::block::Slot::pid)
                .chain([std::process::id()])
                .collect();
            if self.cache.bound(group, &pids, used, droppable, control.total() - reserve) {
                let (counted, whole) = self.usage.now(&registry, self.block);
                self.cache.left(i64::try_from(whole).unwrap_or(i64::MAX) - counted);
            }
        }
        let unused = control.unused();
        // Pages that processes share since a fork are copied when they are written: that room is not free.
        let left = unused - ledger.keep() + outside.min(0);
        self.left = unused - cached + outside.min(0);
        self.near = left < control.unused_objective().max(control.total() / NEAR);
        if self.near {
            registry.activate(self.block);
        }
        self.pressed = unused < 0 || outside < 0 && self.near;
        self.negative = match self.negative {
            _ if unused >= 0 => (0, 0),
            (looks, last) if looks > 0 && unused > last => (1, unused),
            (looks, _) => (looks + 1, unused),
        };
        if self.negative.0 > PATIENCE {
            self.negative = (0, 0);
            registry.press(self.block);
        }
        Seen { usage: counted, present: present.total, arenas: present.arenas, outside, reserve }
    }

    /// Measures the bytes that count, the whole with cache, and the part in arenas, stores and tables.
    fn measure(&mut self) -> (i64, u64, Present) {
        let (registry, block) = (&self.registry, self.block);
        let control = registry.control(block);
        let before = self.usage.present(registry, block, false);
        let (counted, whole) = self.usage.now(registry, block);
        let after = self.usage.present(registry, block, false);
        let mut present = before.min(after);
        // An old count of a dormant process's pages makes the rest look larger than it is: count anew before it hurts.
        let told = registry.ledger(block).outside();
        if control.unused() + told - (counted - present.total) < control.total() / NEAR {
            present = self.usage.present(registry, block, true).min(present.with_arenas(i64::MAX));
        }
        (counted, whole, present)
    }

    /// Time until the next look.
    pub fn pause(&self) -> Duration {
        // If nothing is left even for cache, what is read must be dropped soon after it came.
        if self.pressed || self.near || self.left < 0 || self.registry.ledger(self.block).active() {
            return LOOKS[usize::from(!self.pressed)];
        }
        let [least, most] = DORMANT_LOOKS;
        Duration::from_millis(self.left.unsigned_abs() / 2 / FILLED_IN_MS).clamp(least, most)
    }

    /// Looks once, gives the result to `each`, then sleeps until it is time again or a process asks for a look.
    pub fn round(&mut self, each: impl FnOnce(Seen)) {
        let ledger = self.registry.ledger(self.block);
        let (asked, began) = (looks::asked(ledger), Instant::now());
        each(self.look());
        // At most a tenth of a core, however long a look takes; where memory is short, half of one.
        let rest = began.elapsed() * if self.near { 1 } else { 9 };
        let pause = self.pause().max(rest);
        let ledger = self.registry.ledger(self.block);
        looks::came(ledger, pause);
        looks::sleep(ledger, asked, pause);
    }

    /// Looks at the job on a thread of its own; `each` gets every result.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn spawn(mut self, mut each: impl FnMut(Seen) + Send + 'static) -> std::io::Result<Watching> {
        let (registry, block) = (self.registry.clone(), self.block);
        let ended = Arc::new(AtomicBool::new(false));
        let ends = ended.clone();
        let body = move || {
            while !ends.load(Ordering::Acquire) {
                self.round(&mut each);
            }
        };
        let thread =
            std::thread::Builder::new().name("memlift-watch".to_owned()).stack_size(256 << 10).spawn(body)?;
        Ok(Watching { registry, block, ended, thread })
    }
}

/// A watcher on a thread of its own.
#[derive(Debug)]
pub struct Watching {
    registry: Registry,
    block: usize,
    ended: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Watching {
    /// Ends it. Returns false if it had ended early, by a panic.
    pub fn end(self) -> bool {
        self.ended.store(true, Ordering::Release);
        looks::ask(self.registry.ledger(self.block));
        self.thread.join().is_ok()
    }
}

/// Recent growth of the bytes outside between two looks.
#[derive(Debug, Default)]
struct Growth {
    last: Option<i64>,
    worst: i64,
    age: u32,
}

impl Growth {
    fn reserve(&mut self, outside: i64, total: i64) -> i64 {
        let grown = self.last.map_or(0, |last| outside - last).max(0);
        self.last = Some(outside);
        self.age += 1;
        if grown >= self.worst || self.age > MEMORY {
            self.worst = grown.max(self.worst / 2);
            self.age = 0;
        }
        (2 * self.worst).max(LEAST_RESERVE).min((total / 16).max(0))
    }
}

/// Bytes that lie in arenas, stores and tables.
#[derive(Clone, Copy, Debug, Default)]
struct Present {
    arenas: i64,
    total: i64,
}

impl Present {
    fn min(self, other: Present) -> Present {
        if self.total <= other.total { self } else { other }
    }

    fn with_arenas(self, arenas: i64) -> Present {
        Present { arenas, total: self.total.saturating_sub(self.arenas).saturating_add(arenas) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_follows_growth_and_fades() {
        let mut growth = Growth::default();
        let total = 1 << 30;
        assert_eq!(growth.reserve(0, total), LEAST_RESERVE);
        assert_eq!(growth.reserve(8 << 20, total), 16 << 20);
        assert_eq!(growth.reserve(1 << 30, total), total / 16, "never more than a sixteenth");
        let mut growth = Growth::default();
        let _ = growth.reserve(0, total);
        let _ = growth.reserve(8 << 20, total);
        for _ in 0..MEMORY + 1 {
            let _ = growth.reserve(8 << 20, total);
        }
        assert_eq!(growth.reserve(8 << 20, total), 8 << 20);
    }
}
