// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoint: the lines that changed since the last one, of whole pages, as one record.
//!
//! - **Flow** commit marks dirty 64-byte lines in a bitmap per page ─▶ Sync: the checkpoint is made at once. Group, Buffered:
//!   transactions add up, and one checkpoint serves them all ─▶ record in the shared lane ─▶ one harden ─▶ applied
//! - **Rule** a checkpoint is made while nobody changes anything: the committer holds all sections, or they are locked for
//!   reading. So it holds whole transactions only. Pools of this kind lock all sections for every transaction
//! - **Rule** dirty lines never exceed half of the lane: beyond a quarter a checkpoint is made, and a transaction may have a
//!   quarter
//! - **Source** NearPM §4.2 (ckpoint_create copies whole pages; here only lines that changed)

use std::sync::atomic::Ordering;

use crate::commit::Committed;
use crate::dirty::Dirty;
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::layout::Entry;
use crate::lock::lock;
use crate::medium::Counters;
use crate::options::{Durability, Mechanism};
use crate::record::{self, Builder, LINE_WORDS};
use crate::section;
use crate::store::Store;
use crate::words::{Words, ones};
use crate::writes::Writes;
use memlift_kernels::log::PageLines;
use memlift_spec::formats::log::{PAGE_BYTES, PAGE_ENTRY_BYTES, RECORD_HEADER_BYTES};

const PAGE: u64 = PAGE_BYTES as u64;
const HEADER_BYTES: u64 = RECORD_HEADER_BYTES as u64;
const LINE_BYTES: u64 = LINE_WORDS as u64 * 8;
/// Bytes of a page in a record, without its lines: those of lines take fewer.
const ENTRY_BYTES: u64 = PAGE_ENTRY_BYTES as u64;

/// Most bytes that the lines of ranges take in a record, wherever they lie.
pub(crate) fn worst_bytes(ranges: u64, bytes: u64) -> u64 {
    (bytes + ranges * 128) / 64 * 88
}

/// A page, its lines, and the place of the first of them in a record of pages.
#[inline]
fn place_of(pages: &[(u64, u64)], page: u64) -> (u64, u64, usize) {
    let mut place = RECORD_HEADER_BYTES / 8;
    for one in pages {
        place += 2;
        if one.0 == page {
            return (page, one.1, place);
        }
        place += one.1.count_ones() as usize * LINE_WORDS;
    }
    unreachable!("every line was marked")
}

impl Store {
    /// Marks what a transaction changed.
    fn mark(&self, writes: &Writes, dirty: &mut Dirty) {
        // The page that is looked at, and which of its lines are not as they were.
        let (mut page, mut lines) = (0, 0u64);
        for touched in &writes.touched {
            let Some(before) = writes.before(touched) else {
                dirty.mark_range(touched.offset, u64::from(touched.bytes));
                continue;
            };
            let now = self.image.words(touched.offset, u64::from(touched.bytes));
            let first = touched.offset / 8;
            let mut at = 0;
            while at < before.len() {
                let line = (first + at as u64) / 8;
                let end = before.len().min(at + 8 - (first as usize + at) % 8);
                if line / 64 != page {
                    dirty.mark(page, lines);
                    (page, lines) = (line / 64, 0);
                }
                let differs = now.part(at, end).differing(&before[at..end]) != 0;
                lines |= u64::from(differs) << (line % 64);
                at = end;
            }
        }
        dirty.mark(page, lines);
        for (slab, _) in &writes.entries {
            dirty.mark_range(Entry::offset(*slab), 16);
        }
        dirty.marked += 1;
    }

    /// Refuses what does not fit half a lane, together with what may be dirty already.
    fn check_pages(&self, writes: &Writes) -> Result<()> {
        let (ranges, bytes) = writes.size();
        let capacity = self.shared.lane.capacity;
        let worst = worst_bytes(ranges, bytes);
        if worst > capacity / 4 && self.mechanism == Mechanism::Checkpoint {
            return Err(Error::TooLarge { bytes: worst, lane_bytes: capacity / 2 });
        }
        if self.mechanism == Mechanism::Shadow {
            // With what is dirty already it fits half a lane.
            let most = (capacity / 4).saturating_sub(HEADER_BYTES) / ENTRY_BYTES;
            let bound = bytes / PAGE + 2 * ranges;
            let pages = if bound > most { writes.pages() } else { bound };
            if pages > most {
                return Err(Error::TooLarge { bytes: pages * ENTRY_BYTES, lane_bytes: capacity / 4 });
            }
        }
        Ok(())
    }

