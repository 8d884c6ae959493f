// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives back what a pool has too much of, while it is used: objects of nearly empty slabs move together, and free slabs give their
//! blocks to the file system.
//!
//! - **Flow** the owner moves objects out of slabs that it does not need (`closing`) ─▶ emptied slabs are written down as free ─▶ free slabs are
//!   withheld from everybody, some at a time ─▶ log applied ─▶ their blocks go (`holes`)
//! - **Owner** only who knows every pointer to an object can move it: the store of [`crate::kv`] and the tables of Python and C do. In
//!   pools of other programs nothing moves
//! - **Not here** objects of more than 8160 bytes: they have slabs of their own, and stay

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;

use crate::Persist;
use crate::closing::{closed, in_use};
use crate::error::{Error, Result};
use crate::heap::walk;
use crate::holes::punchable;
use crate::kv::{self, Kv};
use crate::layout::{Entry, SLAB_BYTES, slots};
use crate::lock::lock;
use crate::medium::Mapped;
use crate::options::Durability;
use crate::persist::slice_tag;
use crate::pool::Pool;
use crate::raw::{ForeignRoot, Table};
use crate::store::Store;
use crate::tx::Tx;
use crate::view::View;

/// Most slabs that are withheld from transactions while their blocks go: 16 MiB.
const BATCH: u64 = 1024;
/// Buckets of a table that one transaction looks at.
const BUCKETS: u64 = 64;

/// Result of [`Pool::compact`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compacted {
    /// Objects that moved.
    pub moved: u64,
    /// Slabs (16 KiB) that became free.
    pub freed: u64,
    /// Bytes that the pool's files took on the disk before.
    pub before: u64,
    /// Bytes that they take now.
    pub after: u64,
}

impl Pool {
    /// Moves the objects of nearly empty slabs together, as far as their owner is a [`Kv`], or a table of Python or C, writes
    /// emptied slabs down as free, and gives the blocks of free slabs back to the file system: the file keeps its length and gets
    /// holes. Others may read and write meanwhile; each step is a transaction of its own. Buffered commits become durable. Not
    /// from within a transaction.
    ///
    /// `progress` gets how much of the pool was gone through, and of how much.
    ///
    /// Pools over several files and shadow pools keep their blocks; so do file systems that have no holes.
    ///
    /// ```
    /// use memlift_persist::{Durability, Error, Options, Pool, kv::Kv};
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("store.pool");
    /// let pool = Pool::create(&path, &Options { heap_bytes: 8 << 20, ..Options::default() })?;
    /// let store = Kv::open(&pool, Durability::Buffered)?;
    /// for key in 0..20_000u32 {
    ///     store.set(&key.to_le_bytes(), &[7; 200], 0)?;
    /// }
    /// for key in (0..20_000u32).filter(|key| key % 10 != 0) {
    ///     store.remove(&[&key.to_le_bytes()[..]])?;
    /// }
    /// let done = pool.compact(|_, _| {})?;
    /// assert!(done.moved > 0 && done.after <= done.before);
    /// assert_eq!(store.get(&30u32.to_le_bytes())?.as_deref(), Some(&[7; 200][..]));
    /// # Ok::<_, Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Pool::tx`]; [`Error::File`] when the file system refuses. What was done until then stays.
    pub fn compact(&self, mut progress: impl FnMut(u64, u64)) -> Result<Compacted> {
        self.compact_while(|done, total| {
            progress(done, total);
            true
        })
    }

    /// As [`Pool::compact`], until `goes_on` says false. It is called between transactions, and may sleep.
    pub(crate) fn compact_while(&self, mut goes_on: impl FnMut(u64, u64) -> bool) -> Result<Compacted> {
        let store = self.store();
        // Freed slots may be taken when their freeing is durable: else objects would move to new slabs.
        store.sync()?;
        let mut done = Compacted { before: store.disk_bytes().unwrap_or(0), ..Compacted::default() };
        let (_, layout) = self.read(|r| Ok::<_, Error>(r.root_words()))?;
        let free = self.usage().1 / SLAB_BYTES;
        done.moved = match layout {
            kv::LAYOUT => Kv::open(self, Durability::Buffered)?.move_together(&mut goes_on)?,
            <ForeignRoot as Persist>::LAYOUT => tables(self, &mut goes_on)?,
            _ => 0,
        };
        store.sync()?;
        self.reclaim()?;
        store.punch()?;
        done.freed = (self.usage().1 / SLAB_BYTES).saturating_sub(free);
        done.after = store.disk_bytes().unwrap_or(0);
        Ok(done)
    }
}

