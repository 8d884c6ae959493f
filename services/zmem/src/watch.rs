// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The watcher: measures what the processes of a job hold outside their arenas, as the out-of-memory killer counts it, and
//! tells the job's block. One such measurement is called a look.
//!
//! ```text
//! outside = usage − present          usage    memory of the job's own cgroup, or else the sum of its processes' sizes
//!                                    present  bytes in arenas, stores and tables: published if active, counted if not
//! block.outside = outside + reserve  reserve  twice the largest growth of `outside` between two recent looks. The part for
//!                                             which there is no room is left unused by processes, and eviction makes room
//! ```
//!
//! - **Flow** one look: sweep dead processes ─▶ measure usage and present ─▶ [`Registry::set_outside_with`] ─▶ drop page
//!   cache above the total ─▶ activate the processes if little is left ─▶ sleep
//! - **Starts** what a starting process or thread takes is charged ahead ([`crate::block::Job::charge_start`]). The first look
//!   that begins [`START_AGE`] after it was seen gives that back, since it measures the memory
//! - **Order** `present` is read before and after `usage`, and the smaller value counts: a page that came in between is
//!   counted as outside, never not at all. If a process joined or left meanwhile, the measurement is repeated immediately.
//!   `unused` below zero is not an event yet: eviction has `PATIENCE` looks to make up for it
//! - **Owner** one watcher per job: `memlift run`, or the first process of an explicit job. The size of a process's memory
//!   and its children are read from the kernel; the sizes that a process publishes are believed only up to its charge
//! - **Not here** eviction (the pager), the end of the job (`memlift run`)

mod cache;
#[expect(unsafe_code, reason = "compares two processes by a system call")]
mod resident;
mod usage;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::block::{Admission, NEAR, Registry, looks};

pub use usage::Source;
use usage::Usage;

/// Time between two looks at a job while memory is short, and while the job is active.
const LOOK_PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(5)];
/// Bounds of the time between two looks while the job is not active. Within them it is half the time in which the bytes left
/// can be filled.
const DORMANT_LOOK_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];
/// Bytes that can be filled in a millisecond, by two cores that each touch a page of new memory every two microseconds.
const FILLED_IN_MS: u64 = 4 << 20;
/// Bytes left above which a dormant job is looked at again before half of them can be filled.
pub(crate) const FILLED_BETWEEN_LOOKS: i64 =
    2 * DORMANT_LOOK_PAUSES[0].as_millis() as i64 * FILLED_IN_MS as i64;
/// Lower bound of the reserve, bytes. Its upper bound is 1/16 of the total.
const LEAST_RESERVE: i64 = 1 << 20;
/// Number of looks in a row with `unused` below zero and not rising after which an event is raised.
const PATIENCE: u32 = 20;
/// Upper bound of the repetitions of a measurement because processes joined or left meanwhile.
const MOST_REPEATS: u32 = 3;
/// Number of looks for which the largest growth is remembered.
const GROWTH_WINDOW_LOOKS: u32 = 200;
/// Sizes on each side of a growth.
const SIDE: usize = 3;

/// Age at which a charge for a start is given back by the next look: by then the process or thread has begun.
const START_AGE: Duration = Duration::from_millis(20);

/// Result of one look at a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// Bytes that the killer counts. Page cache that the kernel drops before it kills is left out, except for the part that
    /// does not go when it is dropped.
    pub usage: i64,
    /// Bytes in arenas, stores and tables.
    pub present: i64,
    /// The part of `present` that lies in arenas, bytes.
    pub arenas: i64,
    /// Bytes outside: `usage` minus `present`.
    pub outside: i64,
    /// Bytes that the block was told in addition to `outside`, for growth until the next look.
    pub reserve: i64,
}

/// Measures one job again and again.
#[derive(Debug)]
pub struct Watcher {
    registry: Registry,
    block: usize,
    usage: Usage,
    cache: cache::Cache,
    growth: Growth,
    /// True if the job was active at the last look.
    looks_often: bool,
    starts: Starts,
    /// Value of the ledger's `membership` that `growth` belongs to, and the number of active processes.
    counted: (u64, usize),
    /// True if at the last look little was left, and less than eviction shall keep unused.
    near: bool,
    /// Bytes of the budget that nothing filled at the last look. Page cache that only this watcher drops counts as filled.
    left: i64,
    /// True if `unused` was below zero at the last look, or if little was left while pages shared by a fork are charged
    /// twice.
    short: bool,
    /// Number of looks in a row that found `unused` below zero and not rising.
    overdrawn_looks: u32,
    /// Value of `unused` at the last look.
    last_unused: i64,
}

