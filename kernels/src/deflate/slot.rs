// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of the match finder: for each hash, the last positions that had it.
//!
//! - **Layout** one integer per hash, with a position in each 16 bits, the latest lowest: [`u16`] holds one position, [`u128`] eight. A
//!   new position moves the others up and the oldest out. 0 also means "none": a wrong candidate is harmless, because bytes and distance
//!   are compared.
//! - **Owner** [`Table`] owns memory for the largest use; its [`Shape`] says how much of it is used, and as which integers.

use super::room::zeroed;

/// The last positions with one hash.
pub trait Slot: Copy {
    /// Number of positions in a slot.
    const WAYS: usize;
    /// Returns the slot with `place` added and the oldest position dropped.
    fn with(self, place: usize) -> Self;
    /// Returns the position that was added `way` positions ago.
    fn place(self, way: usize) -> usize;
}

macro_rules! slot {
    ($($integer:ty),*) => {$(
        impl Slot for $integer {
            const WAYS: usize = size_of::<$integer>() / 2;

            #[inline(always)]
            fn with(self, place: usize) -> Self {
                self.checked_shl(16).unwrap_or(0) | place as $integer
            }

            #[inline(always)]
            fn place(self, way: usize) -> usize {
                (self >> (16 * way)) as u16 as usize
            }
        }
    )*};
}

slot!(u16, u32, u64, u128);

/// A slot as the low half of a wider one.
trait Low<T> {
    fn low(wide: T) -> Self;
}

macro_rules! low {
    ($($narrow:ty, $wide:ty);*) => {$(
        impl Low<$wide> for $narrow {
            #[inline(always)]
            fn low(wide: $wide) -> $narrow {
                wide as $narrow
            }
        }
    )*};
}

low!(u16, u32; u32, u64; u64, u128);

/// Number of positions per hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Ways {
    One,
    Two,
    Four,
    Eight,
}

/// Layout and use of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub ways: Ways,
    /// Bits of a hash.
    pub hash_bits: u32,
    /// Number of bytes that are hashed, which is the length of the shortest match: 3 or 5.
    pub shortest: usize,
}

impl Shape {
    /// Returns the number of positions in the table.
    const fn places(self) -> usize {
        let ways = match self.ways {
            Ways::One => 1,
            Ways::Two => 2,
            Ways::Four => 4,
            Ways::Eight => 8,
        };
        ways << self.hash_bits
    }
}

/// Most positions that a table has room for.
const PLACES: usize = 1 << 16;

/// Number of slots that are widened or narrowed together.
const BLOCK: usize = 16;

/// Memory for slots, aligned for all of their types.
#[repr(align(64))]
struct Memory([u16; PLACES]);

/// A table of slots.
pub struct Table {
    memory: Box<Memory>,
    shape: Shape,
}

