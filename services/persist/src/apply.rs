// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Applies the log: stores its records to their place in the heap, as NearPM's applylog does.
//!
//! - **Flow** published records of all lanes, in the order of their sequence ─▶ stores to the heap in the file ─▶ write-back ─▶
//!   harden ─▶ lane heads with how far it got ─▶ harden ─▶ room in the lanes
//! - **Order** sequences are dense: the applier stops at the first that is not published yet. Two records that touch the same
//!   bytes are ordered by their section's lock, so by sequence
//! - **Rule** a lane's room is given back only after the head that says so is durable: recovery starts at that head. Every
//!   head carries the sequence up to which everything is applied, so that one lane's old record never comes after
//!   another lane's newer one (PPO invariant 4: recovery data stays until it is not needed anywhere)
//! - **Rule** whoever only wants the file to have everything, as a snapshot for readers does, stores records and leaves the rest
//!   to the next one who applies: nothing has to harden for that, and the log still has these records
//! - **Owner** one applier at a time, which holds the lock: the caller that needs room or that was asked to apply, or the pool's own
//!   thread ([`crate::Options::apply_behind`], `pool_thread`)

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use crate::applier::Applier;
use crate::error::Result;
use crate::far_record::PARTS_FAR;
use crate::lane::Lane;
use crate::layout::LaneHead;
use crate::lock::lock;
use crate::options::Mechanism;
use crate::record::{self, PARTS_WRAP};
use crate::store::Store;
use memlift_spec::formats::log::{PAGE_BYTES, RECORD_LINES, RECORD_PAGES, RangeWord, RecordHeader};

const HEADER_BYTES: u64 = size_of::<RecordHeader>() as u64;
const LINE_BYTES: usize = 64;

/// The record at `position`, past a WRAP; None when nothing more is published.
fn next<S>(lane: &Lane<S>, position: &mut u64) -> Option<RecordHeader> {
    loop {
        if *position >= lane.tail() {
            return None;
        }
        let header = record::header(lane.published(*position, HEADER_BYTES));
        if header.parts != PARTS_WRAP {
            return Some(header);
        }
        *position += lane.capacity - (*position & (lane.capacity - 1));
    }
}

impl Store {
    /// Applies everything that is published without a gap.
    pub fn apply(&self) -> Result<()> {
        self.apply_to(u64::MAX)
    }

    /// Applies what has a sequence by now and is published without a gap: what the pool's own thread does at a time.
    pub fn apply_so_far(&self) -> Result<()> {
        self.apply_to(self.sequence.load(Ordering::Acquire))
    }

    /// Applies what is published without a gap, up to the sequence `last` and no further, so that a caller who waits for that
    /// sequence does not chase a writer that keeps appending.
    fn apply_to(&self, last: u64) -> Result<()> {
        if self.mechanism == Mechanism::Undo {
            return Ok(()); // everything is at its place
        }
        let mut applier = lock(&self.applier);
        self.place_to(last, &mut applier)?;
        if applier.positions == applier.settled {
            std::thread::yield_now(); // somebody is between his sequence and his fence
            return Ok(());
        }
        self.settle(&mut applier).map_err(|error| self.stop(error))?;
        self.show_sizes();
        Ok(())
    }

    /// Stores what is published up to a sequence to its place.
    fn place_to(&self, last: u64, applier: &mut Applier) -> Result<()> {
        self.running()?;
        loop {
            let wanted = applier.applied + 1;
            let mut found = false;
            if wanted > last {
                return Ok(());
            }
            for at in 0..applier.positions.len() {
                found |= if at == 0 {
                    self.apply_from(&self.shared.lane, at, wanted..=last, applier)?
                } else {
                    self.apply_from(&self.lanes[at - 1], at, wanted..=last, applier)?
                };
                if found {
                    break;
                }
            }
            if !found {
                return Ok(());
            }
        }
    }

    /// Stores everything that has a sequence by now to its place, as [`Store::apply_all`], but does not wait until that is
    /// durable: the log keeps its records. For mechanisms with readers in other processes.
    pub fn place_all(&self) -> Result<()> {
        debug_assert!(matches!(self.mechanism, Mechanism::Redo | Mechanism::Checkpoint));
        let wanted = self.sequence.load(Ordering::Acquire);
        loop {
            self.flush(u64::MAX)?;
            let mut applier = lock(&self.applier);
            self.place_to(wanted, &mut applier)?;
            self.renew_taken(&mut applier).map_err(|error| self.stop(error))?;
            if applier.applied >= wanted {
                return Ok(());
            }
            drop(applier);
            std::thread::yield_now();
        }
    }

    /// Applies everything that has a sequence by now; waits for commits between taking their sequence and their fence.
    pub fn apply_all(&self) -> Result<()> {
        let wanted = self.sequence.load(Ordering::Acquire);
        loop {
            self.flush(u64::MAX)?;
            self.apply_to(wanted)?;
            if self.mechanism == Mechanism::Undo || lock(&self.applier).applied >= wanted {
                return Ok(());
            }
        }
    }