impl Store {
    /// Bytes that a compaction might give back: those of free slabs that have blocks, and of free slots. Reads a page of every slab.
    pub(crate) fn sparse_bytes(&self) -> u64 {
        let mut bytes = lock(&self.free_slabs).free().saturating_sub(self.holes.slabs()) * SLAB_BYTES;
        walk(&self.image, 0, self.image.len() / SLAB_BYTES, |slab, entry| {
            if entry.state == Entry::SLOTS {
                let stride = u64::from(entry.stride).max(16);
                bytes += (slots(stride).0 - in_use(self, slab, entry.stride).min(slots(stride).0)) * stride;
            }
        });
        bytes
    }

    /// Bytes that the pool takes on the disk; None: it has no file.
    fn disk_bytes(&self) -> Option<u64> {
        self.medium.paths().iter().map(|path| Some(std::fs::metadata(path).ok()?.blocks() * 512)).sum()
    }

    /// Gives the blocks of free slabs back to the file system. The caller holds no section.
    fn punch(&self) -> Result<()> {
        let header = *lock(&self.header);
        let Some(mapped) = punchable(&self.medium, header.mechanism) else { return Ok(()) };
        if self.options.read_only {
            return Ok(());
        }
        while self.restore_zone()? {}
        let mut from = 0;
        loop {
            let batch = {
                let mut free = lock(&self.free_slabs);
                let most = (free.free() / 4).clamp(1, BATCH);
                free.take_from(from, most, |slab| !self.holes.is_hole(slab))
            };
            let Some((last, count)) = batch.last() else { return Ok(()) };
            from = last + count;
            let punched = self.punch_these(mapped, &batch);
            let mut free = lock(&self.free_slabs);
            batch.iter().for_each(|(first, count)| free.give(*first, *count));
            if !punched? {
                return Ok(());
            }
        }
    }

    /// Makes holes of runs of slabs that are withheld from everybody. False: the file system cannot, or a reader in another process may
    /// need them.
    fn punch_these(&self, mapped: &Mapped, runs: &[(u64, u64)]) -> Result<bool> {
        self.sync()?;
        self.apply_all()?;
        for (first, count) in runs {
            let (offset, bytes) = (first * SLAB_BYTES, count * SLAB_BYTES);
            // Snapshots are taken under it. A later one has these slabs free, an earlier one may not.
            let _applier = lock(&self.applier);
            if self.medium.old_pages().is_some_and(|old| old.any()) {
                return Ok(false);
            }
            self.holes.add(*first, *count);
            if !mapped.punch(self.heap_start + offset, bytes)? {
                return Ok(false);
            }
            self.image.emptied(offset, bytes);
        }
        Ok(true)
    }
}

/// Moves entries and buckets of all tables together.
fn tables(pool: &Pool, mut goes_on: impl FnMut(u64, u64) -> bool) -> Result<u64> {
    let sections: Vec<u16> = (0..pool.store().sections.len() as u16).collect();
    let all = pool.tx(|t| Ok::<_, Error>(heads(t)))?;
    let (at, mut bucket) = (Cell::new(0), 0);
    let proceed = || goes_on(at.get() as u64, all.len() as u64);
    closed(pool, &sections, &[slice_tag::<u8>()], proceed, |t, moving| {
        let Some(head) = all.get(at.get()) else { return Ok(false) };
        // A table may go meanwhile, and something else may lie there.
        let next = match Table::at(*head).relocate(t, moving, bucket, BUCKETS) {
            Ok(next) => next,
            Err(Error::Pointer { .. }) => None,
            Err(error) => return Err(error),
        };
        at.set(at.get() + usize::from(next.is_none()));
        bucket = next.unwrap_or(0);
        Ok(true)
    })
}

/// Places of the heads of tables. The caller holds all sections.
fn heads(t: &Tx<'_>) -> Vec<u64> {
    let (store, mut found) = (t.store, Vec::new());
    walk(&store.image, 0, store.image.len() / SLAB_BYTES, |slab, entry| {
        if entry.state != Entry::SLOTS || entry.tag != slice_tag::<u8>() || !store.is_verified(slab) {
            return;
        }
        let stride = u64::from(entry.stride).max(16);
        let (count, first) = slots(stride);
        for slot in (0..count).filter(|slot| t.in_use(slab, *slot)) {
            let place = slab * SLAB_BYTES + first + slot * stride;
            if Table::is_head(store.image.word(place)) {
                found.push(place);
            }
        }
    });
    found
}
