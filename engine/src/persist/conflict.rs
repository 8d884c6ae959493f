// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranges in flight: who would touch bytes that the other side works on waits until it has finished.
//!
//! Flow     `enter` ─▶ an earlier overlapping range, one of the two writing? ─yes─▶ spin, then sleep ─▶ held ─▶ guard
//!          dropped ─▶ those that wait look again. `pass` is the same for who holds nothing afterwards.
//! Order    first come, first served among ranges that conflict: a range that waits holds back later ones, so nobody
//!          starves. What was done under a guard happens before whatever its end lets in. Modelled in
//!          `tests/loom_conflict.rs`.
//! Owner    64 slots in the table itself; nothing is allocated. Who finds all of them taken waits for one.
//! Cost     `pass` of an empty table is one load
//! Not here durability: fence, or wait for the ticket of what was queued, before the guard is dropped
//!
//! Both sides enter: the core before its loads and stores, and who submits near-data work before the submission, with
//! the guard kept until the work has completed. A thread must not enter a range that conflicts with one it holds, nor
//! hold one while it waits for another, unless all threads enter in one order: it would wait for itself, or for somebody
//! who waits for it. `pass` is enough for a thread without whose leave no near-data work starts on the range, such as
//! the holder of the lock under which such work is submitted.
//!
//! Source: NearPM, section 5.3.1: the access table, which upholds invariant 1 of partitioned persist ordering (reads and
//! writes to shared addresses are ordered between core and device).

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::ops::{Deref, Range};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

/// Ranges that can be in flight or waiting at once.
const SLOTS: usize = 64;
/// Looks at the table's change count before sleeping; a few microseconds. A model checker gains nothing by spinning.
const SPINS: u32 = if cfg!(loom) { 0 } else { 2000 };

/// What is done with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads do not conflict with each other.
    Read,
    /// Conflicts with everything that overlaps.
    Write,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    start: u64,
    end: u64,
    access: Access,
    /// The order of arrival.
    ticket: u64,
}

impl Slot {
    fn conflicts(&self, other: &Slot) -> bool {
        let touches = self.start < other.end && other.start < self.end;
        // An empty range lies between bytes and touches none, also inside another.
        let both = self.start < self.end && other.start < other.end;
        touches && both && (self.access == Access::Write || other.access == Access::Write)
    }
}

#[derive(Debug)]
struct Table {
    slots: [Option<Slot>; SLOTS],
    next_ticket: u64,
    sleepers: u32,
}

impl Table {
    /// Whether somebody who came before `slot` is in its way.
    fn blocked(&self, slot: &Slot) -> bool {
        self.slots.iter().flatten().any(|other| other.ticket < slot.ticket && other.conflicts(slot))
    }

    fn arrival(&mut self, range: &Range<u64>, access: Access) -> Slot {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        Slot { start: range.start, end: range.end, access, ticket }
    }
}

/// The ranges that somebody works on. Addresses or offsets, as long as all users mean the same.
#[derive(Debug)]
pub struct Conflicts {
    /// Slots taken. Changed under the lock; read without it by `pass`.
    taken: AtomicU32,
    /// Counts the ends of guards, for spinning without the lock.
    changes: AtomicU32,
    stalls: AtomicU64,
    table: Mutex<Table>,
    changed: Condvar,
}

impl Default for Conflicts {
    fn default() -> Conflicts {
        Conflicts::new()
    }
}

impl Conflicts {
    /// An empty table.
    pub fn new() -> Conflicts {
        Conflicts {
            taken: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            stalls: AtomicU64::new(0),
            table: Mutex::new(Table { slots: [None; SLOTS], next_ticket: 0, sleepers: 0 }),
            changed: Condvar::new(),
        }
    }

    /// Waits until nobody who came earlier is in the way, then holds the range until the guard is dropped.
    pub fn enter(&self, range: Range<u64>, access: Access) -> Guard<&Conflicts> {
        Conflicts::enter_by(self, range, access)
    }

