// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slabs that get no new objects while those that they have move out.
//!
//! - **Flow** slabs that the objects of a size do not need are closed ─▶ steps move objects out, a transaction each ─▶ what is left opens again
//! - **Rule** the fullest slabs stay, so as little as possible moves, and what moves has room in those that stay
//! - **Rule** nothing of this is in the file: after a crash some objects lie elsewhere, and that is all
//! - **Order** slabs open again when all that was freed in them is durable: until then a crash would need it
//! - **Not here** moving: `structures::btree::relocate`, `raw::table`

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::heap::{search, walk};
use crate::layout::{Entry, SLAB_BYTES, slots};
use crate::options::Durability;
use crate::pool::Pool;
use crate::store::Store;
use crate::tx::{Tx, TxOptions};

/// A size of objects is worth moving if it has one slab in so many too much.
const WORTH: u64 = 8;
/// A transaction moves objects of up to this part of a lane's bytes: checkpoint logs whole lines, and a quarter of a lane at most.
const LANE_SHARE: u64 = 32;
/// Bytes that moving an object changes apart from its own: bits, links.
const OBJECT_BYTES: u64 = 256;

/// Calls `step` until it, or `goes_on` between two transactions, says false, with the slabs closed that these sections' objects with one of the
/// tags do not need; returns how many objects moved.
pub(crate) fn closed(
    pool: &Pool,
    sections: &[u16],
    tags: &[u32],
    mut goes_on: impl FnMut() -> bool,
    mut step: impl FnMut(&mut Tx<'_>, &mut Moving) -> Result<bool>,
) -> Result<u64> {
    let options = TxOptions { durability: Durability::Buffered, sections: Some(sections) };
    let any = pool.tx_with(options, |t| {
        Ok::<_, Error>(sections.iter().filter(|section| t.close_sparse(**section, tags)).count() > 0)
    })?;
    if !any {
        return Ok(0);
    }
    let mut moved = 0;
    let done = loop {
        let mut moving = Moving::new(pool.store());
        let more = pool.tx_with(options, |t| step(t, &mut moving));
        moved += moving.moved;
        match more {
            Ok(true) if goes_on() => {}
            Ok(true) => break Ok(moved),
            Ok(false) => break Ok(moved),
            Err(error) => break Err(error),
        }
    };
    pool.sync()?;
    pool.tx_with(options, |t| {
        sections.iter().for_each(|section| t.reopen(*section));
        Ok::<_, Error>(())
    })?;
    done
}

/// How many slots of a slab are in use.
pub(crate) fn in_use(store: &Store, slab: u64, stride: u32) -> u64 {
    let (_, first) = slots(u64::from(stride).max(16));
    let words = (0..first / 8).map(|word| store.image.word(slab * SLAB_BYTES + word * 8));
    words.map(|word| u64::from(word.count_ones())).sum()
}

impl Tx<'_> {
    /// Closes the slabs that a section's objects with these tags do not need. False: there are none, or too few.
    fn close_sparse(&mut self, section: u16, tags: &[u32]) -> bool {
        let store = self.store;
        let Some(held) = self.held.get(section) else { return false };
        held.drain(store.shared.durable());
        search(held, section, &store.image);
        let mut sizes: BTreeMap<(u32, u32), Vec<(u64, u64)>> = BTreeMap::new();
        let mut empty = BTreeSet::new();
        walk(&store.image, 0, store.image.len() / SLAB_BYTES, |slab, entry| {
            if entry.state == Entry::SLOTS && entry.section == section && tags.contains(&entry.tag) {
                let used = in_use(store, slab, entry.stride);
                if used == 0 {
                    empty.insert(slab);
                } else if store.is_verified(slab) {
                    sizes.entry((entry.tag, entry.stride)).or_default().push((used, slab));
                }
            }
        });
        let mut surplus = BTreeSet::new();
        for ((_, stride), mut slabs) in sizes {
            let (count, _) = slots(u64::from(stride).max(16));
            let needed = slabs.iter().map(|(used, _)| used).sum::<u64>().div_ceil(count);
            let more = slabs.len() as u64 - needed;
            if more > 0 && more * WORTH >= slabs.len() as u64 {
                slabs.sort_unstable();
                surplus.extend(slabs[..more as usize].iter().map(|(_, slab)| *slab));
            }
        }
        let any = !surplus.is_empty();
        if any {
            held.close(surplus, &empty);
        }
        any
    }

    /// Opens a section's closed slabs again. What was freed in them is durable.
    fn reopen(&mut self, section: u16) {
        let Some(held) = self.held.get(section) else { return };
        for slab in std::mem::take(&mut held.closed) {
            let entry = self.store.image.entry(slab);
            let is_left = entry.state == Entry::SLOTS && entry.section == section;
            if is_left && !held.emptied.contains_key(&slab) {
                held.shelf(entry.tag, entry.stride).slabs.push(slab);
            }
        }
    }
}

/// The objects that a transaction of a compaction moves.
pub(crate) struct Moving {
    /// Objects that moved.
    pub moved: u64,
    /// Bytes that may still move.
    left: u64,
    full: bool,
}

impl Moving {
    fn new(store: &Store) -> Moving {
        Moving { moved: 0, left: (store.shared.lane.capacity / LANE_SHARE).max(1), full: false }
    }

    /// Returns true if the object at `offset` is to move, and counts it.
    #[inline]
    pub fn takes(&mut self, t: &mut Tx<'_>, section: u16, offset: u64) -> bool {
        if !t.held.get(section).is_some_and(|held| held.is_closed(offset)) {
            return false;
        }
        if self.left == 0 {
            self.full = true;
            return false;
        }
        let bytes = u64::from(t.store.image.entry(offset / SLAB_BYTES).stride);
        self.left = self.left.saturating_sub(bytes + OBJECT_BYTES);
        self.moved += 1;
        true
    }

    /// As [`Moving::takes`], for whichever section it belongs to.
    pub fn takes_any(&mut self, t: &mut Tx<'_>, offset: u64) -> bool {
        let section = t.store.image.entry(offset / SLAB_BYTES).section;
        self.takes(t, section, offset)
    }

    /// Returns true if something would have moved, but for the transaction's size.
    pub fn is_full(&self) -> bool {
        self.full
    }
}
