// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slabs without objects serve objects of any type.
//!
//! - **Flow** the last slot of a slab is freed ─▶ its section notes the slab ([`Section::emptied`]) ─▶ a transaction that finds no
//!   free slab for slots takes it, before the pool grows. [`Pool::reclaim`] writes all of them down as free, and so does the end of a
//!   commit for whose large objects the pool grew, or with which an eighth of the heap is empty slabs
//! - **Why** a slab keeps its type when its last object goes: a program that frees and allocates by turns would otherwise write
//!   the directory each time
//! - **Rule** notes are hints: the slab's entry and bits decide. A slab in the middle of a migration is never noted, since its
//!   free slots say where objects went (`migrate`)
//! - **Not here** taking them inside a transaction: `tx::emptied`

use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::heap::{is_left, search};
use crate::layout::SLAB_BYTES;
use crate::lock::lock;
use crate::pool::Pool;
use crate::section::{Held, Section};
use crate::store::Store;
use crate::tx::{self, TxOptions};

/// Slabs that one transaction gives back: with undo, where each entry is a record of 128 bytes, they fit half a lane.
fn step(store: &Store) -> usize {
    (store.shared.lane.capacity as usize / 256).min(4096)
}

impl Pool {
    /// Bytes of the heap, and how many of them are in slabs that nobody uses: free ones, and those without an object. Of
    /// sections that are locked now, only the free ones count.
    pub fn usage(&self) -> (u64, u64) {
        let emptied = emptied(self.store());
        let free = lock(&self.store().free_slabs);
        (free.slabs() * SLAB_BYTES, (free.free() + emptied) * SLAB_BYTES)
    }

    /// Writes down as free the slabs (16 KiB) that have no objects, for objects of other types and sections; returns their
    /// number. A transaction that needs a slab for objects of up to 8160 bytes takes one by itself, if it holds their section.
    /// Waits for all sections, so not from within a transaction.
    ///
    /// # Errors
    ///
    /// As [`Pool::tx`].
    pub fn reclaim(&self) -> Result<u64> {
        let mut count = 0;
        loop {
            let given = some(self.store())?;
            count += given;
            // Others may empty slabs as fast as this writes them down.
            if given < step(self.store()) as u64 {
                return Ok(count);
            }
        }
    }
}

/// Writes emptied slabs down as free, at the end of a commit that made the pool grow beside them. Not while a section stays
/// locked: this thread itself may keep a transaction open that holds it.
#[cold]
pub(crate) fn when_free(store: &Store) -> Result<()> {
    if !store.reclaim_due.swap(false, Ordering::Relaxed) {
        return Ok(()); // another thread is at it
    }
    if store.try_all().is_none() {
        return Ok(()); // when the pool grows again
    }
    loop {
        match some(store) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error @ Error::Stopped { .. }) => return Err(error),
            Err(_) => return Ok(()), // the commit before it stands
        }
    }
}

/// Slabs of sections that nobody holds which are empty, but have a type.
fn emptied(store: &Store) -> u64 {
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
    let (mut found, most) = (Vec::new(), step(store));
    let given = tx::run(store, TxOptions::default(), |t| {
        for section in 0..store.sections.len() as u16 {
            let Some(held) = t.held.get(section) else { continue };
            search(held, section, &store.image);
            while found.len() < most
                && let Some((slab, _)) = held.emptied.pop_first()
            {
                if is_left(&store.image, slab, section) && store.is_verified(slab) {
                    held.closed.remove(&slab);
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