impl Watcher {
    /// Makes a watcher for the job of `admission`, whose first process is this process or a child that it will start.
    pub fn new(admission: &Admission) -> Watcher {
        looks::announce_watcher(admission.ledger());
        Watcher {
            registry: admission.registry().clone(),
            block: admission.block(),
            usage: Usage::choose(std::process::id()),
            cache: cache::Cache::new(),
            growth: Growth::default(),
            looks_often: false,
            starts: Starts::default(),
            counted: (0, 0),
            near: false,
            left: 0,
            short: false,
            overdrawn_looks: 0,
            last_unused: 0,
        }
    }

    /// Returns the source that usage is read from.
    pub fn source(&self) -> &Source {
        self.usage.source()
    }

    /// Looks at the job once: measures it, tells the block, drops page cache above the total, and activates the processes if
    /// little is left.
    pub fn check(&mut self) -> Measurement {
        let registry = self.registry.clone();
        registry.sweep_block(self.block);
        let (control, ledger) = (registry.control(self.block), registry.ledger(self.block));
        let measured_starts = self.starts.measured(ledger.starting(), Instant::now());
        let mut membership = ledger.membership();
        let (mut counted, mut whole, mut present) = self.measure();
        for _ in 0..MOST_REPEATS {
            let now = ledger.membership();
            if now == membership {
                break;
            }
            membership = now;
            (counted, whole, present) = self.measure();
        }
        // `droppable`: page cache that the kernel does not count against the job. `undroppable`: the part of it that would
        // not go when it was dropped.
        let used = i64::try_from(whole).unwrap_or(i64::MAX);
        let droppable = used - counted;
        let held = if self.usage.holds_cache() { droppable } else { 0 };
        let undroppable = self.cache.undroppable_bytes(held, control.total());
        let (counted, cached) = (counted + undroppable, held - undroppable);
        let outside = counted - present.total;
        let active = registry.processes(self.block).filter(|process| process.active()).count();
        if (membership, active) != self.counted {
            // The memory of a process that joined or left is not growth, nor is what a process now counts itself.
            self.growth.rebase(outside + cached);
            self.counted = (membership, active);
        }
        if ledger.active() && !std::mem::replace(&mut self.looks_often, true) {
            // A dormant job is looked at up to forty times less often, so that more grows from look to look.
            self.growth = Growth::default();
        }
        // Page cache may grow between two looks like any other memory.
        let reserve = self.growth.reserve(outside + cached, control.total());
        registry.set_outside_with(self.block, outside, reserve);
        registry.give_back_starts(self.block, measured_starts);
        registry.note_usage(self.block, whole);
        // The block is told the measurement first, because dropping page cache may take long.
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
        // Pages that processes share since a fork are copied when they are written, so their second charge (`outside` below
        // zero) is not free room.
        let left = unused - ledger.reserved_bytes() + outside.min(0);
        self.left = unused - cached + outside.min(0);
        self.near = left < control.unused_objective().max(control.total() / NEAR);
        if self.near {
            registry.activate(self.block);
        }
        self.short = unused < 0 || outside < 0 && self.near;
        self.overdrawn_looks = match self.overdrawn_looks {
            _ if unused >= 0 => 0,
            1.. if unused > self.last_unused => 1,
            looks => looks + 1,
        };
        self.last_unused = unused;
        if self.overdrawn_looks > PATIENCE {
            self.overdrawn_looks = 0;
            registry.report_lasting_shortage(self.block);
        }
        Measurement { usage: counted, present: present.total, arenas: present.arenas, outside, reserve }
    }

    /// Returns the bytes that count, all bytes including page cache, and the bytes in arenas, stores and tables.
    fn measure(&mut self) -> (i64, u64, Present) {
        let (registry, block) = (&self.registry, self.block);
        let control = registry.control(block);
        let before = self.usage.present(registry, block, false);
        let (counted, whole) = self.usage.now(registry, block);
        let after = self.usage.present(registry, block, false);
        let mut present = before.min(after);
        // An old count of a dormant process's pages makes the bytes outside look larger than they are; count again before
        // that raises an event.
        let told = registry.ledger(block).outside();
        if control.unused() + told - (counted - present.total) < control.total() / NEAR {
            present = self.usage.present(registry, block, true).min(present.with_arenas(i64::MAX));
        }
        (counted, whole, present)
    }