impl Table {
    /// Allocates an empty table; returns `None` if there is no memory.
    pub fn new(shape: Shape) -> Option<Table> {
        assert!(shape.places() <= PLACES);
        // SAFETY: zeros are a valid table.
        Some(Table { memory: unsafe { zeroed()? }, shape })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Forgets all positions, and changes the shape.
    pub fn reshape(&mut self, shape: Shape) {
        self.used().fill(0);
        assert!(shape.places() <= PLACES);
        self.shape = shape;
    }

    /// Changes the number of positions per hash; of the positions so far, the last ones are kept.
    pub fn set_ways(&mut self, ways: Ways) {
        while self.shape.ways != ways {
            let step = match (self.shape.ways, self.shape.ways < ways) {
                (Ways::One, _) => self.widen::<u16, u32>(Ways::Two),
                (Ways::Two, true) => self.widen::<u32, u64>(Ways::Four),
                (Ways::Four, true) => self.widen::<u64, u128>(Ways::Eight),
                (Ways::Two, false) => self.narrow::<u32, u16>(Ways::One),
                (Ways::Four, false) => self.narrow::<u64, u32>(Ways::Two),
                (Ways::Eight, _) => self.narrow::<u128, u64>(Ways::Four),
            };
            self.shape.ways = step;
        }
    }

    /// Turns slots of one type into slots of the next wider type.
    fn widen<A: Slot, B: Slot + From<A>>(&mut self, ways: Ways) -> Ways {
        let (from, to) = (self.slots::<A>(), self.slots::<B>());
        for block in (0..(1 << self.shape.hash_bits) / BLOCK).rev() {
            // SAFETY: slots of both types are inside the memory, which is aligned for both, and any bytes are a slot. Blocks are
            // converted from last to first, so a block is read before it is overwritten.
            unsafe {
                let block = (from.cast::<[A; BLOCK]>().add(block), to.cast::<[B; BLOCK]>().add(block));
                block.1.write(block.0.read().map(B::from));
            }
        }
        ways
    }

    /// Turns slots of one type into slots of the next narrower type; the memory that becomes unused is set to zeros.
    fn narrow<A: Slot, B: Slot + Low<A>>(&mut self, ways: Ways) -> Ways {
        let used = self.shape.places();
        let (from, to) = (self.slots::<A>(), self.slots::<B>());
        for block in 0..(1 << self.shape.hash_bits) / BLOCK {
            // SAFETY: as in `widen`, but from the first block to the last.
            unsafe {
                let block = (from.cast::<[A; BLOCK]>().add(block), to.cast::<[B; BLOCK]>().add(block));
                block.1.write(block.0.read().map(B::low));
            }
        }
        self.memory.0[used / 2..used].fill(0);
        ways
    }

    /// Makes all positions smaller by `bytes`, because the base has moved forward by as much.
    pub fn rebase(&mut self, bytes: u16) {
        for place in self.used() {
            *place = place.saturating_sub(bytes);
        }
    }

    /// Returns the address of the first slot; there are 2^`hash_bits` of the type that the shape requires.
    pub fn slots<T: Slot>(&mut self) -> *mut T {
        assert!(T::WAYS << self.shape.hash_bits <= PLACES);
        self.memory.0.as_mut_ptr().cast()
    }

    fn used(&mut self) -> &mut [u16] {
        &mut self.memory.0[..self.shape.places()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_places_stay() {
        fn check<T: Slot>(none: T) {
            let slot = (1..=20).fold(none, Slot::with);
            assert!((0..T::WAYS).all(|way| slot.place(way) == 20 - way));
        }
        check(0u16);
        check(0u32);
        check(0u64);
        check(0u128);
    }

    #[test]
    fn the_last_four_stay_where_slots_become_wider_and_narrower() {
        let shape = Shape { ways: Ways::Four, hash_bits: 13, shortest: 5 };
        let mut table = Table::new(shape).expect("memory");
        // SAFETY: the shape has 2^13 slots of 64 bits, and only this slice uses them.
        let four =
            |table: &mut Table| unsafe { core::slice::from_raw_parts_mut(table.slots::<u64>(), 1 << 13) };
        for (hash, slot) in four(&mut table).iter_mut().enumerate() {
            *slot = hash as u64 * 0x0003_0002_0001_0001;
        }
        let before = four(&mut table).to_vec();
        table.set_ways(Ways::Eight);
        // SAFETY: `set_ways` made 2^13 slots of 128 bits, and only this slice uses them.
        let eight = unsafe { core::slice::from_raw_parts_mut(table.slots::<u128>(), 1 << 13) };
        assert!(eight.iter().zip(&before).all(|(wide, &slot)| *wide == u128::from(slot)));
        eight[5] |= 77 << 64;
        table.set_ways(Ways::Four);
        assert!(four(&mut table) == &before[..]);
        table.set_ways(Ways::One);
        table.set_ways(Ways::Two);
        table.reshape(Shape { ways: Ways::One, ..shape });
        assert!(table.memory.0.iter().all(|&place| place == 0));
    }

    #[test]
    fn places_move_with_the_base_and_are_forgotten() {
        let shape = Shape { ways: Ways::Four, hash_bits: 12, shortest: 5 };
        let mut table = Table::new(shape).expect("memory");
        table.used()[7] = 900;
        table.used()[8] = 90;
        table.rebase(100);
        assert_eq!(table.used()[7..9], [800, 0]);
        table.reshape(Shape { ways: Ways::One, ..shape });
        table.reshape(shape);
        assert!(table.used().iter().all(|&place| place == 0));
    }
}
