// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The match finder of a packer: its table, and the choice of the [`search`](super::search) for the table's shape and the CPU.
//!
//! - **Layout** positions in the table are 16-bit offsets from a base that the caller moves along.
//! - **Owner** only the table is kept between calls; the history lies before `start` in the caller's buffer.

use super::code_table::Counts;
use super::codes::WINDOW_BYTES;
use super::isa::has_avx2;
use super::same::Words;
use super::search::{Search, hash};
use super::slot::{Shape, Slot, Table, Ways};
use crate::Isa;
use core::marker::PhantomData;

/// How thorough a search is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Compares one position per hash, for bytes that have next to no matches.
    Shallow,
    Usual,
    /// Inserts more positions inside of matches, for bytes where this pays.
    Deep,
}

/// Result of a search.
pub struct Found {
    /// Position at which the search ended.
    pub at: usize,
    /// Number of tokens.
    pub tokens: usize,
    /// Bytes by which the older half of the eight positions per hash made matches longer, including matches that were not
    /// taken; 0 if fewer positions were compared.
    pub gain: usize,
}

/// Table of earlier positions.
pub struct Matcher {
    table: Table,
    /// True if the CPU has AVX2 and may use it.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "asked on x86-64 only"))]
    fast: bool,
}

impl Matcher {
    /// Allocates the table; returns `None` if there is no memory.
    pub fn new(isa: Isa, shape: Shape) -> Option<Matcher> {
        Some(Matcher { table: Table::new(shape)?, fast: has_avx2(isa) })
    }

    /// Returns the shape of the table.
    pub fn shape(&self) -> Shape {
        self.table.shape()
    }

    /// Forgets all positions, and changes the shape of the table.
    pub fn reshape(&mut self, shape: Shape) {
        self.table.reshape(shape);
    }

    /// Changes the number of positions per hash.
    pub fn set_ways(&mut self, ways: Ways) {
        self.table.set_ways(ways);
    }

    /// Makes all offsets smaller by `bytes`, because the base has moved forward by as much.
    pub fn rebase(&mut self, bytes: u16) {
        self.table.rebase(bytes);
    }

    /// Inserts the positions from `start` to the end of `buffer`, which begins at the base and is at most 64 KiB long.
    pub fn learn(&mut self, buffer: &[u8], start: usize) {
        match self.shape() {
            Shape { ways: Ways::One, .. } => self.learn_as::<u16>(buffer, start),
            Shape { ways: Ways::Two, .. } => self.learn_as::<u32>(buffer, start),
            Shape { ways: Ways::Four, .. } => self.learn_as::<u64>(buffer, start),
            Shape { ways: Ways::Eight, .. } => self.learn_as::<u128>(buffer, start),
        }
    }

    fn learn_as<T: Slot>(&mut self, buffer: &[u8], start: usize) {
        debug_assert!(buffer.len() <= 1 << 16);
        let (slots, shape) = (self.table.slots::<T>(), self.shape());
        for (at, eight) in buffer.windows(8).enumerate().skip(start) {
            let eight = u64::from_le_bytes(eight.try_into().unwrap_or_default());
            let shift = 64 - shape.hash_bits;
            let hash = if shape.shortest == 3 { hash::<3>(eight, shift) } else { hash::<5>(eight, shift) };
            // SAFETY: a hash is less than the number of slots, and the table is borrowed mutably.
            unsafe {
                let slot = slots.add(hash);
                slot.write(slot.read().with(at));
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what is searched, how, and where it goes")]
    /// Writes tokens for `buffer[start..]`, or for the part before `pause` and one token more, to `tokens`, which has room for
    /// one per byte, and counts them. `buffer` is at most 65536 bytes long, and the table has positions before `start`.
    /// Distances are at most `window`.
    pub fn find(
        &mut self,
        buffer: &[u8],
        start: usize,
        pause: usize,
        window: usize,
        depth: Depth,
        tokens: &mut [u32],
        counts: &mut Counts,
    ) -> Found {
        assert!(start <= buffer.len() && buffer.len() <= 1 << 16 && tokens.len() >= buffer.len() - start);
        let (first, shape) = (tokens.as_mut_ptr(), self.shape());
        macro_rules! search {
            ($slot:ty, $look:literal, $inner:literal, $shortest:literal) => {{
                macro_rules! how {
                    ($same:ty) => {
                        Search::<$same, $slot, $look, $inner, $shortest> {
                            table: self.table.slots(),
                            hash_shift: 64 - shape.hash_bits,
                            base: buffer.as_ptr(),
                            end: buffer.len(),
                            pause,
                            window: window.min(WINDOW_BYTES),
                            next: first,
                            gain: 0,
                            counts,
                            how: PhantomData,
                        }
                    };
                }
                #[cfg(target_arch = "x86_64")]
                if self.fast {
                    // SAFETY: the assertion above checked the room; base and end are those of a slice; the table has the shape
                    // of the search; `fast` is only true if the CPU has the features.
                    unsafe { super::search::all_avx2(how!(super::same::Avx2), start) }
                } else {
                    // SAFETY: the assertion checked the room; base and end are those of a slice; the table has the shape of the
                    // search.
                    unsafe { how!(Words).all(start) }
                }
                #[cfg(not(target_arch = "x86_64"))]
                // SAFETY: the assertion checked the room; base and end are those of a slice; the table has the shape of the
                // search.
                unsafe {
                    how!(Words).all(start)
                }
            }};
        }
        let (at, end, gain) = match (shape.ways, shape.shortest, depth) {
            (Ways::One, ..) => search!(u16, 1, 6, 5),
            (Ways::Two, _, Depth::Shallow) => search!(u32, 1, 4, 5),
            (Ways::Two, ..) => search!(u32, 2, 4, 5),
            (Ways::Four, 3, _) => search!(u64, 4, 4, 3),
            (Ways::Four, _, Depth::Shallow) => search!(u64, 1, 4, 5),
            (Ways::Four, _, Depth::Usual) => search!(u64, 4, 4, 5),
            (Ways::Four, _, Depth::Deep) => search!(u64, 4, 6, 5),
            (Ways::Eight, ..) => search!(u128, 8, 32, 5),
        };
        Found { at, tokens: (end as usize - first as usize) / size_of::<u32>(), gain }
    }
}
