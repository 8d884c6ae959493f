// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bit maps of the slots of the spill file.
//!
//! - **Layout** three bit maps: taken; old (taken when a child was forked, so the child may read it); waiting (freed since,
//!   but still marked as taken)
//! - **Flow** [`Slots::take`] searches for a run from the end of the last one ──▶ [`Slots::give`], or [`Slots::give_later`]
//!   ──children ended──▶ [`Slots::give_waiting`]
//! - **Owner** the holder of the spill's lock
//! - **Not here** the file, the checksums

use crate::Result;
use crate::mapping::Mapping;

/// Number of slots that are punched out of the file together: 1 MiB.
pub(super) const HOLE_SLOTS: usize = 256;

/// Gaps with fewer slots are not used while the file may grow.
const LEAST_RUN: usize = 16;

/// The bit maps.
pub(super) struct Slots {
    taken_map: Mapping,
    old_map: Mapping,
    waiting_map: Mapping,
    count: usize,
    cursor: usize,
    reached: usize,
    taken: usize,
    waiting: usize,
}

impl Slots {
    /// Makes maps of `count` free slots.
    pub(super) fn new(count: usize) -> Result<Slots> {
        let map = || Mapping::reserve("the slots of the spill file", count.next_multiple_of(HOLE_SLOTS) / 8);
        Ok(Slots {
            taken_map: map()?,
            old_map: map()?,
            waiting_map: map()?,
            count,
            cursor: 0,
            reached: 0,
            taken: 0,
            waiting: 0,
        })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of taken slots, the waiting ones included.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// Returns the number of slots that were freed but must not be used again yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns one more than the highest slot in use so far; less after a failed write ([`Slots::give_back`]).
    pub(super) fn reached(&self) -> usize {
        self.reached
    }

    /// Takes up to `wanted` neighbouring slots. Returns the first, and their number. Short gaps are not used while the file
    /// may grow, because a write takes about as long for one page as for several.
    pub(super) fn take(&mut self, wanted: usize, grows: bool) -> Option<(usize, usize)> {
        if wanted == 0 || self.taken >= self.count {
            return None;
        }
        let least = wanted.min(LEAST_RUN);
        let end = if grows { self.count } else { self.reached };
        let first = self
            .free_run(least)
            .or_else(|| self.next_free(self.reached, end))
            .or_else(|| self.next_free(0, self.reached))?;
        let mut run = 0;
        while run < wanted && first + run < end && !is_set(&self.taken_map, first + run) {
            set(&self.taken_map, first + run, true);
            run += 1;
        }
        self.taken += run;
        self.cursor = first + run;
        self.reached = self.reached.max(self.cursor);
        Some((first, run))
    }

    /// Returns the first of `least` free neighbours among the slots used so far, searching from the end of the last search.
    fn free_run(&mut self, least: usize) -> Option<usize> {
        if self.cursor >= self.reached && self.taken < self.reached / 2 {
            // Half of the file consists of gaps, so search from its start again.
            self.cursor = 0;
        }
        let mut first = self.next_free(self.cursor, self.reached)?;
        loop {
            let end = (first..(first + least).min(self.reached)).find(|at| is_set(&self.taken_map, *at));
            match end {
                None if first + least <= self.reached => return Some(first),
                None => {
                    self.cursor = self.reached;
                    return None;
                }
                Some(end) => first = self.next_free(end, self.reached)?,
            }
        }
    }

    fn next_free(&self, from: usize, to: usize) -> Option<usize> {
        let mut index = from;
        while index < to {
            if index.is_multiple_of(64) && word(&self.taken_map, index / 64) == u64::MAX {
                index += 64;
            } else if is_set(&self.taken_map, index) {
                index += 1;
            } else {
                return Some(index);
            }
        }
        None
    }

    /// Frees a slot. If all slots of its hole (its MiB of the file) are free now, returns the first of them.
    pub(super) fn give(&mut self, index: usize) -> Option<usize> {
        if !is_set(&self.taken_map, index) {
            return None;
        }
        set(&self.taken_map, index, false);
        self.taken -= 1;
        let hole = index / HOLE_SLOTS * HOLE_SLOTS;
        let whole = (0..HOLE_SLOTS / 64).all(|at| word(&self.taken_map, hole / 64 + at) == 0);
        if whole {
            // The hole is used next, so that the file stays short.
            self.cursor = self.cursor.min(hole);
        }
        whole.then_some(hole)
    }

    /// Frees slots that were taken but not written. They are taken next, and the file is as long as before.
    pub(super) fn give_back(&mut self, first: usize, count: usize, reached: usize) {
        for index in first..first + count {
            self.give(index);
        }
        if first + count == self.reached {
            self.reached = reached;
        }
        self.cursor = self.cursor.min(first);
    }

    /// Returns true if a child may read the slot.
    pub(super) fn is_old(&self, index: usize) -> bool {
        is_set(&self.old_map, index)
    }

    /// Marks a slot to be freed when the children have ended.
    pub(super) fn give_later(&mut self, index: usize) {
        if is_set(&self.taken_map, index) && !is_set(&self.waiting_map, index) {
            set(&self.waiting_map, index, true);
            self.waiting += 1;
        }
    }

    /// Frees the waiting slots, which no child can read any more.
    pub(super) fn give_waiting(&mut self) {
        for at in 0..self.reached.div_ceil(64) {
            let waiting = word(&self.waiting_map, at);
            if waiting != 0 {
                set_word(&self.taken_map, at, word(&self.taken_map, at) & !waiting);
                set_word(&self.waiting_map, at, 0);
                self.taken -= waiting.count_ones() as usize;
            }
            if word(&self.old_map, at) != 0 {
                set_word(&self.old_map, at, 0);
            }
        }
        self.waiting = 0;
        self.cursor = 0;
    }

    /// Marks all taken slots as old before a fork, since the child may read them.
    pub(super) fn remember(&mut self) {
        for at in 0..self.reached.div_ceil(64) {
            let taken = word(&self.taken_map, at);
            if taken != 0 {
                set_word(&self.old_map, at, word(&self.old_map, at) | taken);
            }
        }
    }

    /// Frees the waiting slots in the child, which never reads them and has no children yet.
    pub(super) fn forget(&mut self) {
        self.give_waiting();
    }
}

fn word(map: &Mapping, at: usize) -> u64 {
    if at >= map.bytes() / 8 {
        return u64::MAX;
    }
    // SAFETY: the word lies in the mapping, is aligned, and belongs to the holder of the spill's lock.
    unsafe { map.pointer().as_ptr().cast::<u64>().add(at).read() }
}

fn set_word(map: &Mapping, at: usize, value: u64) {
    if at < map.bytes() / 8 {
        // SAFETY: the word lies in the mapping, is aligned, and belongs to the holder of the spill's lock.
        unsafe { map.pointer().as_ptr().cast::<u64>().add(at).write(value) };
    }
}

fn is_set(map: &Mapping, index: usize) -> bool {
    word(map, index / 64) & 1 << (index % 64) != 0
}

fn set(map: &Mapping, index: usize, value: bool) {
    let (at, bit) = (index / 64, 1 << (index % 64));
    let old = word(map, at);
    set_word(map, at, if value { old | bit } else { old & !bit });
}
