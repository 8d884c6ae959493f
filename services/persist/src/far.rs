// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transactions that a lane does not take: their records lie in free slabs of the heap, and the lane has a record that names them.
//!
//! - **Flow** what changed ─▶ records of up to 4 MiB ─▶ free slabs ─▶ durable ─▶ a record in the lane (`far_record`), whose
//!   ranges are the places of those records, with the length and checksum of each ─▶ applied in its turn ─▶ the slabs are free again
//! - **Order** slabs are taken first, and then everything older is applied: no older record stores to them. Nobody else has them until
//!   the lane heads say that they were applied, so after a crash they still hold what the lane's record names
//! - **Rule** the directory calls them free all the while: a crash before the lane's record leaves nothing to undo
//! - **Not here** undo, checkpoint and shadow pools: there a lane is the limit

use crate::applier::Applier;
use crate::error::Result;
use crate::far_record::{Far, PIECE_BYTES, named, read};
use crate::layout::{FEATURE_FAR, Header, SLAB_BYTES};
use crate::lock::lock;
use crate::medium::Counters;
use crate::record::{self, Builder, Built};
use crate::store::Store;
use crate::writes::Writes;
use memlift_spec::formats::log::{RECORD_ALIGN, RECORD_HEADER_BYTES};

/// Of the bytes of a record elsewhere, those for what it holds: without its header and what is added to its end.
const PARTS_BYTES: u64 = PIECE_BYTES - (RECORD_HEADER_BYTES + RECORD_ALIGN) as u64;
/// A range is cut into such pieces.
const RANGE_BYTES: u64 = 1 << 20;

/// A part of a record: nothing smaller is cut.
enum Part {
    /// Of the range `index`, so many bytes from `at` on.
    Range { index: usize, at: u64, bytes: u64 },
    /// The directory's entry of a slab.
    Entry { slab: u64 },
}

impl Part {
    fn bytes(&self) -> u64 {
        match self {
            Part::Range { bytes, .. } => *bytes,
            Part::Entry { .. } => 16,
        }
    }
}

impl Store {
    /// Makes the records of what a transaction changed and stores them in free slabs, durably. None of them: nothing did change.
    pub(crate) fn store_far(&self, writes: &mut Writes) -> Result<Vec<Far>> {
        self.enable_far()?;
        let mut parts = Vec::new();
        for (index, touched) in writes.touched.iter().enumerate() {
            let bytes = u64::from(touched.bytes);
            let cut = (0..bytes).step_by(RANGE_BYTES as usize);
            parts.extend(cut.map(|at| Part::Range { index, at, bytes: RANGE_BYTES.min(bytes - at) }));
        }
        parts.extend(writes.entries.iter().map(|(slab, _)| Part::Entry { slab: *slab }));
        let mut pieces = Vec::new();
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            while count < rest.len() && bytes + 8 + rest[count].bytes() <= PARTS_BYTES {
                bytes += 8 + rest[count].bytes();
                count += 1;
            }
            let mut memory = vec![0; record::bound(0, bytes) as usize];
            let mut builder = Builder::ranges(&mut memory);
            rest[..count].iter().for_each(|part| self.add_part(&mut builder, writes, part));
            if !builder.is_empty() {
                let built = builder.finish();
                pieces.push((memory, built));
            }
            rest = &rest[count..];
        }
        let mut far = Vec::new();
        let stored = self.place_far(&mut pieces, &mut far, &mut writes.counters);
        if stored.is_err() {
            self.give_far(&far);
        }
        stored.map(|()| far)
    }

    fn add_part(&self, builder: &mut Builder<'_>, writes: &Writes, part: &Part) {
        match *part {
            Part::Range { index, at, bytes } => {
                let touched = &writes.touched[index];
                let now = self.image.words(touched.offset + at, bytes);
                match writes.before(touched) {
                    Some(before) => {
                        let before = &before[at as usize / 8..(at + bytes) as usize / 8];
                        builder.changed(touched.offset + at, before, now);
                    }
                    None => builder.range_of(touched.offset + at, now),
                }
            }
            Part::Entry { slab } => {
                builder.range(crate::layout::Entry::offset(slab), &self.image.entry(slab).words());
            }
        }
    }

    fn place_far(
        &self,
        pieces: &mut [(Vec<u8>, Built)],
        far: &mut Vec<Far>,
        counters: &mut Counters,
    ) -> Result<()> {
        for (_, built) in pieces.iter() {
            let slabs = built.bytes.div_ceil(SLAB_BYTES);
            let first = self.take_far(slabs)?;
            far.push(Far { offset: first * SLAB_BYTES, bytes: built.bytes as u32, checksum: 0 });
            self.holes.reserve(&self.medium, self.heap_start, first, slabs, 0)?;
        }
        self.apply_all()?;
        let salt = self.salts[0];
        let stored = pieces.iter_mut().zip(far).try_for_each(|((bytes, built), far)| {
            let bytes = &mut bytes[..built.bytes as usize];
            record::place(bytes, *built, far.offset, 0, far.offset);
            record::seal(bytes, salt);
            far.checksum = record::header(bytes).checksum;
            let place = self.heap_start + far.offset;
            self.medium.store(place, bytes, counters)?;
            self.medium.write_back(place, built.bytes, counters);
            Ok(())
        });
        stored.and_then(|()| self.medium.harden(counters)).map_err(|error| self.stop(error))
    }

    /// Free slabs side by side; the pool grows for them.
    fn take_far(&self, slabs: u64) -> Result<u64> {
        loop {
            if let Some(first) = lock(&self.free_slabs).take(slabs) {
                return Ok(first);
            }
            self.grow(slabs)?;
        }
    }

    /// Gives slabs back whose records nobody needs.
    pub(crate) fn give_far(&self, far: &[Far]) {
        let mut free = lock(&self.free_slabs);
        for (first, count) in far.iter().map(|one| one.slabs()) {
            free.give(first, count);
        }
    }

    /// Stores what the records say that a lane's record names.
    pub(crate) fn apply_far(&self, record: &[u8], applier: &mut Applier) -> Result<()> {
        let header = *lock(&self.header);
        read(&self.medium, &header, record, |record| self.apply_record(record, applier))?;
        applier.far.extend(named(record));
        Ok(())
    }

    /// From now on the log may have such records: programs that do not know them must not open the pool.
    fn enable_far(&self) -> Result<()> {
        let mut header = lock(&self.header);
        if header.incompat & FEATURE_FAR != 0 {
            return Ok(());
        }
        let next =
            Header { incompat: header.incompat | FEATURE_FAR, generation: header.generation + 1, ..*header };
        let mut counters = Counters::default();
        let written = self.medium.write_header(&next, &mut counters);
        self.intact(written.and_then(|()| self.medium.harden(&mut counters)))?;
        *header = next;
        Ok(())
    }
}
