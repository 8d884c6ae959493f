// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slabs without objects serve objects of any type.
//!
//! - **Flow** the last slot of a slab is freed ─▶ its section notes the slab ([`Section::emptied`]) ─▶ a transaction that finds no
//!   free slab takes it, before the pool grows. [`Pool::reclaim`] writes all of them down as free
//! - **Why** a slab keeps its type when its last object goes: a program that frees and allocates by turns would otherwise write
//!   the directory each time
//! - **Rule** a slab is taken from sections only that the transaction holds for writing: nobody follows an old pointer into it
//!   meanwhile. Its freeing is durable before: an abort or a crash would need what was there
//! - **Rule** notes are hints: the slab's entry and bits decide. A slab in the middle of a migration is never noted, since its
//!   free slots say where objects went (`migrate`)

use crate::error::Result;
use crate::image::Image;
use crate::layout::{Entry, SLAB_BYTES, slots};
use crate::pool::Pool;
use crate::section::{Held, Section};
use crate::store::{Store, lock};
use crate::tx::{self, Tx, TxOptions};
use crate::writes::Writes;

/// Slabs that one transaction gives back: their entries fit the smallest lane.
const SOME: usize = 32;

/// Returns true if no slot of a slab is in use.
pub(crate) fn is_empty(image: &Image, slab: u64, stride: u32) -> bool {
    let (_, first) = slots(u64::from(stride).max(16));
    (0..first / 8).all(|word| image.word(slab * SLAB_BYTES + word * 8) == 0)
}

/// Returns true if a noted slab is still this section's, and empty.
fn is_left(image: &Image, slab: u64, section: u16) -> bool {
    let entry = image.entry(slab);
    entry.state == Entry::SLOTS && entry.section == section && is_empty(image, slab, entry.stride)
}

/// Notes slabs that were empty when the pool was opened, once. The lists have none that a migration is at.
fn search(section: &mut Section, number: u16, image: &Image) {
    if !section.searched {
        section.searched = true;
        let found: Vec<u64> = section.unseen().filter(|slab| is_left(image, *slab, number)).collect();
        section.emptied.extend(found.into_iter().map(|slab| (slab, 0)));
    }
}

/// Returns true if this transaction freed something in a slab, which an abort would need.
fn freed_here(writes: &Writes, slab: u64) -> bool {
    writes.freed.iter().any(|freed| freed.offset / SLAB_BYTES == slab)
}

impl Tx<'_> {
    /// Takes slabs side by side, of which those that are not free were emptied by other types; None when there are none.
    #[cold]
    pub(super) fn take_emptied(&mut self, count: u64) -> Option<u64> {
        let (mut latest, durable) = (0, self.store.shared.durable());
        for section in 0..self.store.sections.len() as u16 {
            let Some(held) = self.held.get(section) else { continue };
            search(held, section, &self.store.image);
            latest = held.emptied.values().copied().fold(latest, u64::max);
        }
        if let Some(first) = self.take_durable(count, durable) {
            return Some(first);
        }
        // Rather than growing, wait until what was freed lately is durable. If that fails the pool stops.
        (latest > durable && self.store.flush(latest).is_ok())
            .then(|| self.take_durable(count, latest))
            .flatten()
    }

    /// As [`Tx::take_emptied`], of slabs whose freeing is durable at this position.
    fn take_durable(&mut self, count: u64, durable: u64) -> Option<u64> {
        let sections = 0..self.store.sections.len() as u16;
        if count == 1 {
            return sections.into_iter().find_map(|section| self.take_one(section, durable));
        }
        let mut found = Vec::new();
        for section in sections.clone() {
            let Some(held) = self.held.get(section) else { continue };
            held.emptied.retain(|slab, _| is_left(&self.store.image, *slab, section));
            let usable =
                held.emptied.iter().filter(|(_, position)| **position <= durable).map(|(slab, _)| *slab);
            found.extend(usable.filter(|slab| !freed_here(&self.writes, *slab)));
        }
        let first = lock(&self.store.free_slabs).take_with(count, &found)?;
        for section in sections {
            if let Some(held) = self.held.get(section) {
                held.emptied.retain(|slab, _| !(first..first + count).contains(slab));
            }
        }
        Some(first)
    }

    fn take_one(&mut self, section: u16, durable: u64) -> Option<u64> {
        let held = self.held.get(section)?;
        let mut kept = Vec::new();
        let found = loop {
            let Some((slab, position)) = held.emptied.pop_first() else { break None };
            if !is_left(&self.store.image, slab, section) {
                continue;
            }
            if position <= durable && !freed_here(&self.writes, slab) {
                break Some(slab);
            }
            kept.push((slab, position));
        };
        held.emptied.extend(kept);
        found
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

impl Pool {
    /// Writes down as free the slabs (16 KiB) that have no objects, for objects of other types and sections; returns their
    /// number. A transaction that finds no free slab takes them by itself, if it holds their section. Waits for all sections, so
    /// not from within a transaction.
    ///
    /// # Errors
    ///
    /// As [`Pool::tx`].
    pub fn reclaim(&self) -> Result<u64> {
        let mut count = 0;
        loop {
            let given = some(self.store())?;
            count += given;
            if given == 0 {
                return Ok(count);
            }
        }
    }
}

/// Slabs of sections that nobody holds which are empty, but have a type.
pub(crate) fn emptied(store: &Store) -> u64 {
    let sections =
        store.sections.iter().zip(0..).filter_map(|(one, number)| Some((one.try_write()?, number)));
    let count = |(mut section, number): (crate::biased::WriteGuard<'_, Section>, u16)| {
        search(&mut section, number, &store.image);
        section.emptied.keys().filter(|slab| is_left(&store.image, **slab, number)).count() as u64
    };
    sections.map(count).sum()
}

/// Writes down some slabs as free; returns their number.
fn some(store: &Store) -> Result<u64> {
    let mut found = Vec::new();
    let given = tx::run(store, TxOptions::default(), |t| {
        for section in 0..store.sections.len() as u16 {
            let Some(held) = t.held.get(section) else { continue };
            search(held, section, &store.image);
            while found.len() < SOME
                && let Some((slab, _)) = held.emptied.pop_first()
            {
                if is_left(&store.image, slab, section) {
                    found.push(slab);
                }
            }
        }
        found.iter().try_for_each(|slab| t.give_slabs(*slab))
    });
    if given.is_err() {
        let mut held = Held::lock(&store.sections, None);
        for slab in found.drain(..) {
            if let Some(section) = held.get(store.image.entry(slab).section) {
                section.emptied.insert(slab, 0);
            }
        }
    }
    given.map(|()| found.len() as u64)
}
