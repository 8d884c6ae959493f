// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue that several processes put into and take from, over one memfd that all of them map.
//!
//! - **Flow** put: `reserve` a block (lock) ─▶ copy into it (no lock) ─▶ `publish` (lock), wake one getter
//!   get: `take` the oldest (lock) ─▶ its block is the getter's alone, in place ─▶ dropped: free again, wake putters
//! - **Layout** `layout`; sparse, so that a queue takes the memory of what lies in it, within its budget
//! - **Order** items are taken in the order in which they were published. A short one travels in its slot and takes one lock
//! - **Owner** nobody hosts it: no broker, no thread, no file. It lives as long as some process has it. The next putter without
//!   room frees what a dead member was writing or reading; the next in line notices a death inside the lock
//! - **Not here** peers that lie: members are processes that were given the descriptor on purpose (`Client` and `Server` are for
//!   others). What they write into the books is checked all the same, so that it fails a call and not a process

mod bell;
#[expect(unsafe_code, reason = "copies into blocks of the queue, and gives them memory")]
mod item;
#[expect(unsafe_code, reason = "promises that the shared words are atomics only")]
mod layout;
mod ledger;
mod lock;
mod member;
mod table;
#[cfg(test)]
#[expect(unsafe_code, reason = "forks children that die at bad moments")]
mod tests;

use crate::error::Error;
use crate::fork;
use crate::payload::Outgoing;
use crate::row::QueueRow;
use bell::Bell;
use item::{Block, Held};
pub use item::{Item, Reserved};
pub use layout::Ledger;
use layout::*;
use member::Member;
use memlift_ground::complete::{Parker, WaitPolicy, Waited, Waiter};
use memlift_ground::region::{Access, Headroom, Region, RegionOffset, RegionOptions};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::thread::futex;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
pub use table::Label;
use table::{Limits, Place, Table};

/// How many forks may lie between the process that opened a queue and one that uses the same object.
const FORKS: usize = 16;
/// Interval at which a putter without room looks for members that died.
const LOOK: Duration = Duration::from_millis(100);
/// Longest sleep of a getter: a putter may die between its item and the wake.
const WAKE: Duration = Duration::from_secs(1);
/// Address space per byte of budget: sizes that come and go leave gaps.
const SPREAD: u64 = 4;
/// Smallest budget that is taken by default where addresses are few.
const DEFAULT_LEAST: u64 = 16 << 20;

/// How a queue is made.
#[derive(Clone, Debug, Default)]
pub struct QueueOptions {
    /// Items that may wait at once; 0: as many as there is memory for, 2^20 at most.
    pub items_max: u64,
    /// Bytes of memory that it may take; `None`: half of what is available now.
    pub bytes_max: Option<u64>,
    /// Record of items that were taken.
    pub ledger: Ledger,
}

/// State of a queue at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueueStats {
    /// Items that wait.
    pub items: u64,
    /// Items that some process is putting.
    pub writing: u32,
    /// Items that were taken and are still looked at.
    pub reading: u32,
    /// Bytes of memory that blocks have.
    pub memory_bytes: u64,
    /// Of those, in items that are looked at.
    pub viewed_bytes: u64,
    /// Bytes of memory that blocks may have.
    pub budget_bytes: u64,
}

/// A queue. Clones share it; a fork's child may use it, too.
#[derive(Clone)]
pub struct Queue(Arc<Shared>);

struct Shared {
    region: Region,
    bell: Bell,
    limits: Limits,
    /// State of each process that uses this object, by fork generation.
    own: [OnceLock<Own>; FORKS],
}

/// A process's membership, its lock and its waiters.
struct Own {
    member: Member,
    row: QueueRow,
    turn: Mutex<()>,
    getter: Mutex<Waiter>,
    putter: Mutex<Waiter>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("limits", &self.0.limits).finish()
    }
}

/// Sleeps on a counter that others advance.
struct CounterParker<'a> {
    counter: &'a AtomicU32,
    sleepers: &'a AtomicU32,
    seen: std::cell::Cell<u32>,
}

impl<'a> CounterParker<'a> {
    fn new(counter: &'a AtomicU32, sleepers: &'a AtomicU32) -> CounterParker<'a> {
        CounterParker { counter, sleepers, seen: std::cell::Cell::new(counter.load(Ordering::SeqCst)) }
    }
}