    /// [`enter`](Conflicts::enter) with a guard that owns its way to the table, such as an `Arc`, so that it can travel
    /// with the work.
    pub fn enter_by<C: Deref<Target = Conflicts>>(table: C, range: Range<u64>, access: Access) -> Guard<C> {
        let slot = table.hold(&range, access);
        Guard { table, slot }
    }

    /// [`enter`](Conflicts::enter) if that needs no waiting.
    pub fn try_enter(&self, range: Range<u64>, access: Access) -> Option<Guard<&Conflicts>> {
        let mut table = self.lock();
        let slot = table.arrival(&range, access);
        if table.blocked(&slot) {
            return None;
        }
        let place = self.place(&mut table, slot)?;
        Some(Guard { table: self, slot: place })
    }

    /// Waits until nobody who came earlier is in the way. Holds nothing: see the module's header for who may do with it.
    #[inline]
    pub fn pass(&self, range: Range<u64>, access: Access) {
        if self.taken.load(Ordering::Acquire) != 0 {
            self.pass_others(&range, access);
        }
    }

    /// Times that somebody had to wait.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Ranges that are held or waited for now.
    pub fn in_flight(&self) -> usize {
        self.taken.load(Ordering::Acquire) as usize
    }

    #[cold]
    fn pass_others(&self, range: &Range<u64>, access: Access) {
        let mut table = self.lock();
        let slot = table.arrival(range, access);
        self.until_clear(table, &slot);
    }

    fn hold(&self, range: &Range<u64>, access: Access) -> usize {
        let mut table = self.lock();
        let mut stalled = false;
        loop {
            // A ticket is drawn with the slot: who has none holds nobody back.
            let slot = table.arrival(range, access);
            if let Some(place) = self.place(&mut table, slot) {
                self.until_clear(table, &slot);
                break place;
            }
            if !stalled {
                self.stalls.fetch_add(1, Ordering::Relaxed);
                stalled = true;
            }
            table = self.wait(table);
        }
    }

    /// Waits until nothing earlier conflicts with `slot`.
    fn until_clear<'a>(&'a self, mut table: MutexGuard<'a, Table>, slot: &Slot) {
        if !table.blocked(slot) {
            return;
        }
        self.stalls.fetch_add(1, Ordering::Relaxed);
        while table.blocked(slot) {
            table = self.wait(table);
        }
    }

    /// Until some guard has ended: without the lock for a while, then asleep.
    fn wait<'a>(&'a self, table: MutexGuard<'a, Table>) -> MutexGuard<'a, Table> {
        let mut table = table;
        if SPINS > 0 {
            let before = self.changes.load(Ordering::Relaxed);
            drop(table);
            for _ in 0..SPINS {
                if self.changes.load(Ordering::Relaxed) != before {
                    return self.lock();
                }
                std::hint::spin_loop();
            }
            table = self.lock();
            if self.changes.load(Ordering::Relaxed) != before {
                return table;
            }
        }
        table.sleepers += 1;
        let mut table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        table.sleepers -= 1;
        table
    }

    /// Takes a free slot, if there is one.
    fn place(&self, table: &mut Table, slot: Slot) -> Option<usize> {
        let place = table.slots.iter().position(Option::is_none)?;
        table.slots[place] = Some(slot);
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(place)
    }

    fn leave(&self, place: usize) {
        let mut table = self.lock();
        table.slots[place] = None;
        // Release: a `pass` that sees no slot taken sees what was done under this guard.
        self.taken.fetch_sub(1, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Relaxed);
        let sleepers = table.sleepers;
        drop(table);
        if sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// A holder that panicked has left by its guard: the table is as good as before.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds a range of a [`Conflicts`] until it is dropped.
#[must_use = "a guard that is dropped at once holds nothing back"]
#[derive(Debug)]
pub struct Guard<C: Deref<Target = Conflicts>> {
    table: C,
    slot: usize,
}

impl<C: Deref<Target = Conflicts>> Drop for Guard<C> {
    fn drop(&mut self) {
        self.table.leave(self.slot);
    }
}