    /// Applies records of one lane as long as they are the next in order, and wanted.
    fn apply_from<S>(
        &self,
        lane: &Lane<S>,
        at: usize,
        wanted: RangeInclusive<u64>,
        applier: &mut Applier,
    ) -> Result<bool> {
        let mut any = false;
        for wanted in wanted {
            let mut position = applier.positions[at];
            let Some(header) = next(lane, &mut position).filter(|header| header.sequence == wanted) else {
                return Ok(any);
            };
            let record = lane.published(position, u64::from(header.bytes));
            self.apply_record(record, applier).map_err(|error| self.stop(error))?;
            applier.positions[at] = position + u64::from(header.bytes);
            applier.applied = wanted;
            any = true;
        }
        Ok(any)
    }

    /// Stores what a record says to its place.
    pub(crate) fn apply_record(&self, record: &[u8], applier: &mut Applier) -> Result<()> {
        let header = record::header(record);
        if header.parts == PARTS_FAR {
            return self.apply_far(record, applier);
        }
        match (header.kind, &self.shadow) {
            (RECORD_PAGES, Some(shadow)) => shadow.write().apply(record),
            (RECORD_LINES, _) => self.apply_lines(record, applier),
            _ => self.apply_ranges(record, applier),
        }
    }

    /// Brings bytes of the heap to their place.
    #[inline]
    fn place(&self, offset: u64, bytes: &[u8], applier: &mut Applier) -> Result<()> {
        let counters = &mut applier.counters;
        if let Some(checksums) = &self.checksums {
            let is_body = |zone| self.image.is_body(zone);
            checksums.change(&self.medium, offset, bytes, is_body, &mut applier.taken, counters)?;
        }
        self.medium.place(self.heap_start + offset, bytes, counters)
    }

    fn apply_lines(&self, record: &[u8], applier: &mut Applier) -> Result<()> {
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
        let mut at = HEADER_BYTES as usize;
        for _ in 0..record::entries(record) {
            let (page, lines) = (word(at), word(at + 8));
            at += 16;
            let bytes = &record[at..at + lines.count_ones() as usize * LINE_BYTES];
            self.place_lines(page * PAGE_BYTES as u64, lines, bytes, applier)?;
            at += bytes.len();
        }
        Ok(())
    }

    /// Brings lines of a page of the heap to their place.
    fn place_lines(&self, offset: u64, lines: u64, source: &[u8], applier: &mut Applier) -> Result<()> {
        if let Some(checksums) = &self.checksums {
            let is_body = |zone| self.image.is_body(zone);
            let numbers = (0..64).filter(|line| lines >> line & 1 == 1);
            for (line, bytes) in numbers.zip(source.chunks_exact(LINE_BYTES)) {
                let (at, counters) = (offset + line * LINE_BYTES as u64, &mut applier.counters);
                checksums.change(&self.medium, at, bytes, is_body, &mut applier.taken, counters)?;
            }
        }
        self.medium.place_lines(self.heap_start + offset, lines, source, &mut applier.counters)
    }

    fn apply_ranges(&self, record: &[u8], applier: &mut Applier) -> Result<()> {
        let mut at = HEADER_BYTES as usize;
        for _ in 0..record::entries(record) {
            let word = RangeWord(u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes")));
            let bytes = word.length();
            self.place(word.offset(), &record[at + 8..at + 8 + bytes as usize], applier)?;
            at += 8 + bytes as usize;
        }
        Ok(())
    }

    /// Sums the pages of slabs that were taken.
    fn renew_taken(&self, applier: &mut Applier) -> Result<()> {
        let Some(checksums) = &self.checksums else { return Ok(()) };
        checksums.renew_taken(&self.medium, &mut applier.taken, &mut applier.counters)
    }

    /// Makes applied stores durable, then the lane heads that say so, and then gives the lanes' room back.
    pub fn settle(&self, applier: &mut Applier) -> Result<()> {
        if let Some(shadow) = &self.shadow {
            shadow.write().store(&self.medium, &mut applier.counters)?;
        }
        self.renew_taken(applier)?;
        self.medium.harden(&mut applier.counters)?;
        for at in (0..applier.positions.len()).filter(|at| applier.positions[*at] != applier.settled[*at]) {
            let head = LaneHead { position: applier.positions[at], applied: applier.applied };
            let offset = LaneHead::offset(at as u32, applier.turns[at]);
            applier.turns[at] += 1;
            self.medium.store(offset, &head.encode(), &mut applier.counters)?;
            self.medium.write_back(offset, crate::layout::HEAD_BYTES, &mut applier.counters);
        }
        self.medium.harden(&mut applier.counters)?;
        applier.settled.clone_from(&applier.positions);
        self.shared.lane.release(applier.positions[0]);
        for (lane, position) in self.lanes.iter().zip(&applier.positions[1..]) {
            lane.release(*position);
        }
        if !applier.far.is_empty() {
            self.give_far(&std::mem::take(&mut applier.far));
        }
        Ok(())
    }
}