    /// Returns the time until the next look.
    pub fn pause(&self) -> Duration {
        // If nothing is left even for page cache, files that are read must be dropped from it soon.
        if self.short || self.near || self.left < 0 || self.registry.ledger(self.block).active() {
            return LOOK_PAUSES[usize::from(!self.short)];
        }
        let [least, most] = DORMANT_LOOK_PAUSES;
        Duration::from_millis(self.left.unsigned_abs() / 2 / FILLED_IN_MS).clamp(least, most)
    }

    /// Looks once, gives the result to `each`, then sleeps until the next look is due or a process asks for one.
    pub fn round(&mut self, each: impl FnOnce(Measurement)) {
        let ledger = self.registry.ledger(self.block);
        let (asked, began) = (looks::asked(ledger), Instant::now());
        each(self.check());
        // The watcher takes at most a tenth of a core however long a look takes, or half a core while little memory is left.
        let rest = began.elapsed() * if self.near { 1 } else { 9 };
        let pause = self.pause().max(rest);
        let ledger = self.registry.ledger(self.block);
        looks::announce_measurement(ledger, pause);
        looks::sleep(ledger, asked, pause);
    }

    /// Starts a thread that looks at the job again and again; `each` gets every result.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn spawn(mut self, mut each: impl FnMut(Measurement) + Send + 'static) -> std::io::Result<Watching> {
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
    /// Ends the watcher. Returns false if its thread had ended early by a panic.
    pub fn end(self) -> bool {
        self.ended.store(true, Ordering::Release);
        looks::ask(self.registry.ledger(self.block));
        self.thread.join().is_ok()
    }
}

/// The largest growth of the bytes outside from one look to the next, among the recent ones.
///
/// A single size is off by what came or went between the readings of which it is the difference, so the least of three sizes is compared
/// with the greatest of the three before: memory that stays counts, noise does not.
#[derive(Debug, Default)]
struct Growth {
    /// The last sizes, the newest first.
    sizes: [i64; 2 * SIDE],
    known: usize,
    worst: i64,
    age: u32,
}

impl Growth {
    /// Moves the sizes so that the next one is no growth, because it is another sum.
    fn rebase(&mut self, outside: i64) {
        let moved = outside - self.sizes[0];
        self.sizes.iter_mut().for_each(|size| *size += moved);
    }

    fn reserve(&mut self, outside: i64, total: i64) -> i64 {
        self.sizes.rotate_right(1);
        self.sizes[0] = outside;
        self.known = (self.known + 1).min(self.sizes.len());
        let (now, before) = self.sizes.split_at(SIDE);
        let grown = match (now.iter().min(), before.iter().max()) {
            (Some(now), Some(before)) if self.known == self.sizes.len() => (now - before).max(0),
            _ => 0,
        };
        self.age += 1;
        if grown >= self.worst || self.age > GROWTH_WINDOW_LOOKS {
            self.worst = grown.max(self.worst / 2);
            self.age = 0;
        }
        (2 * self.worst).max(LEAST_RESERVE).min((total / 16).max(0))
    }
}

/// Charges for starts, by the look that first saw them.
#[derive(Debug, Default)]
struct Starts {
    /// Time of a look, and the ledger's sum at that time.
    seen: VecDeque<(Instant, u64)>,
    given_back: u64,
}

impl Starts {
    /// Returns the bytes of the charges that a measurement after `now` includes and that were not returned before. `sum` is
    /// the ledger's.
    fn measured(&mut self, sum: u64, now: Instant) -> u64 {
        let before = self.given_back;
        if self.seen.back().map_or(before, |last| last.1) != sum {
            self.seen.push_back((now, sum));
        }
        while let Some((_, sum)) = self.seen.pop_front_if(|seen| now - seen.0 >= START_AGE) {
            self.given_back = sum;
        }
        self.given_back - before
    }
}