    /// Appends what is dirty if `more` bytes of a record beside it are too much.
    #[inline]
    pub(crate) fn make_way(&self, dirty: &mut Dirty, more: u64) -> Result<()> {
        let most = self.options.buffered_bytes.min(self.shared.lane.capacity / 4);
        if !dirty.pages.is_empty() && dirty.record_bytes(self.shadow.is_some()) + more > most {
            self.append_pages(dirty)?;
        }
        Ok(())
    }

    /// Commits whole lines, which are all that is dirty, with all sections held: durable with a fence. `values` gives places and new
    /// bytes; both are whole lines and lie at whole words.
    ///
    /// The record is made of the values, so nothing before the fence waits for lines of the image, which change behind it.
    #[inline(always)]
    pub(crate) fn commit_lines<'v>(
        &self,
        lane: &Lane<Writes>,
        writes: &mut Writes,
        dirty: &mut Dirty,
        values: impl Iterator<Item = (u64, &'v [u8])> + Clone,
    ) -> Result<()> {
        if self.shared.unflushed.load(Ordering::Acquire) != 0 {
            self.flush(u64::MAX)?;
        }
        let bound = dirty.record_bytes(false);
        let at = self.room(lane, lane.tail(), bound, &mut writes.counters)?;
        let target = lane.free(at, bound);
        let mut builder = Builder::of_lines(target);
        // The page of the last line, its lines, and the place of the first of them.
        let mut current = (0, 0, 0);
        for (page, lines) in &dirty.pages {
            current = (*page, *lines, builder.open_lines(*page, *lines));
        }
        for (offset, bytes) in values.clone() {
            let lines = bytes.as_chunks::<{ LINE_BYTES as usize }>().0;
            for (number, line) in (offset / LINE_BYTES..).zip(lines) {
                if number / 64 != current.0 {
                    current = place_of(&dirty.pages, number / 64);
                }
                let before = current.1 & ((1 << (number % 64)) - 1);
                builder.line(current.2 + ones(before) as usize * LINE_WORDS, Words::new(line));
            }
        }
        let built = builder.finish();
        self.harden_own(lane, writes, &mut target[..built.bytes as usize], built, at)?;
        values.for_each(|(offset, bytes)| self.image.overwrite(offset, bytes));
        dirty.clean(dirty.position);
        self.relieve(lane.tail() - lane.head(), lane.capacity)
    }

    /// As [`Store::commit_lines`], of lines of one page while nothing is dirty.
    #[inline(always)]
    pub(crate) fn commit_page(
        &self,
        lane: &Lane<Writes>,
        writes: &mut Writes,
        dirty: &mut Dirty,
        page: u64,
        lines: &PageLines<'_>,
    ) -> Result<()> {
        if self.shared.unflushed.load(Ordering::Acquire) != 0 {
            self.flush(u64::MAX)?;
        }
        let bytes = record::page_bytes(lines);
        let at = self.room(lane, lane.tail(), bytes, &mut writes.counters)?;
        writes.sequence = self.next_sequence();
        let head = record::head_of_page(page, lines, at, writes.sequence, lane.tail());
        let salt = self.salts[lane.index as usize];
        let (offset, target) = (lane.offset(at), lane.free(at, bytes));
        let appended = self.medium.append_lines(offset, target, &head, lines, salt, &mut writes.counters);
        self.harden_appended(lane, writes, appended, at + bytes)?;
        self.image.fill_lines(page * PAGE, lines);
        dirty.clean(dirty.position);
        self.relieve(lane.tail() - lane.head(), lane.capacity)
    }

    /// Commits with all sections held.
    pub(crate) fn commit_pages(
        &self,
        lane: &Lane<Writes>,
        writes: &mut Writes,
        durability: Durability,
    ) -> Result<Committed> {
        self.check_pages(writes)?;
        let capacity = self.shared.lane.capacity;
        let mut dirty = self.dirty.write();
        self.mark(writes, &mut dirty);
        if durability == Durability::Sync && !self.medium.pages() {
            return self.commit_dirty(lane, writes, &mut dirty, || ()).map(|()| Committed::Durable);
        }
        let most = if durability == Durability::Buffered { self.options.buffered_bytes } else { u64::MAX };
        if durability == Durability::Sync
            || dirty.record_bytes(self.shadow.is_some()) > most.min(capacity / 4)
        {
            return self.append_pages(&mut dirty).map(Committed::At);
        }
        Ok(Committed::Marked(dirty.marked))
    }

