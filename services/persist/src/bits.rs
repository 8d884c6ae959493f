// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bit for each slab of a heap, which threads set and read without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::SLAB_BYTES;

const WORDS: usize = 512;
/// Slabs that one block of bits is for: 512 MiB of heap.
const BLOCK_SLABS: u64 = WORDS as u64 * 64;

type Block = [AtomicU64; WORDS];

/// A bit for each slab, in blocks that are made when the first bit is set.
#[derive(Debug)]
pub(crate) struct Bits(Vec<OnceLock<Box<Block>>>);

impl Bits {
    /// For a heap of up to `heap_bytes`.
    pub fn new(heap_bytes: u64) -> Bits {
        Bits((0..heap_bytes.div_ceil(BLOCK_SLABS * SLAB_BYTES)).map(|_| OnceLock::new()).collect())
    }

    fn word(&self, slab: u64) -> Option<&AtomicU64> {
        let block = self.0.get((slab / BLOCK_SLABS) as usize)?.get()?;
        Some(&block[(slab % BLOCK_SLABS / 64) as usize])
    }

    /// Returns true if a slab's bit is set.
    #[inline]
    pub fn has(&self, slab: u64) -> bool {
        self.word(slab).is_some_and(|word| word.load(Ordering::Acquire) >> (slab % 64) & 1 == 1)
    }

    pub fn set(&self, slab: u64) {
        let Some(block) = self.0.get((slab / BLOCK_SLABS) as usize) else { return };
        let block = block.get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS]));
        block[(slab % BLOCK_SLABS / 64) as usize].fetch_or(1 << (slab % 64), Ordering::Release);
    }

    pub fn forget(&self, slab: u64) {
        if let Some(word) = self.word(slab) {
            word.fetch_and(!(1 << (slab % 64)), Ordering::Relaxed);
        }
    }

    /// Slabs whose bit is set.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        let blocks = (0..).zip(&self.0).filter_map(|(block, made)| Some((block * BLOCK_SLABS, made.get()?)));
        let words = blocks.flat_map(|(first, block)| (first..).step_by(64).zip(block.iter()));
        words.flat_map(|(first, word)| {
            let word = word.load(Ordering::Acquire);
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        })
    }

    /// Forgets all of them.
    pub fn clear(&self) {
        for block in self.0.iter().filter_map(OnceLock::get) {
            block.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
}
