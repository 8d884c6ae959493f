// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of a transaction to slabs that only a migration makes.
//!
//! - **Rule** each step is undone by an abort and logged at commit like any other change; lists in memory (which slots of a type
//!   are free) are the caller's to mend after the commit
//! - **Not here** which steps, in which order: `migrate`

use super::Tx;
use crate::error::Result;
use crate::layout::{Entry, SLAB_BYTES, SUPERBLOCK_OFFSET};
use crate::persist::Persist;
use crate::persist::slice_tag;

impl Tx<'_> {
    /// Changes the type of a slab's objects, or of a run. Their bytes are not touched.
    pub(crate) fn retag<T: Persist>(&mut self, slab: u64, array: bool) -> Result<()> {
        let tag = if array { slice_tag::<T>() } else { T::TAG };
        self.register::<T>(tag, array)?;
        let entry = self.store.image.entry(slab);
        for one in slab..slab + entry.copies() {
            let before = self.store.image.entry(one);
            self.set_entry(one, Entry { tag, ..before })?;
        }
        Ok(())
    }

    /// Writes a type down before it has objects.
    pub(crate) fn announce<T: Persist>(&mut self) -> Result<()> {
        self.register::<T>(T::TAG, false)
    }

    /// Overwrites words of the heap: place and value. With an undo log, one fence serves all.
    pub(crate) fn set_words(&mut self, words: &[(u64, u64)]) -> Result<()> {
        for (at, _) in words {
            self.writes.declare(&self.store.image, *at, 8);
        }
        self.store.before_store(self.lane, &mut self.writes)?;
        for (at, value) in words {
            self.store.image.set_word(*at, *value);
        }
        Ok(())
    }

    /// Marks a slot as free. It is not taken again, because no allocation looks for its slab's type.
    pub(crate) fn vacate(&mut self, slab: u64, slot: u64) -> Result<()> {
        self.flip(slab, slot, false).map(drop)
    }

    /// Gives a slab of slots, or a run, back to the pool.
    pub(crate) fn give_slabs(&mut self, slab: u64) -> Result<()> {
        let entry = self.store.image.entry(slab);
        for one in slab..slab + entry.copies() {
            self.set_entry(one, Entry::default())?;
        }
        self.writes.slabs_freed.push((slab, entry.slabs()));
        Ok(())
    }

    /// Sets the root's place and layout.
    pub(crate) fn set_root_words(&mut self, offset: u64, layout: u64) -> Result<()> {
        self.set_words(&[(SUPERBLOCK_OFFSET, offset), (SUPERBLOCK_OFFSET + 8, layout)])
    }

    /// Returns true if a slot is in use.
    pub(crate) fn in_use(&self, slab: u64, slot: u64) -> bool {
        self.store.image.word(slab * SLAB_BYTES + slot / 64 * 8) >> (slot % 64) & 1 == 1
    }
}