    /// Makes a checkpoint of everything that is dirty in the caller's own lane, durable where a fence is enough. All sections are
    /// held, so it is the only record under way. There is room for it when `fill` is called, which may store what was marked to the image.
    #[inline]
    pub(crate) fn commit_dirty(
        &self,
        lane: &Lane<Writes>,
        writes: &mut Writes,
        dirty: &mut Dirty,
        fill: impl FnOnce(),
    ) -> Result<()> {
        if self.shared.unflushed.load(Ordering::Acquire) != 0 {
            self.flush(u64::MAX)?;
        }
        if dirty.pages.is_empty() {
            dirty.clean(dirty.position);
            return Ok(());
        }
        let bound = dirty.record_bytes(self.shadow.is_some());
        let tail = lane.tail();
        let at = self.room(lane, tail, bound, &mut writes.counters)?;
        fill();
        let target = lane.free(at, bound);
        let built = self.build_dirty(dirty, target, &mut writes.counters)?;
        self.harden_own(lane, writes, &mut target[..built.bytes as usize], built, at)?;
        dirty.clean(dirty.position);
        self.relieve(lane.tail() - lane.head(), lane.capacity)
    }

    /// The record of everything that is dirty; shadow pages are written on the way.
    #[inline]
    fn build_dirty(
        &self,
        dirty: &Dirty,
        target: &mut [u8],
        counters: &mut Counters,
    ) -> Result<record::Built> {
        let mut builder = Builder::of_lines(target);
        if let Some(shadow) = &self.shadow {
            let mut shadow = shadow.write();
            for (page, lines) in &dirty.pages {
                let (entry, written, checksum) = shadow
                    .turn((&self.image, &self.medium, self.heap_start), *page, *lines, counters)
                    .map_err(|error| self.stop(error))?;
                builder.page(entry, written, checksum);
            }
        } else {
            for (page, lines) in &dirty.pages {
                builder.lines(*page, *lines, self.image.words(page * PAGE, PAGE));
            }
        }
        Ok(builder.finish())
    }

    /// Appends a checkpoint of everything that is dirty; gives the position that makes it durable. All sections are held.
    fn append_pages(&self, dirty: &mut Dirty) -> Result<u64> {
        if dirty.pages.is_empty() {
            dirty.appended = dirty.marked;
            return Ok(dirty.position);
        }
        let lane = &self.shared.lane;
        let bound = dirty.record_bytes(self.shadow.is_some());
        debug_assert!(bound <= lane.capacity / 2, "a transaction adds a quarter at most, to a quarter");
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
        self.allocate(lane, state.appended, at, bound)?;
        let salt = self.salts[0];
        if at != state.appended {
            let skip = lane.free(state.appended, 64);
            record::wrap(skip, state.appended);
            record::seal(skip, salt);
        }
        let target = lane.free(at, bound);
        let built = self.build_dirty(dirty, target, &mut state.counters)?;
        let record = &mut target[..built.bytes as usize];
        record::place(record, built, at, self.next_sequence(), state.durable);
        record::seal(record, salt);
        self.shared.unflushed.fetch_add(at + built.bytes - state.appended, Ordering::AcqRel);
        state.appended = at + built.bytes;
        dirty.clean(state.appended);
        Ok(state.appended)
    }

    /// Makes sure that everything marked up to `marked` (u64::MAX: all) is in a checkpoint; gives its position.
    pub(crate) fn checkpoint(&self, marked: u64) -> Result<u64> {
        {
            let dirty = self.dirty.read();
            if dirty.appended >= marked.min(dirty.marked) {
                return Ok(dirty.position);
            }
        }
        let _all = section::Shared::lock(&self.sections, None);
        let mut dirty = self.dirty.write();
        if dirty.appended >= marked.min(dirty.marked) {
            return Ok(dirty.position);
        }
        self.append_pages(&mut dirty)
    }

    /// As [`Store::checkpoint`], for everything that is marked and by a caller that holds all sections.
    pub(crate) fn checkpoint_held(&self) -> Result<u64> {
        self.append_pages(&mut self.dirty.write())
    }
}
