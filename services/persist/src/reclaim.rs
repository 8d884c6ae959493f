// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slabs without objects go back to the pool, for objects of any type.
//!
//! - **Flow** all sections locked ─▶ slabs of slots whose bitmap is empty ─▶ some of them free, in one transaction ─▶ again
//! - **Why** a slab keeps its type when its last object goes: a program that frees and allocates by turns would otherwise write
//!   the directory each time. So slabs go back on request only
//! - **Order** slabs leave the lists of free slots before the commit: after an abort the lists may lack free slots, but never
//!   have slots that are taken
//! - **Not here** slabs in the middle of a migration: `migrate`

use crate::error::Result;
use crate::heap::walk;
use crate::layout::{Entry, SLAB_BYTES, slots};
use crate::pool::Pool;
use crate::store::Store;
use crate::tx::{self, TxOptions};

/// Slabs that one transaction gives back: their entries fit the smallest lane.
const SOME: usize = 32;

impl Pool {
    /// Returns slabs (16 KiB) without objects to the pool, for objects of other types and sections; returns their number.
    /// Waits for all sections, so not from within a transaction. It reads one word or a few of every slab.
    ///
    /// # Errors
    ///
    /// As [`Pool::tx`].
    pub fn reclaim(&self) -> Result<u64> {
        let (mut from, mut count) = (0, 0);
        loop {
            let (next, given) = some(self.store(), from)?;
            count += given;
            if next == from {
                return Ok(count);
            }
            from = next;
        }
    }
}

/// Returns true if no slot is in use.
fn is_empty(store: &Store, slab: u64, entry: Entry) -> bool {
    let (_, first) = slots(u64::from(entry.stride).max(16));
    (0..first / 8).all(|word| store.image.word(slab * SLAB_BYTES + word * 8) == 0)
}

/// Returns some slabs to the pool, from a slab on; returns where to go on, and how many it was.
fn some(store: &Store, from: u64) -> Result<(u64, u64)> {
    tx::run(store, TxOptions::default(), |t| {
        let slabs = store.image.len() / SLAB_BYTES;
        let mut found = Vec::new();
        walk(&store.image, from, slabs, |slab, entry| {
            if found.len() < SOME && entry.state == Entry::SLOTS && is_empty(store, slab, entry) {
                found.push((slab, entry.section));
            }
        });
        for (slab, section) in &found {
            if let Some(held) = t.held.get(*section) {
                held.forget(*slab, |offset| offset / SLAB_BYTES == *slab);
            }
            t.give_slabs(*slab)?;
        }
        let next = if found.len() < SOME { slabs } else { found.last().map_or(slabs, |(slab, _)| slab + 1) };
        Ok((next.max(from), found.len() as u64))
    })
}
