// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoint: the lines that changed since the last one, of whole pages, as one record.
//!
//! Flow     commit marks dirty 64-byte lines in a bitmap per page ─▶ Sync: the checkpoint is made at once. Group, Buffered:
//!          transactions add up, and one checkpoint serves them all ─▶ record in the shared lane ─▶ one harden ─▶ applied
//! Rule     a checkpoint is made while nobody changes anything: the committer holds all sections, or they are locked for
//!          reading. So it holds whole transactions only. Pools of this kind lock all sections for every transaction
//! Rule     dirty lines never exceed half of the lane: beyond a quarter a checkpoint is made, and a transaction may have a
//!          quarter
//! Source   NearPM §4.2 (ckpoint_create copies whole pages; here only lines that changed)

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::commit::Committed;
use crate::error::{Error, Result};
use crate::layout::Entry;
use crate::options::{Durability, Mechanism};
use crate::record::{self, Builder};
use crate::section;
use crate::store::{Store, lock};
use crate::writes::Writes;
use memlift_spec::operand::log::PAGE_BYTES;

/// Lines that changed since the last checkpoint, by page.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pages: BTreeMap<u64, u64>,
    lines: u64,
    /// Goes up with each transaction.
    marked: u64,
    /// Transactions up to this one are in a checkpoint that was appended.
    appended: u64,
    /// Where that one ends.
    position: u64,
}

const PAGE: u64 = PAGE_BYTES as u64;

impl Dirty {
    /// Marks the lines of [offset, offset + bytes).
    fn mark(&mut self, offset: u64, bytes: u64) {
        for line in offset / 64..(offset + bytes).div_ceil(64) {
            let bits = self.pages.entry(line / 64).or_default();
            self.lines += u64::from(*bits >> (line % 64) & 1 == 0);
            *bits |= 1 << (line % 64);
        }
    }

    /// Bytes that a checkpoint of all of it would take in the log.
    fn record_bytes(&self, shadow: bool) -> u64 {
        let lines = if shadow { 0 } else { self.lines * 64 };
        (lines + self.pages.len() as u64 * 24 + 32).next_multiple_of(64)
    }
}

impl Store {
    /// Marks what a transaction changed.
    fn mark(&self, writes: &Writes, dirty: &mut Dirty) {
        for touched in &writes.touched {
            let Some(before) = writes.before(touched) else {
                dirty.mark(touched.offset, u64::from(touched.bytes));
                continue;
            };
            let now = self.image.bytes(touched.offset, u64::from(touched.bytes));
            let mut at = 0;
            while at < before.len() {
                let end = (before.len()).min(at + 64 - (touched.offset as usize + at) % 64);
                if before[at..end] != now[at..end] {
                    dirty.mark(touched.offset + at as u64, (end - at) as u64);
                }
                at = end;
            }
        }
        for (slab, _) in &writes.entries {
            dirty.mark(Entry::offset(*slab), 16);
        }
        dirty.marked += 1;
    }

    /// Commits with all sections held.
    pub(crate) fn commit_pages(&self, writes: &mut Writes, durability: Durability) -> Result<Committed> {
        let (ranges, bytes) = writes.size();
        let capacity = self.shared.lane.capacity;
        let worst = (bytes + ranges * 128) / 64 * 88;
        if worst > capacity / 4 && self.mechanism == Mechanism::Checkpoint {
            return Err(Error::TooLarge { bytes: worst, lane_bytes: capacity / 2 });
        }
        let mut dirty = lock(&self.dirty);
        self.mark(writes, &mut dirty);
        let most = if durability == Durability::Buffered { self.options.buffered_bytes } else { u64::MAX };
        if durability == Durability::Sync
            || dirty.record_bytes(self.shadow.is_some()) > most.min(capacity / 4)
        {
            return self.append_pages(&mut dirty).map(Committed::At);
        }
        Ok(Committed::Marked(dirty.marked))
    }

    /// Appends a checkpoint of everything that is dirty; gives the position that makes it durable. All sections are held.
    fn append_pages(&self, dirty: &mut Dirty) -> Result<u64> {
        if dirty.pages.is_empty() {
            dirty.appended = dirty.marked;
            return Ok(dirty.position);
        }
        let lane = &self.shared.lane;
        let bound = dirty.record_bytes(self.shadow.is_some()).min(lane.capacity / 2);
        let mut state = lock(&self.shared.state);
        let at = loop {
            match lane.room(state.appended, bound) {
                // A page's copy is overwritten only when the commit before is durable: one shadow record at a time.
                Some(at) if self.mechanism != Mechanism::Shadow || state.durable == state.appended => {
                    break at;
                }
                room => {
                    drop(state);
                    self.flush(u64::MAX)?;
                    if room.is_none() {
                        self.apply()?;
                    }
                    state = lock(&self.shared.state);
                }
            }
        };
        let salt = self.salts[0];
        if at != state.appended {
            let skip = lane.free(state.appended, 64);
            record::wrap(skip, state.appended);
            record::seal(skip, salt);
        }
        let target = lane.free(at, bound);
        let mut builder = Builder::of_lines(target);
        if let Some(shadow) = &self.shadow {
            let mut shadow = lock(shadow);
            for (page, lines) in &dirty.pages {
                let (entry, written, checksum) = shadow
                    .turn(self, *page, *lines, &mut state.counters)
                    .map_err(|error| self.stop(error))?;
                builder.page(entry, written, checksum);
            }
        } else {
            for (page, lines) in &dirty.pages {
                builder.lines(*page, *lines, self.image.bytes(page * PAGE, PAGE));
            }
        }
        let built = builder.finish().ok_or(Error::TooLarge { bytes: bound, lane_bytes: lane.capacity })?;
        let record = &mut target[..built.bytes as usize];
        record::place(record, at, self.sequence.fetch_add(1, Ordering::Relaxed) + 1, 1);
        record::seal(record, salt);
        self.shared.unflushed.fetch_add(at + built.bytes - state.appended, Ordering::AcqRel);
        state.appended = at + built.bytes;
        dirty.pages.clear();
        dirty.lines = 0;
        dirty.appended = dirty.marked;
        dirty.position = state.appended;
        Ok(state.appended)
    }

    /// Makes sure that everything marked up to `marked` (u64::MAX: all) is in a checkpoint; gives its position.
    pub(crate) fn checkpoint(&self, marked: u64) -> Result<u64> {
        {
            let dirty = lock(&self.dirty);
            if dirty.appended >= marked.min(dirty.marked) {
                return Ok(dirty.position);
            }
        }
        let _all = section::Shared::lock(&self.sections, None);
        let mut dirty = self.dirty.lock().unwrap_or_else(PoisonError::into_inner);
        if dirty.appended >= marked.min(dirty.marked) {
            return Ok(dirty.position);
        }
        self.append_pages(&mut dirty)
    }

    /// The same for all, by a caller that holds all sections.
    pub(crate) fn checkpoint_held(&self) -> Result<u64> {
        self.append_pages(&mut lock(&self.dirty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_marked_once() {
        let mut dirty = Dirty::default();
        dirty.mark(4096 - 8, 16);
        dirty.mark(4096, 64);
        dirty.mark(64, 0);
        assert_eq!(dirty.pages, BTreeMap::from([(0, 1 << 63), (1, 1)]));
        assert_eq!(dirty.lines, 2);
        assert_eq!((dirty.record_bytes(false), dirty.record_bytes(true)), (256, 128));
    }
}
