// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Undo: changes are made in place, and the log has what was there before.
//!
//! - **Flow** ranges announced ─▶ before-images to the own lane ─▶ harden ─▶ stores in place …… commit: write-back of what was
//!   stored ─▶ harden ─▶ the lane's head past the records ─▶ harden. An abort stores the before-images, then the same
//! - **Fences** one for each batch of ranges that was announced (`Tx::declare` announces many), and two at commit
//! - **Rule** no store in place before the harden that follows its before-image. On a page-cache file that harden is a sync,
//!   because the kernel may write a dirty page whenever it likes
//! - **Order** recovery puts before-images back, the latest record first. Transactions that were under way in different lanes
//!   held different sections, so their order does not matter
//! - **Why** for pools that shall not be mirrored in memory
//! - **Source** NearPM §4.1; NVML's undo log is the same with a fence per range

use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::layout::{Entry, HEAD_BYTES, LaneHead};
use crate::medium::Counters;
use crate::record::{self, Builder};
use crate::store::Store;
use crate::writes::Writes;

impl Store {
    /// Logs the before-images of what was announced since the last call.
    pub(crate) fn log_before(&self, lane: &Lane<Writes>, writes: &mut Writes) -> Result<()> {
        self.running()?;
        let new = &writes.touched[writes.undo_logged..];
        let ranges = new.iter().filter(|one| writes.before(one).is_some());
        let (count, bytes) =
            ranges.clone().fold((0, 0), |(n, bytes), one| (n + 1, bytes + u64::from(one.bytes)));
        let entries = &writes.entries[writes.undo_entries..];
        if count == 0 && entries.is_empty() {
            return Ok(());
        }
        let tail = lane.tail();
        let bound = record::bound(count + entries.len() as u64, bytes + entries.len() as u64 * 16);
        let at = lane
            .room(tail, bound)
            .ok_or(Error::TooLarge { bytes: tail + bound - lane.head(), lane_bytes: lane.capacity })?;
        self.allocate(lane, tail, at, bound)?;
        let salt = self.salts[lane.index as usize];
        let mut counters = Counters::default();
        if at != tail {
            let skip = lane.free(tail, 64);
            record::wrap(skip, tail);
            record::seal(skip, salt);
            self.medium.append(lane.offset(tail), skip, &mut counters).map_err(|error| self.stop(error))?;
        }
        let target = lane.free(at, bound);
        let mut builder = Builder::undo(target);
        for touched in ranges {
            builder.range(touched.offset, writes.before(touched).expect("filtered"));
        }
        for (slab, entry) in entries {
            builder.range(Entry::offset(*slab), &entry.words());
        }
        let built = builder.finish();
        let record = &mut target[..built.bytes as usize];
        if writes.undo_from.is_none() {
            writes.undo_from = Some(tail);
            writes.sequence = self.next_sequence();
        }
        record::place(record, built, at, writes.sequence, tail);
        writes.counters += counters;
        (writes.undo_logged, writes.undo_entries) = (writes.touched.len(), writes.entries.len());
        self.medium
            .append_record(lane.offset(at), record, salt, &mut writes.counters)
            .and_then(|()| self.medium.harden(&mut writes.counters))
            .map_err(|error| self.stop(error))?;
        lane.publish(at + built.bytes);
        Ok(())
    }

    /// Makes stores in place durable, and then discards their before-images. Serves commit and abort.
    pub(crate) fn commit_undo(&self, lane: &Lane<Writes>, writes: &mut Writes) -> Result<()> {
        self.running()?;
        self.finish_undo(lane, writes).map_err(|error| self.stop(error))
    }

    fn finish_undo(&self, lane: &Lane<Writes>, writes: &mut Writes) -> Result<()> {
        let counters = &mut writes.counters;
        let entries = writes.entries.iter().map(|(slab, _)| (Entry::offset(*slab), 16));
        for (offset, bytes) in
            writes.touched.iter().map(|one| (one.offset, u64::from(one.bytes))).chain(entries)
        {
            let place = self.heap_start + offset;
            if !self.image.in_place() {
                self.medium.store(place, self.image.bytes(offset, bytes), counters)?;
            }
            self.medium.write_back(place, bytes, counters);
        }
        self.medium.harden(counters)?;
        if writes.undo_from.is_some() {
            let position = lane.tail();
            let offset = LaneHead::offset(lane.index, writes.turn);
            writes.turn += 1;
            self.medium.store(offset, &LaneHead { position, applied: 0 }.encode(), counters)?;
            self.medium.write_back(offset, HEAD_BYTES, counters);
            self.medium.harden(counters)?;
            lane.release(position);
        }
        Ok(())
    }
}
