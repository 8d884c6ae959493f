// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Free slabs that take no room on the disk.
//!
//! - **Flow** open: the file says where it has no blocks ─▶ a transaction takes such a slab: it gets blocks first, its neighbours with
//!   it ─▶ `compact` gives the blocks of free slabs back to the file system
//! - **Rule** what is in use has blocks: a store to a hole for which the disk has no room would be a fault (SIGBUS). So a full disk is an
//!   error of the transaction that takes the slab
//! - **Order** blocks of a slab go when its freeing is durable and applied; nobody can take it meanwhile. The mirror's pages go with
//!   them: what differs between mirror and file is what the log has, and nothing else
//! - **Not here** pools over several files, shadow pools and snapshots: they have blocks for everything

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::checksums::Checksums;
use crate::error::Result;
use crate::layout::{Header, SLAB_BYTES, is_system};
use crate::medium::{Mapped, Medium};
use crate::options::Mechanism;

/// Slabs that get blocks together, if they lie side by side: 1 MiB.
pub(crate) const AHEAD: u64 = 64;

/// A bit for each slab that may lack blocks.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    words: Mutex<Vec<u64>>,
    /// False: no bit is set.
    any: AtomicBool,
}

/// Runs of side by side slabs with their bit set, within [first, first + count).
fn runs(words: &[u64], first: u64, count: u64) -> Vec<(u64, u64)> {
    let is_set = |slab: u64| words.get(slab as usize / 64).is_some_and(|word| word >> (slab % 64) & 1 == 1);
    let mut found: Vec<(u64, u64)> = Vec::new();
    for slab in (first..first + count).filter(|slab| is_set(*slab)) {
        match found.last_mut() {
            Some((from, more)) if *from + *more == slab => *more += 1,
            _ => found.push((slab, 1)),
        }
    }
    found
}

impl Holes {
    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of a file that is open for writing. The slabs that hold directories and checksums get blocks at once.
    pub fn find(medium: &Medium, header: &Header) -> Result<Holes> {
        let holes = Holes::default();
        let Some(mapped) = punchable(medium, header.mechanism) else { return Ok(holes) };
        for (from, to) in mapped.holes(header.heap_start, header.heap_start + header.heap_bytes) {
            let first = (from - header.heap_start) / SLAB_BYTES;
            holes.add(first, (to - header.heap_start).div_ceil(SLAB_BYTES) - first);
        }
        if holes.any() {
            for slab in (0..header.heap_bytes / SLAB_BYTES).filter(|slab| is_system(*slab)) {
                holes.reserve(medium, header.heap_start, slab, 1, 0)?;
            }
            // Damaged places are refused when the pool is opened.
            for (first, count) in
                Checksums::read(medium, header).ok().flatten().iter().flat_map(Checksums::slabs)
            {
                holes.reserve(medium, header.heap_start, first, count, 0)?;
            }
        }
        Ok(holes)
    }

    /// Notes slabs that may lack blocks.
    pub fn add(&self, first: u64, count: u64) {
        let mut words = self.lock();
        let needed = (first + count).div_ceil(64) as usize;
        if words.len() < needed {
            words.resize(needed, 0);
        }
        (first..first + count).for_each(|slab| words[slab as usize / 64] |= 1 << (slab % 64));
        self.any.store(true, Ordering::Release);
    }

    /// Gives slabs blocks, and up to `ahead` holes behind each of them.
    ///
    /// # Errors
    ///
    /// [`crate::Error::File`] when the disk is full.
    #[inline]
    pub fn reserve(
        &self,
        medium: &Medium,
        heap_start: u64,
        first: u64,
        count: u64,
        ahead: u64,
    ) -> Result<()> {
        if !self.any() {
            return Ok(());
        }
        self.reserve_some(medium, heap_start, first, count, ahead)
    }

    #[cold]
    fn reserve_some(
        &self,
        medium: &Medium,
        heap_start: u64,
        first: u64,
        count: u64,
        ahead: u64,
    ) -> Result<()> {
        let Medium::Mapped(mapped) = medium else { return Ok(()) };
        // Held meanwhile: a slab whose bit is clear has its blocks.
        let mut words = self.lock();
        for (from, count) in runs(&words, first, count) {
            let longer = runs(&words, from, count + ahead)[0].1;
            let place = |slab: u64| heap_start + slab * SLAB_BYTES;
            let count = match mapped.reserve(place(from), place(from + longer)) {
                Ok(()) => longer,
                Err(_) if longer > count => {
                    mapped.reserve(place(from), place(from + count))?;
                    count
                }
                Err(error) => return Err(error),
            };
            (from..from + count).for_each(|slab| words[slab as usize / 64] &= !(1 << (slab % 64)));
        }
        Ok(())
    }

    /// Gives blocks to the slabs in which [offset, offset + bytes) of the heap lies.
    pub fn reserve_bytes(&self, medium: &Medium, header: &Header, offset: u64, bytes: u64) -> Result<()> {
        let first = offset / SLAB_BYTES;
        self.reserve(medium, header.heap_start, first, (offset + bytes).div_ceil(SLAB_BYTES) - first, 0)
    }

    /// Returns true if any slab may lack blocks.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Slabs that may lack blocks.
    pub fn slabs(&self) -> u64 {
        self.lock().iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns true if a slab may lack blocks.
    pub fn is_hole(&self, slab: u64) -> bool {
        self.any() && !runs(&self.lock(), slab, 1).is_empty()
    }
}

/// The one file of a pool whose slabs lie in it side by side.
pub(crate) fn punchable(medium: &Medium, mechanism: u8) -> Option<&Mapped> {
    match medium {
        Medium::Mapped(mapped) if !mapped.is_private() && mechanism != Mechanism::Shadow as u8 => {
            Some(mapped)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_holes_are_found() {
        let holes = Holes::default();
        assert!(!holes.is_hole(3));
        holes.add(3, 2);
        holes.add(63, 3);
        let words = holes.lock().clone();
        assert_eq!(runs(&words, 0, 300), [(3, 2), (63, 3)]);
        assert_eq!(runs(&words, 4, 60), [(4, 1), (63, 1)]);
        assert!(holes.is_hole(65) && !holes.is_hole(66) && !holes.is_hole(900));
    }
}