impl Parker for CounterParker<'_> {
    fn prepare(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.seen.set(self.counter.load(Ordering::SeqCst));
        fence(Ordering::SeqCst);
    }

    fn park(&self, until: Option<Instant>) -> io::Result<()> {
        let left = until.map(|until| lock::timespec(until.saturating_duration_since(Instant::now())));
        match futex::wait(self.counter, futex::Flags::empty(), self.seen.get(), left.as_ref()) {
            Ok(())
            | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn finish(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Advances a counter and wakes who sleeps on it.
fn advance(counter: &AtomicU32, sleepers: &AtomicU32, wake: u32) {
    counter.fetch_add(1, Ordering::SeqCst);
    if sleepers.load(Ordering::SeqCst) != 0 {
        // A failed wake can only mean that nobody sleeps on the word.
        let _ = futex::wake(counter, futex::Flags::empty(), wake);
    }
}

impl Shared {
    fn head(&self) -> &Header {
        self.region.layout(RegionOffset(0)).expect("the region has its full length")
    }

    fn own(&self) -> Result<&Own, Error> {
        let place = self.own.get(fork::generation() as usize).ok_or(Error::Closed { what: "queue" })?;
        if let Some(own) = place.get() {
            return Ok(own);
        }
        let member = Member::join(&self.region, self.head(), self.limits.ledger)?;
        let wait = WaitPolicy::AUTO;
        Ok(place.get_or_init(|| Own {
            member,
            row: QueueRow::open(),
            turn: Mutex::new(()),
            getter: Mutex::new(Waiter::new(wait)),
            putter: Mutex::new(Waiter::new(wait)),
        }))
    }

    fn table(&self) -> Table<'_> {
        Table { region: &self.region, head: self.head(), limits: &self.limits, bell: &self.bell }
    }

    /// Runs `step` under the lock.
    fn locked<T>(&self, own: &Own, step: impl FnOnce(&Table<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let done = self.locked_until(own, None, step)?;
        Ok(done.expect("without a limit it is waited for"))
    }

    /// As [`locked`](Shared::locked), with a time limit; `None`: the lock was not free in time, because its holder is stopped.
    fn locked_until<T>(
        &self,
        own: &Own,
        until: Option<Instant>,
        step: impl FnOnce(&Table<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let guard = lock::lock(&self.head().lock, &own.turn, &own.member, &self.region, until);
        let Some(guard) = guard else { return Ok(None) };
        let table = self.table();
        if guard.inherited {
            table.recover()?;
        }
        step(&table).map(Some)
    }

    fn release(&self, slot: u32) {
        let Ok(own) = self.own() else { return };
        // An error means that somebody spoilt the books; the next call says so.
        let _ = self.locked(own, |table| table.release(slot));
        let head = self.head();
        advance(&head.room, &head.room_sleepers, u32::MAX);
    }

    fn inline_at(slot: u32) -> RegionOffset {
        RegionOffset(SLOTS_AT + u64::from(slot) * SLOT_BYTES + INLINE_AT)
    }

    /// Waits until `ready` gives true; at most until `until`.
    fn wait(
        &self,
        waiter: &Mutex<Waiter>,
        parker: &CounterParker<'_>,
        mut ready: impl FnMut() -> bool,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        let mut other = None;
        let mut kept = waiter.try_lock().ok();
        let waiter = match &mut kept {
            Some(waiter) => &mut **waiter,
            None => other.insert(Waiter::new(WaitPolicy::BLOCK)),
        };
        match waiter.wait(parker, std::ptr::null(), &mut ready, None, until) {
            Waited::Ready | Waited::TimedOut => Ok(()),
            Waited::Broken(source) => Err(Error::System { doing: "waiting at a queue", source }),
        }
    }
}

/// Address space for a queue. Where there is too little of it (`ulimit -v`, processors with short addresses), most is left to the program:
/// a budget that the caller named is kept, without gaps; the default one shrinks.
fn map(options: &QueueOptions) -> Result<(Region, Limits), Error> {
    let QueueOptions { items_max, bytes_max, ledger } = *options;
    let mut budget_bytes =
        bytes_max.unwrap_or_else(|| (Headroom::read().bytes / 2).clamp(1 << 20, 1 << 40)).max(4096);
    let wanted = budget_bytes.saturating_mul(SPREAD).clamp(1 << 20, 1 << 42);
    let least = bytes_max.map_or(DEFAULT_LEAST * SPREAD, |bytes| bytes.max(1 << 20));
    let sparse = RegionOptions { prefault: false, headroom: false, ..RegionOptions::default() };
    let region = |pool_bytes| Region::memfd("memlift-queue", POOL_AT + pool_bytes, &sparse);
    let (mut pool_bytes, mut mapped) = (wanted, region(wanted));
    while mapped.is_err() && pool_bytes > least {
        pool_bytes = (pool_bytes / 2).max(least);
        mapped = region(pool_bytes);
    }
    if pool_bytes < wanted && mapped.is_ok() {
        drop(mapped);
        pool_bytes = (pool_bytes / 4).max(least);
        mapped = region(pool_bytes);
        if bytes_max.is_none() {
            budget_bytes = pool_bytes / SPREAD;
        }
    }
    Ok((mapped?, Limits { items_max, pool_bytes, budget_bytes, ledger }))
}

impl Queue {
    /// Makes an empty queue.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] when there is no memory or address space for its books; [`Error::System`] without `/proc`.
    pub fn new(options: &QueueOptions) -> Result<Queue, Error> {
        let (region, limits) = map(options)?;
        let head: &Header = region.layout(RegionOffset(0))?;
        head.version.store(VERSION, Ordering::Relaxed);
        head.items_max.store(options.items_max, Ordering::Relaxed);
        head.pool_bytes.store(limits.pool_bytes, Ordering::Relaxed);
        head.budget_bytes.store(limits.budget_bytes, Ordering::Relaxed);
        head.ledger.store(options.ledger as u32, Ordering::Relaxed);
        let bell = Bell::new()?;
        Table { region: &region, head, limits: &limits, bell: &bell }.reset()?;
        head.magic.store(MAGIC, Ordering::Release);
        Queue::of(region, bell, limits)
    }

    /// Opens the queue behind the descriptors ([`Queue::as_fds`]) that another process passed on.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if it is none; [`Error::Memory`], [`Error::System`].
    pub fn from_fds([fd, bell]: [OwnedFd; 2]) -> Result<Queue, Error> {
        let bytes = rustix::fs::fstat(&fd).map_err(Error::system("looking at a queue"))?.st_size as u64;
        if bytes <= POOL_AT {
            return Err(Error::peer_fault("a queue that is too short"));
        }
        let region = Region::from_fd(fd, Access::ReadWrite, bytes)?;
        let head: &Header = region.layout(RegionOffset(0))?;
        if head.magic.load(Ordering::Acquire) != MAGIC || head.version.load(Ordering::Relaxed) != VERSION {
            return Err(Error::peer_fault("not a queue, or one of another version"));
        }
        let limits = Limits {
            items_max: head.items_max.load(Ordering::Relaxed),
            pool_bytes: head.pool_bytes.load(Ordering::Relaxed).min(bytes - POOL_AT),
            budget_bytes: head.budget_bytes.load(Ordering::Relaxed),
            ledger: Ledger::from_word(head.ledger.load(Ordering::Relaxed))?,
        };
        Queue::of(region, Bell::from_fd(bell)?, limits)
    }

    fn of(region: Region, bell: Bell, limits: Limits) -> Result<Queue, Error> {
        let own = [const { OnceLock::new() }; FORKS];
        let queue = Queue(Arc::new(Shared { region, bell, limits, own }));
        queue.0.own()?;
        Ok(queue)
    }

    /// The descriptors that make another process a member: pass them on and give them to [`Queue::from_fds`].
    pub fn as_fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.0.region.as_fd().expect("a queue's region is a memfd"), self.0.bell.as_fd()]
    }

    /// A descriptor that is readable while an item waits, to be waited for beside others. Never read it: a [`get`](Queue::get) does what it
    /// needs. From now on the members make a system call when the queue becomes empty, and when it ceases to be.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if the books were spoilt.
    pub fn readiness(&self) -> Result<BorrowedFd<'_>, Error> {
        if self.0.head().watched.load(Ordering::Relaxed) == 0 {
            self.0.locked(self.0.own()?, |table| {
                table.head.watched.store(1, Ordering::Relaxed);
                table.settle_bell();
                Ok(())
            })?;
        }
        Ok(self.0.bell.as_fd())
    }

    /// Reports an item that was taken as done ([`Ledger::Tasks`]); `false`: no item is left that was not reported.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if the books were spoilt.
    pub fn task_done(&self) -> Result<bool, Error> {
        let own = self.0.own()?;
        let Some(is_last) = self.0.locked(own, |table| table.pay(own.member.identity))? else {
            return Ok(false);
        };
        if is_last {
            let head = self.0.head();
            advance(&head.done, &head.done_sleepers, u32::MAX);
        }
        Ok(true)
    }

    /// Waits until nothing waits and everything that was taken is reported as done ([`Ledger::Tasks`]); what a member had taken that died
    /// counts as done. `false`: it was not so until `until` (`None`: waits for ever).
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`], [`Error::System`].
    pub fn join(&self, until: Option<Instant>) -> Result<bool, Error> {
        let own = self.0.own()?;
        let head = self.0.head();
        loop {
            let parker = CounterParker::new(&head.done, &head.done_sleepers);
            let before = parker.seen.get();
            if self.0.locked_until(own, until, |table| table.is_settled(&own.member))? == Some(true) {
                return Ok(true);
            }
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return Ok(false);
            }
            let soon = until.map_or(now + LOOK, |until| until.min(now + LOOK));
            let moved = || head.done.load(Ordering::SeqCst) != before;
            self.0.wait(&own.putter, &parker, moved, Some(soon))?;
        }
    }

    /// This process as a member. [`lost`](Queue::lost) takes it.
    ///
    /// # Errors
    ///
    /// [`Error::System`] in a process that cannot become a member.
    pub fn identity(&self) -> Result<u32, Error> {
        Ok(self.0.own()?.member.identity)
    }

    /// Settles the call that this process has taken ([`Ledger::Calls`]): its answer is out.
    ///
    /// # Errors
    ///
    /// [`Error::System`] in a process that cannot become a member.
    pub fn settle_call(&self) -> Result<(), Error> {
        let number = Member::number_of(self.0.own()?.member.identity);
        layout::debt(&self.0.region, number)?.store(0, Ordering::Release);
        Ok(())
    }

    /// The first word of the label of the call that a dead member had taken and not settled ([`Ledger::Calls`]). It is told once.
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`] if the books were spoilt.
    pub fn lost(&self, identity: u32) -> Result<Option<u64>, Error> {
        self.0.locked(self.0.own()?, |table| table.lost(identity))
    }

    /// Items that wait.
    pub fn len(&self) -> usize {
        self.0.table().length() as usize
    }

    /// Returns true if none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items that may wait at once; 0: no limit of its own.
    pub fn items_max(&self) -> u64 {
        self.0.limits.items_max
    }

    /// Returns what the queue holds now.
    pub fn stats(&self) -> QueueStats {
        let head = self.0.head();
        QueueStats {
            items: self.len() as u64,
            writing: head.writing.load(Ordering::Relaxed),
            reading: head.reading.load(Ordering::Relaxed),
            memory_bytes: head.touched_bytes.load(Ordering::Relaxed),
            viewed_bytes: head.viewed_bytes.load(Ordering::Relaxed),
            budget_bytes: self.0.limits.budget_bytes,
        }
    }

    /// Reserves room for an item of `bytes`, to be filled and published. `None`: there was none until `until` (`None`: waits for
    /// ever).
    ///
    /// # Errors
    ///
    /// [`Error::MessageTooLarge`], [`Error::Memory`] when the machine has too little left, [`Error::PeerFault`].
    pub fn reserve(&self, bytes: u64, until: Option<Instant>) -> Result<Option<Reserved>, Error> {
        let limit = self.0.limits.budget_bytes;
        if bytes.saturating_add(bytes / 4) > limit {
            return Err(Error::MessageTooLarge { bytes, limit: limit / 5 * 4 });
        }
        let own = self.0.own()?;
        let head = self.0.head();
        let mut look = false;
        loop {
            let parker = CounterParker::new(&head.room, &head.room_sleepers);
            let before = parker.seen.get();
            let place = self.0.locked_until(own, until, |table| {
                if look {
                    table.reap(&own.member)?;
                }
                match table.reserve(bytes, own.member.identity)? {
                    None if !look && table.reap(&own.member)? > 0 => {
                        table.reserve(bytes, own.member.identity)
                    }
                    place => Ok(place),
                }
            })?;
            let Some(place) = place else { return Ok(None) };
            if let Some(place) = place {
                let reserved = Reserved { queue: self.clone(), place, published: false };
                reserved.populate();
                return Ok(Some(reserved));
            }
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return Ok(None);
            }
            look = true;
            let soon = until.map_or(now + LOOK, |until| until.min(now + LOOK));
            let moved = || head.room.load(Ordering::SeqCst) != before;
            self.0.wait(&own.putter, &parker, moved, Some(soon))?;
        }
    }

    /// Puts a copy of an item. One of at most [`Queue::INLINE_BYTES`] takes one lock. `false`: no room until `until`.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Queue::reserve).
    pub fn put(&self, item: &[u8], until: Option<Instant>) -> Result<bool, Error> {
        self.put_labelled(item, Label::default(), until)
    }

    /// As [`put`](Queue::put), with two numbers beside the item.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Queue::reserve).
    pub fn put_labelled(&self, item: &[u8], label: Label, until: Option<Instant>) -> Result<bool, Error> {
        if item.len() as u64 <= Queue::INLINE_BYTES {
            let own = self.0.own()?;
            let done = self.0.locked_until(own, until, |table| {
                let Some(place) = table.reserve(item.len() as u64, own.member.identity)? else {
                    return Ok(false);
                };
                self.0.region.window(Shared::inline_at(place.slot), INLINE_BYTES)?.write_from(item)?;
                table.label(place.slot, label)?;
                table.publish(place.slot)?;
                Ok(true)
            })?;
            match done {
                Some(true) => {
                    self.published(own, item.len() as u64);
                    return Ok(true);
                }
                Some(false) => {}
                None => return Ok(false),
            }
        }
        let Some(mut reserved) = self.reserve(item.len() as u64, until)? else { return Ok(false) };
        reserved.write(0, &Outgoing::from(item))?;
        reserved.set_label(label)?;
        reserved.publish()?;
        Ok(true)
    }

    /// Longest item that travels in the slot itself, bytes.
    pub const INLINE_BYTES: u64 = INLINE_BYTES;

    /// An item of `bytes` can be taken.
    fn published(&self, own: &Own, bytes: u64) {
        own.row.put(bytes);
        let head = self.0.head();
        advance(&head.items, &head.items_sleepers, 1);
    }

    /// Takes the oldest item; `None`: there was none until `until` (`None`: waits for ever).
    ///
    /// # Errors
    ///
    /// [`Error::PeerFault`], [`Error::System`].
    pub fn get(&self, until: Option<Instant>) -> Result<Option<Item>, Error> {
        let own = self.0.own()?;
        let head = self.0.head();
        loop {
            let now = Instant::now();
            let is_last = until.is_some_and(|until| until <= now);
            // The bell rings before its item is there, and for nothing if the putter then dies: who heard it looks under the lock.
            if !self.is_empty() || is_last && head.watched.load(Ordering::Relaxed) != 0 {
                let taken = self.0.locked_until(own, until, |table| {
                    let Some((place, label)) = table.take(own.member.identity)? else {
                        table.settle_bell();
                        return Ok(None);
                    };
                    if place.bytes > INLINE_BYTES {
                        return Ok(Some((place, label, None)));
                    }
                    let mut bytes = vec![0; place.bytes as usize];
                    self.0
                        .region
                        .window(Shared::inline_at(place.slot), INLINE_BYTES)?
                        .read_into(&mut bytes)?;
                    table.release(place.slot)?;
                    Ok(Some((place, label, Some(bytes))))
                })?;
                let Some(taken) = taken else { return Ok(None) };
                if let Some((place, label, inline)) = taken {
                    own.row.got(place.bytes);
                    if self.0.limits.items_max != 0 || inline.is_some() {
                        advance(&head.room, &head.room_sleepers, 1);
                    }
                    let held = match inline {
                        Some(bytes) => Held::Small(bytes),
                        None => {
                            Held::Block(Block { queue: self.clone(), place, generation: fork::generation() })
                        }
                    };
                    return Ok(Some(Item { held, label }));
                }
            }
            if is_last {
                return Ok(None);
            }
            let parker = CounterParker::new(&head.items, &head.items_sleepers);
            let soon = until.map_or(now + WAKE, |until| until.min(now + WAKE));
            self.0.wait(&own.getter, &parker, || !self.is_empty(), Some(soon))?;
        }
    }

    fn block(&self, place: &Place) -> Result<memlift_ground::region::Window<'_>, Error> {
        Ok(match place.bytes <= INLINE_BYTES {
            true => self.0.region.window(Shared::inline_at(place.slot), place.bytes)?,
            false => self.0.region.window(RegionOffset(POOL_AT.saturating_add(place.offset)), place.bytes)?,
        })
    }
}