/// The bytes that lie in arenas, stores and tables, and the part of them in arenas.
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
    use std::ops::ControlFlow;

    use super::*;
    use crate::block::{Job, Objectives, OnOverflow};

    #[test]
    fn the_reserve_follows_growth_and_fades() {
        fn told(growth: &mut Growth, outside: i64, total: i64) -> i64 {
            (0..SIDE).map(|_| growth.reserve(outside, total)).last().unwrap_or(0)
        }
        let mut growth = Growth::default();
        let total = 1 << 30;
        assert_eq!(told(&mut growth, 0, total), LEAST_RESERVE);
        assert_eq!(told(&mut growth, 8 << 20, total), 16 << 20);
        assert_eq!(told(&mut growth, 1 << 30, total), total / 16, "never more than a sixteenth");
        let mut growth = Growth::default();
        let _ = told(&mut growth, 0, total);
        let _ = told(&mut growth, 8 << 20, total);
        for _ in 0..GROWTH_WINDOW_LOOKS + 1 {
            let _ = growth.reserve(8 << 20, total);
        }
        assert_eq!(growth.reserve(8 << 20, total), 8 << 20);
    }

    #[test]
    fn a_size_that_is_off_is_no_growth_and_steady_growth_is() {
        let (mut growth, total) = (Growth::default(), 1 << 30);
        for look in 0..100 {
            let off = [0, 5 << 20, -(5 << 20), 0, 0][look % 5];
            assert_eq!(growth.reserve((20 << 20) + off, total), LEAST_RESERVE, "{look}");
        }
        for look in 0..20 {
            let _ = growth.reserve((20 << 20) + look * (3 << 20), total);
        }
        assert_eq!(growth.reserve(80 << 20, total), 6 << 20);
        growth.rebase(500 << 20);
        for _ in 0..20 {
            assert_eq!(growth.reserve(500 << 20, total), 6 << 20, "another job's size");
        }
        // Processes that start and end at each second look hide no growth.
        let mut growth = Growth::default();
        for look in 0..40 {
            let outside = look * (3 << 20);
            if look % 2 == 0 {
                growth.rebase(outside);
            }
            let _ = growth.reserve(outside, total);
        }
        assert!(growth.worst >= 3 << 20, "{}", growth.worst);
    }

    #[test]
    fn a_start_is_given_back_once_and_not_before_its_age() {
        let (mut starts, began) = (Starts::default(), Instant::now());
        assert_eq!(starts.measured(0, began), 0);
        assert_eq!(starts.measured(100, began), 0);
        assert_eq!(starts.measured(150, began + START_AGE / 2), 0);
        assert_eq!(starts.measured(150, began + START_AGE), 100);
        assert_eq!(starts.measured(150, began + START_AGE), 0);
        assert_eq!(starts.measured(150, began + 2 * START_AGE), 50);
    }
    #[test]
    fn a_start_is_charged_until_it_is_measured_and_waits_for_room() {
        const START: usize = 1 << 20;
        let registry = Registry::create(1 << 40).expect("a registry");
        let on_overflow = OnOverflow::Fail;
        let objectives = Objectives { total: 1 << 36, unused: 0, min_uncompressed: 0, on_overflow };
        let admission = registry.admit("test", &objectives).expect("there is room");
        let job = Job::attach(registry.clone(), admission.block()).expect("it is a member");
        let uncharged = || job.unused() + job.ledger().outside();
        let all = uncharged();
        let no_eviction = || -> ControlFlow<(), bool> { panic!("there is room") };
        job.charge_start(START, no_eviction);
        assert_eq!((uncharged(), job.ledger().starting()), (all, 0), "nobody would give it back");

        let mut watcher = Watcher::new(&admission);
        let _ = watcher.check();
        looks::announce_measurement(job.ledger(), Duration::from_secs(1000));
        job.charge_start(START, no_eviction);
        job.charge_begun(START);
        assert_eq!(uncharged(), all - 2 * START as i64);
        let _ = watcher.check();
        std::thread::sleep(START_AGE);
        let _ = watcher.check();
        assert_eq!(uncharged(), all, "it is measured by now");

        let _ = job.charge(usize::try_from(job.unused()).expect("there is room"));
        let evict = || {
            job.uncharge(2 * START);
            ControlFlow::Continue(true)
        };
        job.charge_start(START, evict);
        assert_eq!(job.unused(), START as i64, "it was charged after room was made");
        let _ = job.charge(START);
        job.charge_start(START, || ControlFlow::Continue(false));
        assert_eq!(job.unused(), -(START as i64), "a job of one process waits for no other");
    }
}
