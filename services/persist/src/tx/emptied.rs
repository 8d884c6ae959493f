// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slabs that one type has emptied, taken for another inside a transaction.
//!
//! - **Rule** a slab is taken from sections only that the transaction holds for writing: nobody follows an old pointer into it
//!   meanwhile. Its freeing is durable before: an abort or a crash would need what was there
//! - **Rule** for slots, and for objects of one slab that go through the log: the bytes of a larger one are stored before its
//!   record, over bits that a crash would need
//! - **Not here** which slabs those are: `heap`

use std::sync::atomic::Ordering;

use super::Tx;
use crate::heap::{is_left, search};
use crate::layout::{SLAB_BYTES, slots};
use crate::lock::lock;
use crate::writes::Writes;

/// Returns true if this transaction freed something in a slab, which an abort would need.
fn freed_here(writes: &Writes, slab: u64) -> bool {
    writes.freed.iter().any(|freed| freed.offset / SLAB_BYTES == slab)
}

impl Tx<'_> {
    /// Takes a slab that another type has emptied; None when there is none.
    #[cold]
    pub(super) fn take_emptied(&mut self) -> Option<u64> {
        let (sections, durable) = (0..self.store.sections.len() as u16, self.store.shared.durable());
        let mut found = sections.clone().find_map(|section| self.take_one(section, durable));
        if found.is_none() {
            let positions = |section| self.held.get(section)?.emptied.values().copied().max();
            let latest = sections.clone().filter_map(positions).max().filter(|latest| *latest > durable)?;
            // Rather than growing, wait until what was freed lately is durable. If that fails the pool stops.
            self.store.flush(latest).ok()?;
            found = sections.into_iter().find_map(|section| self.take_one(section, latest));
        }
        let slab = found?;
        // Until the commit it is the other type's: an abort needs its bits, also where they are longer than ours.
        let (_, bitmap) = slots(u64::from(self.store.image.entry(slab).stride).max(16));
        self.writes.touch(&self.store.image, slab * SLAB_BYTES, bitmap as u32);
        Some(slab)
    }

    fn take_one(&mut self, section: u16, durable: u64) -> Option<u64> {
        let held = self.held.get(section)?;
        search(held, section, &self.store.image);
        let mut kept = Vec::new();
        let found = loop {
            let Some((slab, position)) = held.emptied.pop_first() else { break None };
            if !is_left(&self.store.image, slab, section) || !self.store.is_verified(slab) {
                continue;
            }
            if position <= durable && !freed_here(&self.writes, slab) {
                held.closed.remove(&slab);
                break Some(slab);
            }
            kept.push((slab, position));
        };
        held.emptied.extend(kept);
        found
    }

    /// Before the pool grows: if there are slabs that a type has emptied, the next commit writes them down as free.
    #[cold]
    pub(super) fn note_emptied(&mut self) {
        let mut sections = 0..self.store.sections.len() as u16;
        if sections.any(|section| self.held.get(section).is_some_and(|held| held.may_have_emptied())) {
            self.store.reclaim_due.store(true, Ordering::Relaxed);
        }
    }

    /// After an abort: slabs that were taken are free again, or empty ones of the type that had them.
    pub(super) fn give_again(&mut self, first: u64, count: u64) {
        for slab in first..first + count {
            let section = self.store.image.entry(slab).section;
            if is_left(&self.store.image, slab, section)
                && let Some(held) = self.held.get(section)
            {
                held.emptied.insert(slab, 0);
            } else {
                lock(&self.store.free_slabs).give(slab, 1);
            }
        }
    }
}
